"""The command line: every page's work without a browser. One module per command."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Command -> module here, which holds a function `command`. A module is loaded when its command is called or all are listed, so that
# `kvcanary plan` does not wait for pandas and `kvcanary inspect` does not wait for torch.
COMMANDS = {
    "plan": "plan",
    "import": "import_text",
    "bench": "bench",
    "campaign": "campaign",
    "inspect": "inspect_log",
    "watch": "watch",
}


class LazyGroup(TyperGroup):
    """Commands by name, loaded on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All commands, in the order of an operator's day."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load one command; None for an unknown name, which the caller reports."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"kvcanary.cli.{COMMANDS[cmd_name]}")
        single = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
        single.command(cmd_name)(module.command)
        command = typer.main.get_command(single)
        assert isinstance(command, TyperCommand)
        return command


app = typer.Typer(
    name="kvcanary",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Size an SGLang KV-cache pool, prove that its canary works on this machine, and read what a corruption report means.",
    epilog="Exit codes: 0 pass · 1 fail or corruption found · 2 bad input · 3 partial · 4 not run.",
)


@app.callback()
def _root() -> None:
    """Makes the application a group even with one command."""


def main() -> None:
    """Entry point of the console script and of python -m kvcanary."""
    app()
