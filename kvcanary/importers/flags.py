"""From the words behind a program to typed arguments, as argparse would read them, with everything reported that it would refuse."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcanary.config.findings import Finding, Severity
from kvcanary.importers.arguments import Argument, BadValue, Resolved, Table
from kvcanary.importers.result import UnknownFlag, Unresolved
from kvcanary.importers.secrets import is_secret, without_secret_names
from kvcanary.importers.shell_expand import Word

_NEGATIVE = re.compile(r"-\d+(?:[._]\d+)*(?:[eE][+-]?\d+)?|-\.\d+")
_MARKDOWN_LINK = re.compile(r"\[([^\[\]]{1,300})\]\([^()\s]{0,2000}\)")
_PLACEHOLDER = re.compile(r"\.{2,}|…|\[?\.{3}\]?|<[\w .-]+>|\[[A-Z ]+\]|\\")
_MAX_FINDINGS = 200
MAX_SUGGESTIONS = 50
_PRODUCTS = {"sglang": "SGLang", "vllm": "vLLM"}


@dataclass(slots=True)
class Reading:
    """Arguments of one command. `places` says where each came from, `doubts` holds every value of a flag that a condition or a repeat touches."""

    arguments: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    unknown: list[UnknownFlag] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    candidates: dict[str, list[Any]] = field(default_factory=dict)


def note(rule: str, message: str, why: str = "", *, fields: tuple[str, ...] = (), severity: Severity = Severity.WARNING) -> Finding:
    """A finding of the importers."""
    return Finding(rule=rule, severity=severity, fields=fields, message=message, why=why, source="import")


def distinct(findings: Iterable[Finding]) -> list[Finding]:
    """The first finding of each message, in order."""
    first: dict[str, Finding] = {}
    for finding in findings:
        first.setdefault(finding.message, finding)
    return list(first.values())


def read_flags(words: Sequence[Word], table: Table, *, positional: str = "") -> Reading:
    """Read the words behind a program. `positional` names the argument that a first word without a flag gives."""
    return _Flags(words, table, positional).run()


class _Flags:
    def __init__(self, words: Sequence[Word], table: Table, positional: str) -> None:
        self.words, self.table, self.positional = words, table, positional
        self.at = 0
        self.out = Reading()
        self.seen: dict[str, list[tuple[Any, bool]]] = {}
        self.unknown: set[str] = set()

    def run(self) -> Reading:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if self._is_flag(word):
                self._flag(word)
            elif word.unresolved:
                self._unresolved(word.text)
            elif not _PLACEHOLDER.fullmatch(word.text) and word.text:
                self._stray(word)
        self._settle()
        return self.out

    def _note(self, rule: str, message: str, why: str = "", severity: Severity = Severity.WARNING) -> None:
        if len(self.out.findings) < _MAX_FINDINGS:
            self.out.findings.append(note(rule, message, why, severity=severity))

    def _unresolved(self, text: str) -> None:
        shown = without_secret_names(text)
        if shown not in self.out.unresolved:
            self.out.unresolved.append(shown)

    @staticmethod
    def _is_flag(word: Word) -> bool:
        text = word.text
        if not text.startswith("-") or text in ("-", "--") or _NEGATIVE.fullmatch(text) or (word.unresolved and word.whole):
            return False
        # argparse takes a word with a blank in it for a value, unless a known flag stands before '='.
        head = text.partition("=")[0]
        return not any(char.isspace() for char in head) and bool(re.match(r"--?[A-Za-z]", text))

    def _stray(self, word: Word) -> None:
        if self.positional:
            self._store(self.table.arguments[self.positional], word.text, word, "first word")
            self.positional = ""
        else:
            self._note(
                "stray-word", f"word without a flag on line {word.line}: {_short(word.text)}", "It belongs to no flag and was not read."
            )

    def _flag(self, word: Word) -> None:
        head, equals, tail = word.text.partition("=")
        if self.table.engine == "vllm" and (level := re.fullmatch(r"-O(\d)", head)):
            head, equals, tail = "-O", "=", level[1]
        resolved = self.table.resolve(head)
        argument = resolved.argument
        if is_secret(head) or (argument is not None and is_secret(argument.name)):
            self._skip_values(equals)
            self._note("secret", "a flag that carries a secret was left out", severity=Severity.NOTE)
            return
        if argument is None:
            self._unknown(word, head, resolved)
            self._skip_values(equals)
            return
        if argument.gone:
            self._gone(head)
        if resolved.key and argument.kind == "json":
            self._dotted(argument, resolved.key, tail if equals else self._one_value(head, argument), word)
        elif not argument.takes_value:
            self._switch(argument, word, head, tail if equals else None, resolved.negated)
        elif argument.many in ("+", "*"):
            self._many(argument, word, head, tail if equals else None)
        else:
            self._single(argument, word, head, tail if equals else None)

    def _gone(self, head: str) -> None:
        product = f"{_PRODUCTS[self.table.engine]} {self.table.release}"
        newer = [flag for flag, argument in self.table.flags.items() if flag.startswith(head + "-") and not argument.gone]
        if newer:
            self._note("older-flag", f"ambiguous in newer releases: {head}", f"{product} wants {' or '.join(newer)}.")
        else:
            pieces = " Prefill graphs captured in pieces do not go together with the canary." if "piecewise" in head else ""
            self._note("older-flag", f"older flag: {head}", f"{product} no longer knows it and refuses to start with it.{pieces}")

    def _unknown(self, word: Word, head: str, resolved: Resolved) -> None:
        known = head in self.unknown
        self.unknown.add(head)
        if known or len(self.unknown) > _MAX_FINDINGS:
            return
        suggestion = self.table.suggest(head) if not resolved.candidates and len(self.unknown) <= MAX_SUGGESTIONS else ""
        self.out.unknown.append(UnknownFlag(flag=head, reason=resolved.reason, suggestion=suggestion, line=word.line))
        product = f"{_PRODUCTS[self.table.engine]} {self.table.release}"
        if resolved.candidates:
            self._note("unknown-flag", f"{resolved.reason}: {head}", f"It could stand for {', '.join(resolved.candidates)}.")
        else:
            hint = f" Probably meant: {suggestion}." if suggestion else ""
            self._note(
                "unknown-flag", f"unknown flag: {head}", f"{product} has no such flag; it was left out together with its value.{hint}"
            )

    def _skip_values(self, equals: str) -> None:
        while (
            not equals
            and self.at < len(self.words)
            and not self._is_flag(self.words[self.at])
            and not self._hides_flags(self.words[self.at])
        ):
            self.at += 1

    @staticmethod
    def _hides_flags(word: Word) -> bool:
        """A whole unquoted expansion may stand for flags as well as for a value."""
        return word.unresolved and word.whole and not word.quoted

    def _one_value(self, head: str, argument: Argument) -> Word | None:
        """The word behind a flag that wants a value."""
        following = self.words[self.at] if self.at < len(self.words) else None
        if following is None or self._is_flag(following) or _PLACEHOLDER.fullmatch(following.text):
            if argument.many != "?":
                self._note("missing-value", f"no value for {head}", "The text ends or the next flag begins where its value should stand.")
            return None
        self.at += 1
        return following

    def _single(self, argument: Argument, word: Word, head: str, tail: str | None) -> None:
        value = Word(tail, word.line, word.unresolved) if tail is not None else self._one_value(head, argument)
        if value is None:
            return
        if argument.kind == "json" and value.text[:1] == "{" and not value.unresolved:
            value = self._rejoin(value)
        self._store(argument, value.text, value, head)

    def _rejoin(self, value: Word) -> Word:
        """JSON whose outer quotes were lost falls apart at its blanks; put it together up to the brace that closes it."""
        text, at = value.text, self.at
        while text.count("{") > text.count("}") and at < len(self.words) and not self._is_flag(self.words[at]):
            text += " " + self.words[at].text
            at += 1
        if text.count("{") != text.count("}"):
            return value
        self.at = at
        return Word(text, value.line, value.unresolved)

    def _many(self, argument: Argument, word: Word, head: str, tail: str | None) -> None:
        values = [Word(tail, word.line, word.unresolved)] if tail is not None else []
        while tail is None and self.at < len(self.words):
            following = self.words[self.at]
            if self._is_flag(following) or _PLACEHOLDER.fullmatch(following.text) or (values and self._hides_flags(following)):
                break
            values.append(following)
            self.at += 1
        if not values and argument.many == "+":
            self._note("missing-value", f"no value for {head}", "The text ends or the next flag begins where its values should stand.")
            return
        read: list[Any] = []
        for value in values:
            converted = self._converted(argument, value.text, value, head)
            if converted is _REFUSED:
                return
            read.append(converted)
        self._keep(argument, read, word, head)

    def _switch(self, argument: Argument, word: Word, head: str, tail: str | None, negated: bool) -> None:
        following = self.words[self.at].text if self.at < len(self.words) else ""
        if tail is None and self.table.engine == "vllm" and following.lower() in ("true", "false"):
            tail = following
            self.at += 1
        if tail is None:
            self._keep(argument, not negated, word, head)
        elif self.table.engine == "vllm" and not negated:
            self._store(argument, tail, word, head)
        else:
            self._note("malformed-value", f"malformed value for {head}: {_short(tail)}", "It is a switch and takes no value.")

    def _dotted(self, argument: Argument, key: str, value: Word | str | None, word: Word) -> None:
        """vLLM's --compilation-config.cudagraph_mode FULL."""
        if value is None:
            return
        text = value if isinstance(value, str) else value.text
        config = self.out.arguments.get(argument.name)
        inner: dict[str, Any] = dict(config) if isinstance(config, dict) else {}
        place = inner
        *path, last = key.split(".")[:8]
        for name in path:
            place[name] = dict(place[name]) if isinstance(place.get(name), dict) else {}
            place = place[name]
        try:
            place[last.replace("-", "_")] = self.table.convert(Argument(name=last, flags=(), kind="json"), text)
        except BadValue:
            place[last.replace("-", "_")] = text
        self._keep(argument, inner, word, argument.flags[0], quiet=True)

    def _store(self, argument: Argument, text: str, word: Word, head: str) -> None:
        converted = self._converted(argument, text, word, head)
        if converted is not _REFUSED:
            self._keep(argument, [converted] if argument.many in ("+", "*") else converted, word, head)

    def _converted(self, argument: Argument, text: str, word: Word, head: str) -> Any:
        if word.unresolved:
            self._unresolved(text)
            return Unresolved(without_secret_names(text))
        if match := _MARKDOWN_LINK.search(text):
            text = text.replace(match[0], match[1])
            self._note("markdown-link", f"Markdown link in {head}", "The text of the link was taken and its address left out.")
        try:
            return self.table.convert(argument, text)
        except BadValue as error:
            flag = argument.flags[0] if argument.flags else head
            self._note(
                "malformed-value",
                f"malformed value for {flag}: {_short(text)}; it takes {error}",
                "The engine refuses it, so it was not read.",
            )
            return _REFUSED

    def _keep(self, argument: Argument, value: Any, word: Word, head: str, *, quiet: bool = False) -> None:
        name = argument.name
        self.seen.setdefault(name, []).append((value, word.conditional))
        if name in self.out.arguments and not quiet and not word.conditional:
            self._note("repeated-flag", f"flag given twice: {argument.flags[0]}", f"The last one counts: {_short(str(value))}.")
        if word.conditional:
            self._note(
                "conditional-flag", f"added under a condition: {argument.flags[0]}", "Whether it counts is decided when the program runs."
            )
        self.out.arguments[name] = value
        self.out.places[name] = f"{head}, line {word.line}"

    def _settle(self) -> None:
        """A flag whose values differ where a condition decides between them is not decided here."""
        for name, values in self.seen.items():
            if not any(conditional for _, conditional in values):
                continue
            distinct = [value for index, (value, _) in enumerate(values) if value not in [earlier for earlier, _ in values[:index]]]
            if len(distinct) > 1:
                self.out.candidates[name] = distinct
                del self.out.arguments[name]


_REFUSED = object()


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
