"""Launch commands of SGLang and vLLM in any text: arguments under the engine's own names, typed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvcanary.config.findings import Finding, Severity
from kvcanary.importers import paste
from kvcanary.importers.arguments import BadValue, Table, table
from kvcanary.importers.commands import PROGRAM, Found, RawCommand, guess_engine
from kvcanary.importers.flags import MAX_SUGGESTIONS, Reading, distinct, note, read_flags
from kvcanary.importers.kubectl_describe import DESCRIBED, in_description
from kvcanary.importers.python_commands import in_python
from kvcanary.importers.python_text import Expression
from kvcanary.importers.result import UnknownFlag, Unresolved
from kvcanary.importers.secrets import is_secret, without_secret_names
from kvcanary.importers.shell_commands import in_shell
from kvcanary.importers.supervisor import SUPERVISED, in_supervisor
from kvcanary.importers.systemd_unit import UNIT, in_unit
from kvcanary.importers.yaml_commands import in_yaml

_YAML = re.compile(
    r"(?m)^[ \t]*(?:- )?(?:command|args|\w+Args|\w+_args|\w+Flags|entrypoint|containers|services|environment|envs?|image|kind)[ \t]*:(?:[ \t]|\r?$)|"
    # The same as JSON, as docker inspect and kubectl -o json print it.
    r"[\"'](?:Cmd|containers)[\"'][ \t]*:"
)
_YAML_PAIR = re.compile(r"(?m)^[ \t]*(?:- )?[\"']?(?:--)?([A-Za-z][\w-]{1,60})[\"']?[ \t]*:[ \t]+\S")
_PYTHON = re.compile(
    r"(?m)^[ \t]*(?:import|from|def|class|with|async|@)\b|^[ \t]*\w{1,100}[ \t]*\+?=[ \t]*\[|\.(?:append|extend)\(|subprocess|"
    r"popen_launch_server|\(\[[ \t]*[\"']|"
    r"\b[fF][\"']|\b(?:Engine|ServerArgs|LLM|EngineArgs|AsyncEngineArgs)\(|^[ \t]*(?:CMD|ENTRYPOINT)[ \t]*\[|^[ \t]*[\[{][ \t]*(?:$|\")"
)
_QUOTED_FLAG = re.compile(r"""["']--[a-z]""")
_FLAG_LINE = re.compile(r"(?m)^[ \t]*--?[a-zA-Z]")
MAX_COMMANDS, MAX_SPANS = 100, 1000
_COMMENT_LINE = re.compile(r"(?m)^[ \t]*#[^\n]*")
# A comment, or the prompt of a root shell: the latter where nothing else in the text starts a server.
_ROOT_PROMPT = re.compile(rf"(?m)^[ \t]*+#[ \t]++(?=[^\n]{{0,400}}(?:{PROGRAM.pattern}))")
_MODEL_ARGUMENT = {"sglang": "model_path", "vllm": "model"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReading:
    """One command, read: `reading` has its arguments and what is to say about them."""

    engine: str
    reading: Reading
    env: Mapping[str, str]
    line: int
    has_program: bool


@dataclass(slots=True)
class CommandsReading:
    """All commands of a text, variables set outside them, and findings about the text."""

    commands: list[CommandReading] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def read_commands(text: str) -> CommandsReading:
    """Find and read every launch command; an empty reading where there is none. Never raises on any text."""
    straight, odd = paste.straighten(text)
    sides = paste.conflict_sides(straight)
    out = _read_side(straight) if sides is None else _merge_sides(_read_side(sides[0]), _read_side(sides[1]))
    out.findings = distinct(out.findings)
    if odd and out.commands:
        why = "A word processor put them in; they were read as plain quotes and hyphens."
        out.findings.insert(0, note("typography", "smart quotes or dashes", why, severity=Severity.NOTE))
    if len(out.commands) > 1:
        why = "The first one is shown; the others are listed beside it."
        out.findings.append(note("several-commands", f"several commands: {len(out.commands)}", why, severity=Severity.NOTE))
    return out


def _read_side(text: str) -> CommandsReading:
    out = CommandsReading()
    parts = list(paste.blocks(text))
    for block in parts:
        if block.kind != "prose":
            _add(out, _locate(paste.undo_shell_marks(block.text), block.line))
    for block in parts:
        if block.kind != "code" and "`" in block.text and not any(command.has_program for command in out.commands):
            _inline(block, out)
    if any(not command.has_program for command in out.commands) and not any(command.has_program for command in out.commands):
        why = "Only flags were found, so nothing says which program or model they belong to."
        out.findings.append(note("no-program", "no program", why, severity=Severity.NOTE))
    return out


def _locate(text: str, first_line: int) -> Found:
    """The reading that finds a command: by what the text looks like, then the others."""
    readers: list[Callable[[str, int], Found]] = [in_shell]
    pairs = [match[1] for match in _YAML_PAIR.finditer(text[:200_000])]
    recipe = sum(table(engine).named(key) is not None for key in pairs for engine in ("sglang", "vllm")) >= 2
    if _PYTHON.search(text) and (_QUOTED_FLAG.search(text) or PROGRAM.search(text) or "(" in text):
        readers.insert(0, in_python)
    if _YAML.search(text) or recipe:
        readers.insert(0, in_yaml)
    if UNIT.search(text):
        readers.insert(0, in_unit)
    if DESCRIBED.search(text):
        readers.insert(0, in_description)
    if SUPERVISED.search(text):
        readers.insert(0, in_supervisor)
    if _ROOT_PROMPT.search(text) and not PROGRAM.search(_COMMENT_LINE.sub("", text)):
        text = _ROOT_PROMPT.sub("", text)
    env: dict[str, str] = {}
    for reader in readers:
        found = reader(text, first_line)
        env.update(found.env)
        if found.commands and (reader is not in_shell or _plausible(found)):
            if reader is in_python:
                found.env.update(in_shell(text, first_line).env)
            return found
    return Found(env=env)


def _plausible(found: Found) -> bool:
    """Flags without a program count only if one of them is known; dashes begin lines of other texts too."""
    fragments = [command for command in found.commands if not command.has_program]
    for command in fragments:
        engine = guess_engine(command.words)
        flags = [word.text.partition("=")[0] for word in command.words if word.text.startswith("--")]
        if not any(table(engine).resolve(flag).argument is not None for flag in flags):
            found.commands.remove(command)
    return bool(found.commands)


def _inline(block: paste.Block, out: CommandsReading) -> None:
    """Inline code: a whole command anywhere, flags where they are listed; flags inside a sentence are named, not read."""
    listed: list[paste.Span] = []
    for span in itertools.islice(paste.spans(block.text, block.line), MAX_SPANS):
        if PROGRAM.search(span.text):
            _add(out, in_shell(span.text, span.line))
        elif span.mention and span.text.startswith("--"):
            flag = span.text.split()[0].partition("=")[0]
            why = "It stands inside a sentence and may speak of another run, so it was not read."
            out.findings.append(note("mentioned-flag", f"mentioned outside the list: {flag}", why, severity=Severity.NOTE))
        elif span.text.startswith("--") or re.match(r"[A-Z][A-Z0-9_]+=", span.text):
            listed.append(span)
    if listed and not any(command.has_program for command in out.commands):
        text = "\n" * (listed[0].line - 1)
        line = listed[0].line
        for span in listed:
            text += "\n" * (span.line - line) + (" " if span.line == line else "") + span.text
            line = max(line, span.line)
        found = in_shell(text)
        if _plausible(found):
            _add(out, found)
        out.env.update(found.env)


def _add(out: CommandsReading, found: Found) -> None:
    out.env.update(found.env)
    out.findings = distinct([*out.findings, *found.findings])
    for command in found.commands[: MAX_COMMANDS - len(out.commands)]:
        read = _read(command)
        # A list of processes, or the state of a service, shows one command several times.
        if not any(_same(read, known) for known in out.commands):
            out.commands.append(read)


def _same(one: CommandReading, other: CommandReading) -> bool:
    return (one.engine, one.reading.arguments, one.env, one.has_program) == (
        other.engine,
        other.reading.arguments,
        other.env,
        other.has_program,
    )


def _read(command: RawCommand) -> CommandReading:
    engine = command.engine or guess_engine(command.words)
    arguments = table(engine)
    reading = _read_native(command, arguments) if command.native else Reading()
    if command.words:
        reading = read_flags(command.words, arguments, positional=_MODEL_ARGUMENT[engine] if command.positional else "")
    reading.findings[:0] = command.findings
    if config := reading.arguments.get("config"):
        why = "The file is not in the text, and the flags of the command win over it."
        shown = config.text if isinstance(config, Unresolved) else config
        reading.findings.append(note("flags-file", f"flags come from elsewhere: --config {str(shown)[:80]}", why, severity=Severity.NOTE))
    return CommandReading(
        engine=engine, reading=reading, env=dict(command.env), line=command.line, has_program=command.has_program or bool(command.native)
    )


def _read_native(command: RawCommand, arguments: Table) -> Reading:
    reading = Reading()
    for key, (value, line) in command.native.items():
        argument = arguments.named(key)
        if is_secret(key):
            continue
        if argument is None:
            suggestion = arguments.suggest("--" + key.replace("_", "-")) if len(reading.unknown) < MAX_SUGGESTIONS else ""
            reading.unknown.append(UnknownFlag(flag=key, reason="no such key", suggestion=suggestion, line=line))
        elif isinstance(value, Expression):
            shown = without_secret_names(value.source)
            reading.arguments[argument.name] = Unresolved(shown)
            reading.unresolved.append(shown)
        elif isinstance(value, str) and re.search(r"\$[({A-Za-z_]|\{\{", value):
            reading.arguments[argument.name] = Unresolved(without_secret_names(value))
            reading.unresolved.append(without_secret_names(value))
        else:
            try:
                reading.arguments[argument.name] = arguments.from_native(argument, value)
                reading.places[argument.name] = f"{key}, line {line}"
            except BadValue as error:
                shown = str(value)[:40]
                reading.findings.append(
                    note("malformed-value", f"malformed value for {key}: {shown!r}; it takes {error}", "It was not read.")
                )
    return reading


def _merge_sides(ours: CommandsReading, theirs: CommandsReading) -> CommandsReading:
    """One reading of both sides of a merge conflict: what they agree on, and the candidates where they do not."""
    out = CommandsReading(env={**theirs.env, **ours.env}, findings=distinct([*ours.findings, *theirs.findings]))
    out.findings.insert(
        0, note("conflict-markers", "merge conflict markers", "The text holds two versions; where they differ nothing was chosen.")
    )
    for index, mine in enumerate(ours.commands):
        other = theirs.commands[index] if index < len(theirs.commands) else None
        if other is not None and other.engine == mine.engine:
            _drop_differences(mine.reading, other.reading)
        out.commands.append(mine)
    out.commands += theirs.commands[len(ours.commands) :]
    return out


def _drop_differences(mine: Reading, other: Reading) -> None:
    for name in {**mine.arguments, **other.arguments}:
        candidates: list[Any] = [reading.arguments.get(name) for reading in (mine, other)]
        if candidates[0] != candidates[1]:
            mine.candidates[name] = candidates
            mine.arguments.pop(name, None)
    for entry in other.unknown:
        if entry.flag not in {known.flag for known in mine.unknown}:
            mine.unknown.append(entry)
    mine.findings = distinct([*mine.findings, *other.findings])
