"""The command line: every page's work without a browser. One module per command, or per group of them."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Command -> module here, which holds a function `command` or a Typer application `group`, and what the list of commands says of it. A
# module is loaded when its command is called, so that `kvcanary --help` waits for nothing and `kvcanary plan` does not wait for torch.
COMMANDS = {
    "plan": ("plan", "Check settings against every rule at once; compute launch capacities and memory."),
    "bench": ("bench", "Prove the detector on this machine, then time stamp and verify beside their bounds."),
    "campaign": ("campaign", "Damage a simulated server on purpose and show what each canary mode sees of it."),
    "import": ("import_text", "Read a launch command, log, server_info, config.json or error message into settings."),
    "inspect": ("inspect_log", "Read server logs and say what the violations mean."),
    "watch": ("watch", "Follow server logs and print violations as they come; optionally serve metrics."),
    "sweep": ("sweep", "Run every point of a grid or a list, each once, on this host or on a Ray cluster."),
    "runs": ("runs", "List stored runs; show, annotate, delete, restore, purge, export and retain them."),
    "compare": ("compare", "Compare benchmarks or campaigns with intervals; with --fail-below, judge the second for a CI."),
    "doctor": ("doctor", "Say which backends can run here, and run the gate on each of them."),
}


class LazyGroup(TyperGroup):
    """Commands by name, loaded on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All commands, in the order of an operator's day."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command with its summary only, for the list; None for an unknown name, which the caller reports."""
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is about to be called, loaded."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, _load(name) if name in COMMANDS else command, rest


def _load(name: str) -> TyperCommand | TyperGroup:
    module = importlib.import_module(f"kvcanary.cli.{COMMANDS[name][0]}")
    if hasattr(module, "group"):
        group = typer.main.get_command(module.group)
        assert isinstance(group, TyperGroup)
        return group
    single = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    single.command(name)(module.command)
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
