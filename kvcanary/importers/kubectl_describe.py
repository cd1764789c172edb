"""Launch commands in what `kubectl describe pod` prints: one word of a command on each line, variables as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kvcanary.importers.commands import ENV_NAMES, PROGRAM, Found, RawCommand, find_program, open_variables, takes_positional
from kvcanary.importers.shell_commands import in_shell
from kvcanary.importers.shell_expand import Variables, Word

DESCRIBED = re.compile(r"(?m)^ +(?:Command|Args):[ \t]*\r?\n(?= +\S)")
_HEAD = re.compile(r"( +)([A-Z][A-Za-z ]*):(?:[ \t]+(.*))?")
_VARIABLE = re.compile(r"([A-Za-z_]\w*):(?:[ \t]+(.*))?")
_ELSEWHERE = re.compile(r"<[^>]*>|\$\(")


def in_description(text: str, first_line: int = 1) -> Found:
    """Commands of every container of the text."""
    found = Found()
    for words, environment in _containers(text, first_line):
        known = {name: value for name, value in environment.items() if not _ELSEWHERE.search(value)}
        canary = {name: value for name, value in known.items() if ENV_NAMES.fullmatch(name)}
        start = find_program(words)
        if start is not None:
            positional = takes_positional(words, start[1])
            found.commands.append(RawCommand(start[0], words[start[1] :], words[0].line, env=canary, positional=positional))
        elif script := _script(words):
            shell = in_shell(script.text, script.line, Variables(values=dict(known)))
            found.take([command for command in shell.commands if command.has_program], canary, shell.findings)
        found.take((), {}, open_variables({name: value for name, value in environment.items() if name not in known}))
    return found


def _containers(text: str, first_line: int) -> Iterator[tuple[list[Word], dict[str, str]]]:
    """Words of command and arguments, and the environment, of each container."""
    words, environment = list[Word](), dict[str, str]()
    block, indent = "", 0
    for number, raw in enumerate(text.split("\n"), first_line):
        line = raw.rstrip("\r")
        depth = len(line) - len(line.lstrip(" "))
        if block and line.strip() and depth > indent:
            if block != "Environment":
                words.append(Word(line.strip(), number, unresolved="$(" in line, quoted=True))
            elif match := _VARIABLE.match(line.strip()):
                environment[match[1]] = (match[2] or "").split("  Optional: ")[0].strip()
        elif match := _HEAD.match(line):
            block, indent = match[2] if match[2] in ("Command", "Args", "Environment") else "", depth
            if match[2] == "Image" and words:
                yield words, environment
                words, environment = [], {}
    if words:
        yield words, environment


def _script(words: Sequence[Word]) -> Word | None:
    """The lines behind `sh -c`, which are printed as they stand."""
    at = next((index for index, word in enumerate(words) if re.fullmatch(r"-\w*c", word.text)), None)
    if at is None or not any(PROGRAM.search(word.text) for word in words[at:]):
        return None
    lines = words[at + 1 :]
    return Word("\n".join(word.text for word in lines), lines[0].line) if lines else None
