"""One way in for any text: recognise what was pasted, several pieces at once, and say everything that it states.

Nothing that is read is run or sent. The only error is ImportTextError, with one sentence.
"""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvcanary.config.findings import worst_first
from kvcanary.errors import ImportTextError
from kvcanary.importers import fields, json_documents, sglang_fields, vllm_fields
from kvcanary.importers.flags import distinct, note
from kvcanary.importers.launch_command import CommandReading, read_commands
from kvcanary.importers.log_reading import read_log
from kvcanary.importers.result import Command, Conflict, FieldValue, ImportKind, ImportResult, Rank, UnknownFlag
from kvcanary.importers.secrets import redact
from kvcanary.units import format_bytes

MAX_BYTES = 64 << 20
MAX_TEXT_LINE = 1 << 20
_LOG_LINE = re.compile(
    r"^.{0,120}?(?:\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[^\n]{0,60}\]|^\[\d\d:\d\d:\d\d[^\]\n]{0,40}\]|server_args=|"
    r"\b(?:INFO|WARNING|ERROR|DEBUG) +\d\d-\d\d \d\d:\d\d:\d\d|\w*(?:Error|Exception): )|^\s*\[[A-Z][A-Z_]*\d+(?: [A-Z_]+\d+)*\] |"
    r"^Possible solutions|^\s*(?:max_total_num_tokens=|KV Cache is allocated|install_canary|attach_canary|"
    r"\{'model_path': |ServerArgs\(model_path=(?=.*=None))"
)
_COMMAND_WORDS = re.compile(
    r"--?[A-Za-z]|launch_server|sglang serve|vllm|[A-Za-z][\w-]{0,60}:\s|\b(?:Engine|ServerArgs|LLM|EngineArgs)\(|SGLANG_KV_CANARY"
)
# A list or an object, and not the time in brackets that a log line begins with.
_JSON_START = re.compile(r"\{|\[\s*(?:[\[{\"\]]|-?\d+(?:\.\d+)?\s*[,\]]|true|false|null|$)")
_BINARY = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_PROGRAM_WORDS = ("launch_server", "sglang serve", "vllm serve", "vllm.entrypoints")
_PROGRAM_WORDS_NUL = tuple(word.replace(" ", "\0") for word in _PROGRAM_WORDS)
# Scripts and manifests are shorter; of a longer text only what stands around a program is read as commands.
_COMMAND_CHARS = 1 << 17
_AROUND_CHARS, _MOST_WINDOWS, _HEAD_CHARS = 1 << 14, 6, 400
_PROGRAM_LINE = re.compile(r"launch_server|sglang serve|vllm serve|vllm\.entrypoints|docker run")


def read_bytes(data: bytes, name: str = "upload") -> ImportResult:
    """Read a file of any encoding that operators have; ImportTextError says in one sentence why it cannot be read."""
    if len(data) > MAX_BYTES:
        raise ImportTextError(f"{name} is longer than {format_bytes(MAX_BYTES)}; give the start of the log, such as its first 20 000 lines")
    return read_text(_decode(data, name), name)


def _decode(data: bytes, name: str) -> str:
    for mark, encoding in ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
                           (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):  # fmt: skip
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    head = data[:4096]
    if len(head) >= 4 and head[1::2].count(0) > 0.9 * len(head[1::2]) and head[::2].count(0) == 0:
        return data.decode("utf-16-le", errors="replace")
    if b"\0" in head and (words := _process_words(data)) is not None:
        return words
    if b"\0" in head:
        raise ImportTextError(f"{name} is binary (it holds NUL bytes); give text: a command, a log, JSON or an error message")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        # A log may hold bytes of several programs; Latin-1 reads each of them as something, and what we look for is ASCII.
        return data.decode("latin-1")


def _process_words(data: bytes) -> str | None:
    """The command of /proc/PID/cmdline, whose words end in NUL; None for other binary data."""
    text = data.decode("utf-8", errors="replace") if len(data) <= _COMMAND_CHARS else ""
    words = text.removesuffix("\n").removesuffix("\0").split("\0")
    return shlex.join(words) if any(word in text for word in _PROGRAM_WORDS_NUL) and not _BINARY.search("".join(words)) else None


def read_text(text: str, name: str = "paste") -> ImportResult:
    """Recognise and read a text: commands, logs, JSON, errors, also several of them in one paste."""
    if len(text) > MAX_BYTES:
        raise ImportTextError(f"{name} is longer than {MAX_BYTES} characters; give the start of the log, such as its first 20 000 lines")
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise ImportTextError(f"{name} is empty; paste a launch command, a start-up log, server_info, config.json or an error message")
    _refuse_binary(text, name)
    parts, rest = _documents(text, name)
    if rest.strip():
        parts += read_log(rest, name)
        parts += _commands(rest, name)
    parts = [part for part in parts if _says_something(part)]
    if not parts:
        raise ImportTextError(_unrecognised(text, name))
    return merge(parts, name=name)


