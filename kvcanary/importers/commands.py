"""Where launch commands stand in a text: the program, the words behind it, and the environment before it.

Gives words, not arguments; flags.py reads those. Every form ends in the same record, so that a command means the same in a terminal, a compose
file, a pod spec and a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcanary.config.findings import Finding, Severity
from kvcanary.importers import yaml_text
from kvcanary.importers.arguments import table
from kvcanary.importers.flags import distinct, note
from kvcanary.importers.python_text import EngineCall, is_field, read_python, restore
from kvcanary.importers.shell import MAX_DEPTH, RawWord, Statement, Variables, Word, assignments, expand, read_shell

PROGRAM = re.compile(
    r"sglang[./](?:srt[./])?(?:launch_server|entrypoints[./]http_server)|\bsglang\s+serve\b|\bvllm\s+serve\b|vllm\.entrypoints\.(?:openai\.)?api_server"
)
_MODULES = {
    "sglang.launch_server": "sglang",
    "sglang.srt.entrypoints.http_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
}
_SGLANG_IMAGE = re.compile(r"(?:^|/)sglang(?:[\w.-]*)?(?:[:@]|$)")
_VLLM_IMAGE = re.compile(r"(?:^|/)vllm[\w-]*(?:[:@]|$)")
_INTERPRETER = re.compile(r"(?:.*[/=])?(?:python[\w.]*|pypy[\w.]*|torchrun|uv|coverage|accelerate|debugpy|nsys|ncu)$")
_SILENT = ("echo", "printf", "grep", "pgrep", "pkill", "kill", "man", "cat", "which", "#")
_SHELLS = re.compile(r"(?:.*/)?(?:ba|da|z|k)?sh$")
_ENV_NAMES = re.compile(r"SGLANG_(?:KV_CANARY_\w+|ENABLE_POST_CAPTURE_KV_SIZING)")
_EMPTY_QUOTED = re.compile(r"--?[A-Za-z]")
_NAMED_CLIENT = re.compile(r"(?i)client|bench|load|router|gateway|eval|test")


@dataclass(slots=True)
class RawCommand:
    """Words of one launch command. `native` holds arguments of a config file or a keyword call, which have values instead of words."""

    engine: str
    words: list[Word]
    line: int
    has_program: bool = True
    env: dict[str, str] = field(default_factory=dict)
    native: dict[str, tuple[Any, int]] = field(default_factory=dict)
    positional: bool = False
    findings: list[Finding] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """Commands of a text in order, variables set beside them, and what is to say about the text as a whole."""

    commands: list[RawCommand] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def in_shell(text: str, first_line: int = 1) -> Found:
    """Commands in shell text."""
    return _Shell(Variables()).read(text, first_line)


class _Shell:
    """Reads statements in order; nested quoting is read by another round over the word's text with the same variables."""

    def __init__(self, variables: Variables, depth: int = 0) -> None:
        self.variables, self.depth = variables, depth
        self.found = Found()
        self.open: RawCommand | None = None
        self.exports: dict[str, str] = {}

    def read(self, text: str, first_line: int) -> Found:
        shell = read_shell(text, first_line)
        if shell.unbalanced:
            self._say("unbalanced-quotes", "unbalanced quotes", "A quote opens and never closes; what stands before it was read.")
        if shell.blank_continuation:
            why = "A shell ends the command there; the lines were read as one command."
            self._say("blank-continuation", "backslash followed by spaces", why)
        for statement in shell.statements:
            self._statement(statement)
        self._unexported()
        return self.found

    def _say(self, rule: str, message: str, why: str, severity: Severity = Severity.WARNING) -> None:
        if not any(finding.message == message for finding in self.found.findings):
            self.found.findings.append(note(rule, message, why, severity=severity))

    def _statement(self, statement: Statement) -> None:
        if services := self._service_environment(statement.words):
            self.exports.update(services)
            return
        if self.variables.assign(statement):
            exported = {name: word.text for name, word in self.variables.exported.items() if _ENV_NAMES.fullmatch(name)}
            self.exports.update(exported)
            self.open = None
            return
        words = [word for raw in statement.words for word in self._expanded(raw)]
        if not words:
            return
        start = find_program(words)
        if start is not None:
            self._launch(statement, words, start)
        elif _is_flag(words[0].text):
            self._fragment(words)
        else:
            self.open = None
            if words[0].text not in _SILENT:
                self._inside(statement, words)

    def _expanded(self, raw: RawWord) -> list[Word]:
        if raw.items is not None:
            return [Word(raw.text, raw.line)]
        return expand(raw, self.variables)

    def _service_environment(self, words: Sequence[RawWord]) -> dict[str, str]:
        """systemd's Environment="A=1" "B=2"."""
        if not words[0].text.startswith("Environment="):
            return {}
        inner = read_shell(" ".join(word.text for word in words).removeprefix("Environment=")).statements
        pairs = assignments([word for statement in inner for word in statement.words], self.variables)
        return {name: word.text for name, word in pairs if _ENV_NAMES.fullmatch(name) and not word.unresolved}

    def _launch(self, statement: Statement, words: list[Word], start: tuple[str, int, bool]) -> None:
        engine, at, has_interpreter = start
        command = RawCommand(engine, words[at:], words[at - 1].line, positional=_takes_positional(words, at))
        command.env = {**self.exports, **_prefix_environment(statement.words, self.variables)}
        if not has_interpreter:
            command.findings.append(
                note("no-program", "no program before -m", "The word that starts Python is missing; the flags were read.")
            )
        self.found.commands.append(command)
        self.open = command

    def _fragment(self, words: list[Word]) -> None:
        """Flags at the beginning of a line: the rest of the command above whose backslash was lost, or a piece of a command."""
        if self.open is None:
            self.open = RawCommand("", [], words[0].line, has_program=False, env=dict(self.exports))
            self.found.commands.append(self.open)
        elif self.open.has_program:
            self._say(
                "lost-continuation", "a line begins with a flag without a backslash before it", "It was read as part of the command above."
            )
        self.open.words += words

    def _inside(self, statement: Statement, words: list[Word]) -> None:
        """A command inside a quoted word: ssh host "...", bash -c '...', tmux send-keys '...'."""
        for word in words:
            if self.depth < MAX_DEPTH and PROGRAM.search(word.text) and any(char.isspace() for char in word.text):
                inner = _Shell(self.variables, self.depth + 1)
                inner.exports = {**self.exports, **_prefix_environment(statement.words, self.variables)}
                found = inner.read(word.text, word.line)
                self.found.commands += found.commands
                for finding in found.findings:
                    self._say(finding.rule, finding.message, finding.why)

    def _unexported(self) -> None:
        plain = {name: word.text for name, word in self.variables.plain.items() if _ENV_NAMES.fullmatch(name)}
        if any(command.has_program for command in self.found.commands):
            for name in plain:
                self._say("not-exported", f"{name} is set but not exported", "The server does not see it; put export before it.")
        else:
            self.exports = {**plain, **self.exports}
        self.found.env = dict(self.exports)


