"""A start-up log or an error message of either engine as one reading: what it states, what it means, and the fields it gives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvcanary.config.findings import Finding, Severity
from kvcanary.importers import error_messages, sglang_fields, vllm_fields
from kvcanary.importers.error_entries import shown
from kvcanary.importers.fields import FieldSet
from kvcanary.importers.flags import note
from kvcanary.importers.log_records import READ_ALL_CHARS, Record, may_hold_records, read_records
from kvcanary.importers.result import ErrorExplanation, ImportKind, ImportResult
from kvcanary.importers.secrets import redact
from kvcanary.importers.server_log import PRINTED_ARGUMENTS, read_server_log
from kvcanary.importers.start_progress import StartProgress
from kvcanary.importers.vllm_log import read_vllm_log

_VLLM_WORDS = re.compile(
    r"vLLM|^\W*(?:\([^)]{0,80}\) )?(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d|GPU KV cache size|# (?:GPU|cuda|CUDA) blocks|EngineCore|"
    r"Available KV cache memory|gpu_memory_utilization|Maximum concurrency for|No available memory for the cache blocks|max_model_len`|"
    r"(?:Model loading|model weights) took|model weights take|Initial free memory"
)
# Of more servers only these are looked at for an error.
MOST_SERVERS = 16
_OF_A_RANK = re.compile(r"Load weight end|KV [Cc]ache is allocated|Memory pool end|GPU KV cache size|[Aa]vailable KV cache memory")
_EXCEPTION = re.compile(r"\s*(?:ERROR \d\d-\d\d [\d:]+ (?:\[[\w.:]+\] )?)?(?:\w+\.){0,8}\w*(?:Error|Exception): \S")
_SECOND_HAND = re.compile(r"See root cause above|initialization failed\b")
_SERVED = re.compile(r"fired up and ready|startup complete|Decode batch")
_RANKS = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d((?: [A-Z][A-Z_]*\d+)+)\]")


def read_log(text: str, name: str) -> list[ImportResult]:
    """One reading of all log lines and errors of a text; none where it says nothing about capacity."""
    if not may_hold_records(text) and not error_messages.TELLING.search(text[:READ_ALL_CHARS]):
        return []
    records = [_redacted(record) for record in read_records(text)]
    if not records:
        return []
    engine = "vllm" if any(_VLLM_WORDS.search(record.text) for record in records[:2000]) and not _speaks_sglang(records) else "sglang"
    records, servers = _servers(records, engine)
    earlier, records = _starts(records)
    explanations, stated = error_messages.explain(records, engine)
    ranks = {match.strip() for match in _RANKS.findall(text[: 8 << 20])} if engine == "sglang" else set()
    observed, lines = _observe(records, engine, sorted(ranks))
    if not _log_says_something(observed) and not stated and not explanations:
        return []
    observed = {**observed, **{key: value for key, value in stated.items() if observed.get(key) is None}}
    found = FieldSet()
    _errors(observed, explanations)
    (vllm_fields.vllm_log if engine == "vllm" else sglang_fields.sglang_log)(found, observed, lines)
    settled, conflicts = found.settle()
    findings = [
        *found.findings,
        *_log_findings(observed, records),
        *([] if explanations else _unexplained(records)),
        *_left_out(servers, earlier, engine),
    ]
    only_error = bool(explanations) and not _log_says_something({**observed, **dict.fromkeys(stated)})
    return [
        ImportResult(
            kind=ImportKind.ERROR if only_error else ImportKind.LOG, name=name, engine=engine, observed=observed, fields=settled,
            findings=tuple(findings), explanations=tuple(explanations), conflicts=tuple(conflicts),
        )
    ]  # fmt: skip


def _servers(records: list[Record], engine: str) -> tuple[list[Record], list[str]]:
    """The records of one server, the first whose log holds an error or else the first, and the names of all where there are several.

    A source is a server of its own where a rank of it has a pool that a rank of that name has at another source too; otherwise the sources
    are nodes of one server.
    """
    ranks: dict[str, set[str]] = {}
    for record in records:
        if record.source and _OF_A_RANK.search(record.text[:400]):
            ranks.setdefault(record.source, set()).add(record.rank or record.process.partition(" ")[0])
    apart = len(ranks) > 1 and sum(map(len, ranks.values())) > len(set[str]().union(*ranks.values()))
    if not apart:
        return records, []
    names = list(ranks)
    each = {name: [record for record in records if record.source == name or record.source not in ranks] for name in names[:MOST_SERVERS]}
    chosen = next((name for name in each if error_messages.explain(each[name], engine)[0]), names[0])
    return each[chosen], [chosen, *(name for name in names if name != chosen)]


def _starts(records: list[Record]) -> tuple[list[Record], list[Record]]:
    """The records of the starts before the last one, and the others: what a start had allocated says nothing about the next."""
    progress = StartProgress()
    for record in records:
        progress.see(record)
    at = next((index for index, record in enumerate(records) if record.line >= progress.first_line), len(records))
    return records[:at], records[at:]


def _left_out(servers: Sequence[str], earlier: Sequence[Record], engine: str) -> list[Finding]:
    found: list[Finding] = []
    if servers:
        why = f"Only {servers[0]} is read. Give the lines of another one alone to read that."
        found.append(note("several-servers", f"several servers in the text: {', '.join(servers)}"[:300], why))
    if said := [entry.message for entry in error_messages.explain(earlier, engine)[0]]:
        why = f"It said: {'; '.join(said)}. Only the last start is read."
        return [*found, note("earlier-start", "an earlier start in the text failed", why)]
    if _log_says_something(_observe(earlier, engine, ())[0]):
        why = "Only the last start is read."
        found.append(note("earlier-start", "an earlier start in the text was left out", why, severity=Severity.NOTE))
    return found


def _observe(records: Sequence[Record], engine: str, ranks: Sequence[str]) -> tuple[dict[str, Any], dict[str, int]]:
    return read_vllm_log(records) if engine == "vllm" else read_server_log(records, ranks)


def _redacted(record: Record) -> Record:
    text = redact(record.text)
    return record if text == record.text else replace(record, text=text, spaced=redact(record.spaced))


def _speaks_sglang(records: Sequence[Record]) -> bool:
    return any(
        PRINTED_ARGUMENTS.search(record.text) or "max_total_num_tokens=" in record.text or "KV Cache is allocated" in record.text
        for record in records
    )


_NO_FACTS = ("ranks", "ready", "running_req", "token", "token_usage", "queue_req", "engine_core", "workers", "error", "errors")


def _log_says_something(observed: Mapping[str, Any]) -> bool:
    return any(value is not None for key, value in observed.items() if key not in _NO_FACTS) or "token" in observed


def _errors(observed: dict[str, Any], explanations: Sequence[ErrorExplanation]) -> None:
    labels = [entry.label for entry in explanations]
    if len(labels) == 1:
        observed["error"] = labels[0]
    if labels:
        observed["errors"] = labels
    if labels and "ready" in observed and observed["ready"] is None and observed.get("max_total_num_tokens") is None:
        observed["ready"] = False


def _unexplained(records: Sequence[Record]) -> list[Finding]:
    """The error that ended a start and is none of those that are explained."""
    errors = [record for record in records if _EXCEPTION.match(record.text) and not _SECOND_HAND.search(record.text)]
    served = any(_SERVED.search(record.text) for record in records)
    if not errors or (served and not any("hit an exception" in record.text for record in records)):
        return []
    why = "It is none of the messages about KV memory or the canary, and what the log states was read all the same."
    return [note("unexplained-error", f"the log holds an error on line {errors[-1].line}: {shown(errors[-1].text).rstrip('.')}", why)]


def _log_findings(observed: Mapping[str, Any], records: Sequence[Record]) -> list[Finding]:
    found: list[Finding] = []
    if "max_total_num_tokens_values" in observed:
        values = ", ".join(map(str, observed["max_total_num_tokens_values"]))
        why = "Two values of one rank are two servers or two starts. Paste one of them to use its pool."
        found.append(note("several-servers", f"several pool sizes: {values}", why))
    if records[-1].cut:
        why = "The text ends inside a line; a number it ends in may be cut, so it was not read."
        found.append(note("cut", "the log is cut inside its last line", why))
    no_ready_line = observed.get("max_total_num_tokens", 0) is None and "max_total_num_tokens_values" not in observed
    if observed.get("kv_tokens") is not None and no_ready_line and "error" not in observed:
        found.append(
            note("no-ready-line", "no ready line", "The pool size is that of the allocation line; the server may still have changed it.")
        )
    return found
