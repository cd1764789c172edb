"""Every settings field as an option, the same for each command that takes settings."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from kvcanary.cli.exit_codes import BAD_INPUT
from kvcanary.config.findings import Finding
from kvcanary.config.presets import find_preset
from kvcanary.config.settings import FIELDS, FieldSpec, Settings, format_field, read_flat
from kvcanary.errors import ConfigError
from kvcanary.escape import visible
from kvcanary.units import format_bytes

SETTINGS_FILE_LIMIT_BYTES = 1 << 20
VERDICT_STYLES = {"pass": "bold green", "fail": "bold red", "partial": "bold yellow", "not run": "bold yellow"}

Home = Annotated[Path | None, typer.Option(help="Data folder. Default: KVCANARY_HOME, else the user's data folder.")]
HomeToKeep = Annotated[Path | None, typer.Option(help="Data folder for --keep. Default: KVCANARY_HOME, else the user's data folder.")]
JsonBeside = Annotated[
    str | None, typer.Option("--json", metavar="-|FILE", help="Write the result as JSON to FILE as well, or to standard output (-) alone.")
]
JsonTarget = Annotated[
    str | None, typer.Option("--json", metavar="-|FILE", help="Write one JSON document to standard output (-) or a file, nothing else.")
]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option per settings field, --settings FILE and --from NAME; it receives `given`, the flat texts.

    Precedence: configuration by name, then file, then options.
    """

    @functools.wraps(command)
    def wrapped(*, settings_file: Path | None, start_from: str | None, **options: Any) -> None:
        own = {name: value for name, value in options.items() if name not in FIELDS}
        typed = {name: value for name, value in options.items() if name in FIELDS and value is not None}
        try:
            given = {**(_preset(start_from) if start_from else {}), **(read_settings_file(settings_file) if settings_file else {}), **typed}
        except ConfigError as error:
            fail(str(error))
        command(given=given, **own)

    own_parameters = [parameter for parameter in inspect.signature(command, eval_str=True).parameters.values() if parameter.name != "given"]
    shared = [_shared("settings_file", Path, "--settings", "JSON file with settings fields; unknown fields are refused.", "FILE")]
    shared.append(_shared("start_from", str, "--from", "Start from a real configuration; a wrong name lists them all.", "NAME"))
    fields = [_field(spec) for spec in FIELDS.values()]
    everything = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own_parameters, *shared, *fields)]
    vars(wrapped)["__signature__"] = inspect.Signature(everything)
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in everything}
    return wrapped


def read_settings(given: Mapping[str, Any]) -> tuple[Settings, list[Finding]]:
    """Settings with a finding per unreadable field."""
    return read_flat(given)


def fail(message: str) -> NoReturn:
    """Say what is wrong on standard error and end with the exit code of bad input."""
    typer.secho(f"error: {visible(message)}", err=True, fg=typer.colors.RED)
    raise typer.Exit(BAD_INPUT)


def wide_console() -> Console:
    """Standard output as wide as the terminal, and wide enough for every table where it is a file or a pipe."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=200)


def write_document(document: dict[str, Any], target: str) -> None:
    """One JSON document on standard output ('-') or in a file."""
    text = json.dumps(document, indent=2, allow_nan=False)
    if target == "-":
        typer.echo(text)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"--json {target} cannot be written: {error.strerror}; give the path of a file in a folder that exists")


def _preset(name: str) -> dict[str, Any]:
    return dict(find_preset(name).settings)


def read_settings_file(path: Path) -> dict[str, Any]:
    """Flat settings of a JSON file, or of the settings inside a document that kvcanary wrote."""
    try:
        document = json.loads(read_file(path, SETTINGS_FILE_LIMIT_BYTES, "a settings file"))
    except ConfigError as error:
        raise ConfigError(f"--settings {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--settings {path}: not JSON: {str(error)[:100]}") from None
    if isinstance(document, dict) and str(document.get("schema", "")).startswith("kvcanary."):
        spec = document.get("spec")
        document = document.get("settings", spec.get("settings") if isinstance(spec, dict) else None)
    if not isinstance(document, dict):
        raise ConfigError(f"--settings {path}: must be a JSON object of settings fields")
    return document


def read_file(path: Path, limit_bytes: int, what: str) -> str:
    """Text of a file of at most so many bytes, read no further than that; ConfigError names the path."""
    try:
        with path.open("rb") as stream:
            data = stream.read(limit_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(data) > limit_bytes:
        raise ConfigError(f"{path}: larger than {format_bytes(limit_bytes)}, so it is not {what}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text, so it is not {what}") from None


def _shared(name: str, kind: type, flag: str, help_text: str, metavar: str) -> inspect.Parameter:
    option = typer.Option(flag, help=help_text, metavar=metavar, rich_help_panel="Where settings come from")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def _field(spec: FieldSpec) -> inspect.Parameter:
    default = format_field(spec.name, spec.default) or "none"
    flag = f" SGLang: {spec.flag}." if spec.flag else ""
    choices = f" One of {', '.join(spec.choices)}." if spec.choices else ""
    option = typer.Option(
        f"--{spec.name.replace('_', '-')}",
        help=f"{spec.help}{choices}{flag} Default: {default}.",
        metavar=spec.kind.upper(),
        rich_help_panel=spec.group.capitalize(),
        show_default=False,
    )
    return inspect.Parameter(spec.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option])