def _is_flag(text: str) -> bool:
    return bool(_EMPTY_QUOTED.match(text)) and (text.startswith("--") or len(text.partition("=")[0]) <= 4)


def _takes_positional(words: Sequence[Word], at: int) -> bool:
    return words[at - 1].text == "serve" or bool(_VLLM_IMAGE.search(words[at - 1].text))


def _prefix_environment(words: Iterable[RawWord], variables: Variables) -> dict[str, str]:
    """NAME=value before the program, also behind -e, --env and --env=."""
    found: dict[str, str] = {}
    for word in words:
        text = word.text
        if text.startswith(("--env=", "-e=")):
            name, _, value = text.partition("=")[2].partition("=")
            if _ENV_NAMES.fullmatch(name) and "$" not in value:
                found[name] = value
    for name, value_word in assignments(list(words), variables):
        if _ENV_NAMES.fullmatch(name) and not value_word.unresolved:
            found[name] = value_word.text
    return found


def find_program(words: Sequence[Word]) -> tuple[str, int, bool] | None:
    """Engine, index behind the program, and whether something starts Python before -m; None where no engine is started."""
    for at, word in enumerate(words):
        text = word.text
        before = words[at - 1].text if at else ""
        name = text.rpartition("/")[2]
        following = words[at + 1].text if at + 1 < len(words) else ""
        if text in _MODULES and before == "-m":
            return _MODULES[text], at + 1, any(_INTERPRETER.match(earlier.text) for earlier in words[:at])
        if name in ("sglang", "vllm") and following == "serve":
            return name, at + 2, True
        if text.endswith("launch_server.py") and (not at or _INTERPRETER.match(before) or before.startswith("-")):
            return "sglang", at + 1, True
    return _image(words)


