"""The command line: every page's work without a browser. One module per command."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="kvcanary",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Size an SGLang KV-cache pool, prove that its canary works on this machine, and read what a corruption report means.",
    epilog="Exit codes: 0 pass · 1 fail or corruption found · 2 bad input · 3 partial · 4 not run.",
)


def main() -> None:
    """Entry point of the console script and of python -m kvcanary."""
    app()
