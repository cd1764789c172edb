"""Launch commands in Python or JSON source."""

from __future__ import annotations

import re

from kvcanary.importers.commands import ENV_NAMES, PROGRAM, Found, RawCommand, find_program, guess_engine, open_variables, takes_positional
from kvcanary.importers.python_text import EngineCall, is_field, read_python, restore
from kvcanary.importers.shell_commands import in_shell
from kvcanary.importers.shell_expand import Word

# env["NAME"] = "1", {"NAME": "1"} and setdefault("NAME", "1").
_SET = re.compile(rf"""["'](?P<name>{ENV_NAMES.pattern})["']\s*(?:\]\s*=(?!=)|[:,])\s*(?P<value>str\(\d+\)|[^,;)}}\]\n#]+)""")


def in_python(text: str, first_line: int = 1) -> Found:
    """Commands in Python or JSON source."""
    source = read_python(text, PROGRAM, first_line)
    found = Found()
    for match in _SET.finditer(text):
        typed = match["value"].strip()
        quoted = re.fullmatch(r"(?:\"([^\"\\]*)\"|'([^'\\]*)'|str\((\d+)\))", typed)
        if quoted is None:
            found.take((), {}, open_variables({match["name"]: typed}))
        else:
            found.env[match["name"]] = next(text for text in quoted.groups() if text is not None)
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
            command.positional = start is not None and takes_positional(entry.words, start[1])
            found.commands.append(command)
        command.words += entry.words[start[1] :] if start else entry.words
        targets[entry.target] = command
    for body, line in source.commands:
        shell = in_shell(body, line)
        for command in shell.commands:
            command.words = [_field_word(word) for word in command.words]
        found.take([command for command in shell.commands if command.has_program], shell.env, shell.findings)
    found.commands += [_called(call) for call in source.calls]
    found.commands.sort(key=lambda command: command.line)
    return found


def _field_word(word: Word) -> Word:
    unresolved = word.unresolved or is_field(word.text)
    return Word(restore(word.text), word.line, unresolved, word.whole, word.quoted, word.conditional)


def _called(call: EngineCall) -> RawCommand:
    return RawCommand(call.engine, [], call.line, native={key: (value, call.line) for key, value in call.keywords.items()})
