"""Launch commands in the program sections of supervisord: environment=NAME="value",... and no shell around command=."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from kvcanary.importers.commands import ENV_NAMES, Found, open_variables
from kvcanary.importers.shell_commands import in_shell

SUPERVISED = re.compile(r"(?m)^\[program:[^\]\n]+\]")
_SETTING = re.compile(r"(\w+)[ \t]*[=:][ \t]*(.*)")
_PAIR = re.compile(r"""([A-Za-z_]\w*)[ \t]*=[ \t]*(?:"([^"]*)"|'([^']*)'|([^,\s"']*))""")
# %(ENV_HOME)s and %(process_num)d have their values where the program is started.
_EXPANSION = re.compile(r"%\(\w+\)\d*[sd]")


def in_supervisor(text: str, first_line: int = 1) -> Found:
    """Commands of every program section; %(...)s in them stays open."""
    found = Found()
    for settings in _sections(text, first_line):
        env = {match[1]: match[2] or match[3] or match[4] or "" for match in _PAIR.finditer(settings.get("environment", ("", 0))[0])}
        env = {name: value for name, value in env.items() if ENV_NAMES.fullmatch(name)}
        still_open = {name: value for name, value in env.items() if _EXPANSION.search(value)}
        env = {name: value for name, value in env.items() if name not in still_open}
        command, line = settings.get("command", ("", 0))
        # A shell would read the parentheses of %(...)s.
        shell = in_shell(_EXPANSION.sub(lambda match: f"'{match[0]}'", command), line)
        commands = [entry for entry in shell.commands if entry.has_program]
        for entry in commands:
            entry.words = [replace(word, unresolved=True) if _EXPANSION.search(word.text) else word for word in entry.words]
        found.take(commands, env, [*open_variables(still_open), *shell.findings])
    return found


def _sections(text: str, first_line: int) -> Iterator[dict[str, tuple[str, int]]]:
    """Settings of each program section with their lines; an indented line goes on with the value above it."""
    settings: dict[str, tuple[str, int]] | None = None
    name = ""
    for number, raw in enumerate(text.split("\n"), first_line):
        line = raw.split(" ;", 1)[0].rstrip()
        if line.startswith("["):
            if settings:
                yield settings
            settings, name = ({} if SUPERVISED.match(line) else None), ""
        elif settings is None or not line or line.startswith(("#", ";")):
            continue
        elif line[0] in " \t" and name:
            value, start = settings[name]
            settings[name] = (f"{value} \\\n{line.strip()}", start)
        elif match := _SETTING.match(line):
            name = match[1]
            settings[name] = (match[2], number)
    if settings:
        yield settings
