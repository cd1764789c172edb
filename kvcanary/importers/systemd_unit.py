"""Launch commands in systemd units, also where a script writes the unit.

A unit is no shell text: Environment= holds for every ExecStart= wherever it stands, systemd puts no variables into its values, a comment
may stand inside a continued line, and an empty setting takes back what a drop-in found (systemd.exec(5), systemd.service(5)).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kvcanary.config.findings import Severity
from kvcanary.importers.commands import ENV_NAMES, Found
from kvcanary.importers.flags import note
from kvcanary.importers.shell import read_shell
from kvcanary.importers.shell_commands import in_shell
from kvcanary.importers.shell_expand import Variables, Word

UNIT = re.compile(r"(?m)^[ \t]*ExecStart[ \t]*=")
_SETTING = re.compile(r"([A-Z][A-Za-z]*)[ \t]*=[ \t]*")
_SECTION = re.compile(r"\[[A-Z]\w*\]")
_COMMAND_PREFIX = re.compile(r"[@:+!|-]*")
_HEREDOC = re.compile(r"<<-?[ \t]*(?P<quote>['\"]?)(?P<mark>\w{1,60})(?P=quote)[^\n]*\n")
# Each is searched for its end.
_MOST_HEREDOCS = 50
_SHELL_VARIABLE = re.compile(r"(?<!\\)\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
_SPECIFIER = re.compile(r"(?<!%)(?:%%)*%[A-Za-z]")


@dataclass(slots=True)
class _Unit:
    """Settings that concern us: NAME=value words of Environment= with their lines, the files beside them, and the commands."""

    environment: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    commands: list[tuple[str, int]] = field(default_factory=list)


def in_unit(text: str, first_line: int = 1) -> Found:
    """Commands of every unit of the text."""
    found = Found()
    for body, line in _bodies(text, first_line):
        for unit in _units(body, line):
            _read(unit, found)
    return found


def _bodies(text: str, first_line: int) -> Iterator[tuple[str, int]]:
    """The text itself, or the units that it writes with <<EOF: there the shell puts its variables in first."""
    written = False
    for begin in itertools.islice(_HEREDOC.finditer(text), _MOST_HEREDOCS):
        end = re.compile(rf"(?m)^[ \t]*{begin['mark']}[ \t]*\r?$").search(text, begin.end())
        if end is None or not UNIT.search(body := text[begin.end() : end.start()]):
            continue
        written = True
        yield body if begin["quote"] else _put_in(body, text[: begin.start()]), first_line + text.count("\n", 0, begin.end())
    if not written:
        yield text, first_line


def _put_in(body: str, before: str) -> str:
    variables = Variables()
    for statement in read_shell(before).statements:
        variables.assign(statement)

    def known(match: re.Match[str]) -> str:
        value = variables.values.get(match[1] or match[2])
        return value if isinstance(value, str) else match[0]

    return _SHELL_VARIABLE.sub(known, body).replace("\\$", "$")


def _units(text: str, first_line: int) -> Iterator[_Unit]:
    unit = _Unit()
    for name, value, line in _settings(text, first_line):
        if name == "[Unit]" and unit.commands:
            yield unit
            unit = _Unit()
        elif name == "Environment":
            _environment(unit, value)
        elif name in ("EnvironmentFile", "PassEnvironment"):
            unit.files = [*unit.files, f"{name}={value.strip()}"] if value.strip() else []
        elif name == "ExecStart":
            unit.commands = [*unit.commands, (value, line)] if value.strip() else []
    yield unit


def _settings(text: str, first_line: int) -> Iterator[tuple[str, str, int]]:
    """Name, value and line of each setting, sections by their heads; a continued value keeps its line ends behind backslashes."""
    name, kept, start = "", list[str](), 0
    for number, raw in enumerate(text.split("\n"), first_line):
        line = raw.rstrip("\r")
        plain = line.strip()
        if plain.startswith(("#", ";")):
            # Inside a continued value too a comment is passed over.
            kept += ["\\"] if name else []
            continue
        if name:
            kept.append(line)
        elif match := _SETTING.match(plain):
            name, kept, start = match[1], [plain[match.end() :]], number
        elif _SECTION.fullmatch(plain):
            yield plain, "", number
        if name and not plain.endswith("\\"):
            yield name, "\n".join(kept), start
            name = ""
    if name:
        yield name, "\n".join(kept), start


def _environment(unit: _Unit, value: str) -> None:
    words = [word.text for statement in read_shell(value).statements for word in statement.words]
    if not words:
        unit.environment.clear()
    for word in words:
        name, equals, text = word.partition("=")
        if equals:
            unit.environment[name] = text


def _read(unit: _Unit, found: Found) -> None:
    variables = Variables()
    used = "\n".join(command for command, _ in unit.commands)
    for name, text in unit.environment.items():
        if "$" not in text and not _SPECIFIER.search(text):
            variables.values[name] = text.replace("%%", "%")
            continue
        variables.values[name] = None
        if ENV_NAMES.fullmatch(name) or re.search(rf"\$\{{?{re.escape(name)}\b", used):
            why = (
                "systemd puts no variables into Environment=: as the unit stands, the server gets this text itself."
                if "$" in text
                else "systemd puts the specifier in where the unit is started."
            )
            found.findings.append(note("open-variable", f"{name} is not known from the text, got {text[:60]!r}", why))
    exports = {name: text for name, text in variables.values.items() if isinstance(text, str) and ENV_NAMES.fullmatch(name)}
    for value, line in unit.commands:
        shell = in_shell(_COMMAND_PREFIX.sub("", value, count=1).replace("$$", "$"), line, variables, exports)
        commands = [command for command in shell.commands if command.has_program]
        for command in commands:
            command.words = [_without_percent(word) for word in command.words]
        found.take(commands, exports, shell.findings)
    if not found.commands:
        found.env.update(exports)
    for file in unit.files if found.commands else ():
        why = "What it sets is not in the text, and wins over Environment=."
        found.findings.append(note("unit-environment-file", f"variables come from elsewhere: {file[:80]}", why, severity=Severity.NOTE))


def _without_percent(word: Word) -> Word:
    """A specifier such as %i has its value where the unit is started; %% is one sign."""
    if _SPECIFIER.search(word.text):
        return replace(word, unresolved=True)
    return replace(word, text=word.text.replace("%%", "%")) if "%%" in word.text else word