def _image(words: Sequence[Word]) -> tuple[str, int, bool] | None:
    """A container started without naming its program: the image's own entry point takes the flags."""
    if not any(word.text.rpartition("/")[2] in ("docker", "podman", "nerdctl") for word in words[:3]) or not any(
        word.text == "run" for word in words
    ):
        return None
    for at, word in enumerate(words[:-1]):
        engine = "vllm" if _VLLM_IMAGE.search(word.text) else "sglang" if _SGLANG_IMAGE.search(word.text) else ""
        following = words[at + 1].text
        if engine and not word.text.startswith("-") and (following.startswith("--") or (engine == "vllm" and "/" in following)):
            return engine, at + 1, True
    return None


def in_yaml(text: str, first_line: int = 1) -> Found:
    """Commands in compose files, pod specs and files that map flag names to values."""
    found = Found()
    nodes = yaml_text.read_yaml(text, first_line)
    for node in nodes:
        for mapping in (inner for inner in yaml_text.walk(node) if isinstance(inner, yaml_text.Mapping)):
            _container(mapping, found)
    if not found.commands:
        _recipes(nodes, found)
    return found


def _container(mapping: yaml_text.Mapping, found: Found) -> None:
    parts = [
        mapping.get("entrypoint"),
        mapping.get("command"),
        mapping.get("args"),
        mapping.get("run"),
        mapping.get("script"),
        mapping.get("cmd"),
    ]
    env = _yaml_environment(mapping)
    image = mapping.get("image")
    image_name = image.text if isinstance(image, yaml_text.Scalar) else ""
    words: list[Word] = []
    for part in (part for part in parts if part is not None):
        if isinstance(part, yaml_text.Sequence):
            words += [word for item in part.items if isinstance(item, yaml_text.Scalar) for word in _item(item, env)]
        elif isinstance(part, yaml_text.Scalar):
            statements = read_shell(part.text, part.line).statements
            if len(statements) > 1:
                shell = in_shell(part.text, part.line)
                _take(found, [command for command in shell.commands if command.has_program], {**env, **shell.env}, shell.findings)
                continue
            # One command line, perhaps the first half of it: an entry point before its arguments.
            for statement in statements:
                env.update(_prefix_environment(statement.words, Variables()))
                words += [word for raw in statement.words for word in expand(raw, Variables())]
    if words and any(PROGRAM.search(word.text) or word.text.startswith("--") for word in words):
        _container_words(words, env, image_name, found)


def _container_words(words: list[Word], env: dict[str, str], image: str, found: Found) -> None:
    scripts = [word for word in words if PROGRAM.search(word.text) and any(char.isspace() for char in word.text)]
    if scripts or (_SHELLS.match(words[0].text) and len(words) > 2):
        for word in scripts:
            shell = in_shell(word.text, word.line)
            _take(found, [command for command in shell.commands if command.has_program], env, shell.findings)
        return
    start = find_program(words)
    if start is not None:
        command = RawCommand(start[0], words[start[1] :], words[0].line, env=env, positional=_takes_positional(words, start[1]))
        found.commands.append(command)
    elif engine := _image_engine(image, words):
        found.commands.append(RawCommand(engine, words, words[0].line, env=env, positional=engine == "vllm", has_program=bool(image)))


def _image_engine(image: str, words: Sequence[Word]) -> str:
    if _VLLM_IMAGE.search(image):
        return "vllm"
    if _SGLANG_IMAGE.search(image):
        return "sglang"
    return guess_engine(words) if _is_flag(words[0].text) else ""


def _take(found: Found, commands: list[RawCommand], env: dict[str, str], findings: Iterable[Finding]) -> None:
    for command in commands:
        command.env = {**env, **command.env}
    found.commands += commands
    found.findings = distinct([*found.findings, *findings])


def _item(item: yaml_text.Scalar, env: dict[str, str]) -> Iterator[Word]:
    """One list item as a word; $(NAME) and ${NAME} are put in where the container's own environment has them."""
    text = item.text

    def fill(match: re.Match[str]) -> str:
        return env.get(match[1] or match[2], match[0])

    filled = re.sub(r"\$\((\w+)\)|\$\{(\w+)\}", fill, text) if not PROGRAM.search(text) else text
    unresolved = bool(re.search(r"\$[({A-Za-z_]|\{\{", filled)) and not PROGRAM.search(text)
    head, blank, tail = filled.partition(" ")
    if blank and re.fullmatch(r"--[a-z][\w-]*", head) and not unresolved:
        # A flag and its value in one item are one word to the engine, but there is no doubt what was meant.
        yield Word(head, item.line)
        yield Word(tail.strip(), item.line, quoted=True)
    else:
        yield Word(filled, item.line, unresolved=unresolved, quoted=True)


