"""Launch commands in shell text, also inside the quoted words of ssh, bash -c and tmux."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kvcanary.config.findings import Severity
from kvcanary.importers.commands import ENV_NAMES, PROGRAM, Found, RawCommand, find_program, is_flag, open_variables, takes_positional
from kvcanary.importers.flags import note
from kvcanary.importers.shell import RawWord, Statement, read_shell
from kvcanary.importers.shell_expand import MAX_DEPTH, Variables, Word, assignments, expand

_SILENT = ("echo", "printf", "grep", "pgrep", "pkill", "kill", "man", "cat", "which", "#")


def in_shell(text: str, first_line: int = 1, variables: Variables | None = None, exports: Mapping[str, str] | None = None) -> Found:
    """Commands in shell text, with the variables and the canary's environment that something around it sets."""
    shell = _Shell(variables or Variables())
    shell.exports.update(exports or {})
    return shell.read(text, first_line)


class _Shell:
    """Reads statements in order; nested quoting is read by another round over the word's text with the same variables."""

    def __init__(self, variables: Variables, depth: int = 0) -> None:
        self.variables, self.depth = variables, depth
        self.found = Found()
        self.open: RawCommand | None = None
        self.comment = 0
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
            self.comment = statement.comment
        if not self.depth and not self.found.commands:
            self._kept_in_variables()
        self._unexported()
        return self.found

    def _say(self, rule: str, message: str, why: str, severity: Severity = Severity.WARNING) -> None:
        if not any(finding.message == message for finding in self.found.findings):
            self.found.findings.append(note(rule, message, why, severity=severity))

    def _statement(self, statement: Statement) -> None:
        if self.variables.assign(statement):
            exported = {name: word.text for name, word in self.variables.exported.items() if ENV_NAMES.fullmatch(name)}
            self.exports.update(exported)
            self.open = None
            return
        words = [word for raw in statement.words for word in self._expanded(raw)]
        if not words:
            return
        start = find_program(words)
        if start is not None:
            self._launch(statement, words, start)
        elif is_flag(words[0].text):
            self._fragment(words)
        else:
            self.open = None
            if words[0].text not in _SILENT:
                self._inside(statement, words)

    def _expanded(self, raw: RawWord) -> list[Word]:
        if raw.items is not None:
            return [Word(raw.text, raw.line)]
        return expand(raw, self.variables)

    def _kept_in_variables(self) -> None:
        """A command that a variable holds and that a condition adds to: its part that is sure."""
        for name, word in list(self.variables.sure.items()):
            if PROGRAM.search(word.text) and any(char.isspace() for char in word.text):
                found = _Shell(self.variables, self.depth + 1).read(word.text, word.line)
                self.found.commands += found.commands
                if found.commands and name in self.variables.open:
                    why = "Its last value that is sure was read; what the condition adds is not in it."
                    self._say("conditional-command", f"{name} is changed under a condition", why)

    def _launch(self, statement: Statement, words: list[Word], start: tuple[str, int, bool]) -> None:
        engine, at, has_interpreter = start
        command = RawCommand(engine, words[at:], words[at - 1].line, positional=takes_positional(words, at))
        command.env = self._environment(statement.words)
        if not has_interpreter:
            command.findings.append(
                note("no-program", "no program before -m", "The word that starts Python is missing; the flags were read.")
            )
        for file in _environment_files(words[: at - 1]):
            why = "What it sets is not in the text."
            self._say("environment-file", f"variables come from elsewhere: {file[:80]}", why, Severity.NOTE)
        self.found.commands.append(command)
        self.open = command

    def _fragment(self, words: list[Word]) -> None:
        """Flags at the beginning of a line: the rest of the command above whose backslash was lost, or a piece of a command."""
        if self.open is None:
            self.open = RawCommand("", [], words[0].line, has_program=False, env=dict(self.exports))
            self.found.commands.append(self.open)
        elif self.comment:
            message = f"a comment on line {self.comment} stands inside a continued command"
            self._say("comment-in-command", message, "A shell ends the command there; what follows was read as part of it all the same.")
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
                inner.exports = self._environment([outer for outer in statement.words if not PROGRAM.search(outer.text)])
                found = inner.read(word.text, word.line)
                self.found.commands += found.commands
                for finding in found.findings:
                    self._say(finding.rule, finding.message, finding.why)

    def _environment(self, words: Iterable[RawWord]) -> dict[str, str]:
        """What is exported, less what got a value that is not in the text since, and what stands before the program."""
        own = prefix_environment(words, self.variables)
        return {name: text for name, text in {**self.exports, **own}.items() if name not in self.variables.open}

    def _unexported(self) -> None:
        plain = {name: word.text for name, word in self.variables.plain.items() if ENV_NAMES.fullmatch(name)}
        if any(command.has_program for command in self.found.commands):
            for name in plain:
                self._say("not-exported", f"{name} is set but not exported", "The server does not see it; put export before it.")
        else:
            self.exports = {**plain, **self.exports}
        self.found.take((), {}, open_variables(self.variables.open))
        self.found.env = {name: text for name, text in self.exports.items() if name not in self.variables.open}


def _environment_files(words: Iterable[Word]) -> Iterator[str]:
    """--env-file of a container's command line."""
    before = ""
    for word in words:
        if before == "--env-file" or word.text.startswith("--env-file="):
            yield f"{before} {word.text}".strip() if before == "--env-file" else word.text
        before = word.text


def prefix_environment(words: Iterable[RawWord], variables: Variables) -> dict[str, str]:
    """NAME=value before the program, also behind -e, --env and --env=. One without a value in the text goes to the open variables."""
    found: dict[str, str] = {}

    def put(name: str, value: str, unresolved: bool) -> None:
        if ENV_NAMES.fullmatch(name) and unresolved:
            variables.open[name] = value
        elif ENV_NAMES.fullmatch(name):
            found[name] = value
            variables.open.pop(name, None)

    for word in words:
        text = word.text
        if text.startswith(("--env=", "-e=")):
            name, _, value = text.partition("=")[2].partition("=")
            put(name, value, "$" in value)
    for name, value_word in assignments(list(words), variables):
        put(name, value_word.text, value_word.unresolved)
    return found