def _refuse_binary(text: str, name: str) -> None:
    head = text[: 1 << 16]
    if "\0" in text[: 1 << 20]:
        raise ImportTextError(f"{name} is binary (it holds NUL characters); give text: a command, a log, JSON or an error message")
    if len(_BINARY.findall(head)) > max(8, len(head) // 20):
        raise ImportTextError(f"{name} is binary (control characters everywhere); give text: a command, a log, JSON or an error message")


def _unrecognised(text: str, name: str) -> str:
    stripped = text.lstrip()
    if _JSON_START.match(stripped):
        problem = json_documents.problem(stripped)
        if problem:
            return f"{name} begins like JSON but {problem}"
    shown = " ".join(redact(stripped[:400]).split())[:60]
    return f"{name} holds nothing that is known: no launch command, log line, server_info, config.json or error message; it begins with {shown!r}"


def _documents(text: str, name: str) -> tuple[list[ImportResult], str]:
    """JSON documents of known kinds, and the text without them, line by line as it was."""
    if "{" not in text or len(text) > json_documents.MAX_DOCUMENT_CHARS:
        return [], text
    known: list[tuple[Mapping[str, Any], ImportKind]] = []
    pieces: list[str] = []
    at = 0
    lead = len(text) - len(text.lstrip())
    for start, end, value in json_documents.documents(text[lead:]):
        kind = json_documents.kind_of(value)
        if kind is not None:
            known.append((value, kind))
            pieces += [text[at : start + lead], "\n" * text.count("\n", start + lead, end + lead)]
            at = end + lead
    pieces.append(text[at:])
    return [json_documents.read_document(value, kind, name) for value, kind in known], "".join(pieces)


def _commands(text: str, name: str) -> list[ImportResult]:
    shell = _without_log_lines(text)
    if not _COMMAND_WORDS.search(shell):
        return []
    reading = read_commands(redact(shell))
    if not reading.commands and not reading.env:
        return []
    found = fields.FieldSet()
    first = reading.commands[0] if reading.commands else None
    env = {**reading.env, **(first.env if first else {})}
    conflicts: list[Conflict] = []
    findings = list(reading.findings)
    if first is not None:
        _command_fields(found, first)
        conflicts = [_undecided(key, values) for key, values in first.reading.candidates.items()]
        findings += [
            note("conflicting-values", f"conflicting values: {_flag(key)}", entry.reason) for entry in conflicts for key in [entry.name]
        ]
    sglang_fields.environment_fields(found, env)
    findings += [finding for command in reading.commands for finding in command.reading.findings]
    settled, more = found.settle()
    return [
        ImportResult(
            kind=ImportKind.COMMAND,
            name=name,
            engine=first.engine if first else "sglang",
            arguments=dict(first.reading.arguments) if first else {},
            env=env,
            commands=tuple(
                Command(engine=entry.engine, arguments=entry.reading.arguments, env=entry.env, line=entry.line)
                for entry in reading.commands
            ),
            fields=settled,
            findings=tuple(distinct(findings + found.findings)),
            unknown=_unknown(reading.commands),
            unresolved=tuple(dict.fromkeys(text for entry in reading.commands for text in entry.reading.unresolved)),
            conflicts=(*conflicts, *more),
        )
    ]


def _flag(argument: str) -> str:
    return "--" + argument.replace("_", "-")


def _undecided(name: str, values: Sequence[Any]) -> Conflict:
    candidates = tuple(FieldValue(value=value, source=_flag(name), rank=Rank.COMMAND) for value in values)
    return Conflict(name=name, candidates=candidates, chosen=None, reason="the text gives several values and nothing decides between them")


def _command_fields(found: fields.FieldSet, command: CommandReading) -> None:
    places = command.reading.places
    read = vllm_fields.vllm_arguments if command.engine == "vllm" else sglang_fields.sglang_arguments
    read(found, command.reading.arguments, lambda name: places.get(name, _flag(name)), Rank.COMMAND)


def _unknown(commands: Iterable[CommandReading]) -> tuple[UnknownFlag, ...]:
    return tuple({entry.flag: entry for command in reversed(list(commands)) for entry in command.reading.unknown}.values())


def _without_log_lines(text: str) -> str:
    """The text with its log lines emptied; of a long one only the beginning and what stands around a program."""
    kept: list[str] = []
    message = False
    for start, end in _command_spans(text):
        for line in text[start:end].split("\n"):
            head = line[:_HEAD_CHARS]
            program = _PROGRAM_LINE.search(line) is not None
            log_line = bool(line) and not program and _LOG_LINE.match(head) is not None
            # A message that names flags may be broken so that one of them begins a line.
            goes_on = message and not program and head.lstrip().startswith(("--", "(")) and not line.endswith("\\")
            message = log_line or goes_on or (message and bool(line) and not program)
            kept.append("" if log_line or goes_on or len(line) > MAX_TEXT_LINE else line)
    return "\n".join(kept)


def _command_spans(text: str) -> list[tuple[int, int]]:
    """Stretches of whole lines that may hold a command: all of a short text."""
    if len(text) <= _COMMAND_CHARS:
        return [(0, len(text))]
    windows = [(0, _AROUND_CHARS)]
    for word in _PROGRAM_WORDS:
        at = text.find(word)
        while at >= 0 and len(windows) < _MOST_WINDOWS:
            windows.append((max(0, at - _AROUND_CHARS // 4), at + _AROUND_CHARS))
            at = text.find(word, at + _AROUND_CHARS)
    spans: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        start = text.rfind("\n", 0, start) + 1 if start else 0
        end = text.find("\n", end) if 0 <= text.find("\n", end) <= end + _AROUND_CHARS else min(len(text), end)
        if spans and start <= spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _says_something(part: ImportResult) -> bool:
    return bool(part.arguments or part.commands or part.env or part.observed or part.fields or part.explanations)


_KIND_ORDER = (ImportKind.COMMAND, ImportKind.LOG, ImportKind.SERVER_INFO, ImportKind.HF_CONFIG)


def merge(results: Sequence[ImportResult], *, name: str = "") -> ImportResult:
    """Several readings as one: install line before ready line and printed arguments before command; what differs is listed as a conflict."""
    if not results:
        raise ImportTextError("nothing to merge")
    if len(results) == 1 and (not name or results[0].name == name):
        single = results[0]
        return replace(single, parts=single.parts or (single.kind,))
    results = _with_ranks(results)
    found = fields.merge_fields([(result.fields, result.conflicts) for result in results])
    settled, conflicts = found.settle()
    undecided = [entry for result in results for entry in result.conflicts if entry.chosen is None]
    kinds = tuple(dict.fromkeys(kind for result in results for kind in (result.parts or (result.kind,))))
    commands = [result for result in results if result.arguments or result.commands]
    first = commands[0] if commands else None
    engines = list(dict.fromkeys(result.engine for result in ([first] if first else []) + list(results) if result.engine))
    return ImportResult(
        kind=kinds[0]
        if len(kinds) == 1
        else ImportKind.COMMAND
        if first and set(kinds) <= {ImportKind.COMMAND, ImportKind.LOG}
        else ImportKind.MIXED,
        name=name or ", ".join(dict.fromkeys(result.name for result in results)),
        engine=engines[0] if engines else "",
        arguments=first.arguments if first else {},
        env={key: value for result in reversed(results) for key, value in result.env.items()},
        commands=tuple(command for result in results for command in result.commands),
        observed={key: value for result in reversed(results) for key, value in result.observed.items()},
        fields=settled,
        findings=tuple(worst_first({finding.message: finding for result in results for finding in result.findings}.values())),
        explanations=tuple({entry.label: entry for result in reversed(results) for entry in result.explanations}.values()),
        unknown=tuple({entry.flag: entry for result in results for entry in result.unknown}.values()),
        unresolved=tuple(dict.fromkeys(text for result in results for text in result.unresolved)),
        conflicts=(*undecided, *conflicts),
        parts=kinds,
    )


def _with_ranks(results: Sequence[ImportResult]) -> list[ImportResult]:
    """A config.json read again for the ranks and the KV dtype that another piece states."""
    values = {name: entry.value for result in results if result.kind is not ImportKind.HF_CONFIG for name, entry in result.fields.items()}
    tp_size, kv_dtype = values.get("tp_size", 1), values.get("kv_dtype", "auto")
    if values.get("enable_dp_attention") and values.get("dp_size"):
        tp_size = max(1, tp_size // values["dp_size"])
    if (tp_size, kv_dtype) == (1, "auto") or tp_size < 1:
        return list(results)
    out: list[ImportResult] = []
    for result in results:
        config = result.observed.get("hf_config") if result.kind is ImportKind.HF_CONFIG else None
        if isinstance(config, Mapping):
            result = json_documents.read_document(config, ImportKind.HF_CONFIG, result.name, tp_size=tp_size, kv_dtype=kv_dtype)
        out.append(result)
    return out