def _yaml_environment(mapping: yaml_text.Mapping) -> dict[str, str]:
    env: dict[str, str] = {}
    node = mapping.get("environment", "env")
    if isinstance(node, yaml_text.Mapping):
        env = {key: value.text for key, value in node.entries if isinstance(value, yaml_text.Scalar)}
    for item in node.items if isinstance(node, yaml_text.Sequence) else ():
        if isinstance(item, yaml_text.Scalar):
            name, _, value = item.text.partition("=")
            env[name] = value
        elif isinstance(item, yaml_text.Mapping):
            name_node, value_node = item.get("name"), item.get("value")
            if isinstance(name_node, yaml_text.Scalar) and isinstance(value_node, yaml_text.Scalar):
                env[name_node.text] = value_node.text
    return {name: value for name, value in env.items() if _ENV_NAMES.fullmatch(name) and "$" not in value}


def guess_engine(words: Iterable[Word]) -> str:
    """The engine whose arguments the flags are; SGLang where both fit."""
    flags = [word.text.partition("=")[0] for word in words if word.text.startswith("-")]
    score = {engine: sum(table(engine).resolve(flag).argument is not None for flag in flags) for engine in ("sglang", "vllm")}
    return "vllm" if score["vllm"] > score["sglang"] else "sglang"


def _recipes(nodes: Sequence[yaml_text.Node], found: Found) -> None:
    """Files that map flag names to values: one command per mapping, a mapping for a client program left out."""
    groups: list[tuple[str, RawCommand]] = []
    for node in nodes:
        for name, mapping in _named_mappings(node, ""):
            engines = {engine: sum(table(engine).named(key) is not None for key, _ in mapping.entries) for engine in ("sglang", "vllm")}
            engine = "vllm" if engines["vllm"] > engines["sglang"] else "sglang"
            if engines[engine]:
                native = {key: (yaml_text.native(value), _line(value)) for key, value in mapping.entries}
                groups.append((name, RawCommand(engine, [], mapping.line, has_program=False, native=native)))
    best = max((len(command.native) for _, command in groups), default=0)
    for name, command in groups:
        known = sum(table(command.engine).named(key) is not None for key in command.native)
        if (_NAMED_CLIENT.search(name) and len(groups) > 1) or (known < 2 and best > 2):
            why = "The section looks like settings of another program, so its keys were not read."
            found.findings.append(note("other-section", f"section {name or '(first)'} was left out", why, severity=Severity.NOTE))
        else:
            found.commands.append(command)


def _named_mappings(node: yaml_text.Node, name: str) -> Iterator[tuple[str, yaml_text.Mapping]]:
    if isinstance(node, yaml_text.Mapping):
        yield name, node
        for key, value in node.entries:
            if table("sglang").named(key) is None and table("vllm").named(key) is None:
                yield from _named_mappings(value, key)
    elif isinstance(node, yaml_text.Sequence):
        for item in node.items:
            yield from _named_mappings(item, name)


def _line(node: yaml_text.Node) -> int:
    return node.line


def in_python(text: str, first_line: int = 1) -> Found:
    """Commands in Python or JSON source."""
    source = read_python(text, PROGRAM, first_line)
    found = Found()
    targets: dict[str, RawCommand] = {}
    for entry in source.lists:
        start = find_program(entry.words)
        last = found.commands[-1] if found.commands else None
        command = (targets.get(entry.target) or last) if entry.adds else None
        if last is not None and last.has_program and not last.words and start is None:
            command = last  # ENTRYPOINT [program] and CMD [flags] of an image are one command.
        if command is None:
            engine = start[0] if start else guess_engine(entry.words)
            command = RawCommand(engine, [], entry.line, has_program=start is not None)
            command.positional = start is not None and _takes_positional(entry.words, start[1])
            found.commands.append(command)
        command.words += entry.words[start[1] :] if start else entry.words
        targets[entry.target] = command
    for body, line in source.commands:
        shell = in_shell(body, line)
        for command in shell.commands:
            command.words = [_field_word(word) for word in command.words]
        _take(found, [command for command in shell.commands if command.has_program], shell.env, shell.findings)
    found.commands += [_called(call) for call in source.calls]
    found.commands.sort(key=lambda command: command.line)
    return found


def _field_word(word: Word) -> Word:
    unresolved = word.unresolved or is_field(word.text)
    return Word(restore(word.text), word.line, unresolved, word.whole, word.quoted, word.conditional)


def _called(call: EngineCall) -> RawCommand:
    return RawCommand(call.engine, [], call.line, native={key: (value, call.line) for key, value in call.keywords.items()})
