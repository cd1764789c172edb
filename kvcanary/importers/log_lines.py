"""One log line freed from what stands around it: runtime wrappers, search output, colours, and the server's own prefix.

SGLang prints `[2026-09-14 10:00:11 TP0] text`, with `DP1 TP3 EP3` or no rank at all; continuation lines of a message have no prefix.
Around it stand whatever collected the log: compose, kubectl, a container runtime, JSON lines, journald, Ray, a CI, grep.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

# The server's own prefix: local time without zone, then rank words such as DP1 TP3 EP3 in the order printed.
SERVER_PREFIX = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)?((?: [A-Z]{2,}\d+)*)\] ?")

_COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_ISO_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"

# Tried in turn at the start of a line until none fits; bounded, so that no line takes quadratic time. Group `source` names who
# printed the line, `time` when it was collected, `mark` is the P (partial) or F (full) of a container runtime.
_WRAPPERS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<time>{_ISO_TIME}) (?:stdout|stderr) (?P<mark>[PF])(?: |$)",
        rf"(?P<time>{_ISO_TIME})\s",
        r"(?P<source>[A-Za-z0-9][\w.\-]*)\s*\|(?: |$)",
        r"\[(?:pod/)?(?P<source>[\w.\-]+/[\w.\-]+)\] ",
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<source>\S+) [\w.@/\-]+(?:\[\d+\])?: ",
        r"\((?:(?P<source>\w+) )?pid=\d+(?:, ip=[\w.:]+)?\) ",
        r"(?P<source>(?:[^\s:|\[\]{}()\"'.]{0,120}\.){1,12}[\w\-]{0,32}[A-Za-z][\w\-]{0,32})[:\-]\d+[:\-]",
        r"(?P<source>[^\s:|\[\]{}()\"']{1,255}\.(?:log|txt|out|err)(?:[.\-][\w.\-]{1,64})?):",
        r"\d+[:\-](?=\[)",
        r"##\[\w+\]",
        r"> ",
    )
)
# Nobody's log passes through more collectors; every wrapper that is taken off copies the line.
MAX_WRAPPERS = 16
_JSON_TEXT_KEYS = ("log", "message", "msg", "textPayload", "MESSAGE", "line", "text", "body")
_JSON_SOURCE_KEYS = ("pod_name", "pod", "container_name", "container", "service", "hostname", "host", "_HOSTNAME")
_JSON_NESTED_KEYS = ("kubernetes", "labels", "resource", "attributes", "_source", "jsonPayload")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """What one line says and who said it.

    text: the message without any prefix. source: compose service, pod, host or searched file, '' when the line does not tell.
    time: 'YYYY-MM-DD HH:MM:SS' as the server printed it (else the collector's), '' when unknown. rank: 'TP0', 'DP1 TP3', '' for none.
    prefixed: the server's own prefix was there. partial: the runtime cut the line here and its rest follows.
    """

    text: str
    source: str = ""
    time: str = ""
    rank: str = ""
    prefixed: bool = False
    partial: bool = False


def strip_colours(text: str) -> str:
    """The text without terminal colour and title sequences."""
    return _COLOURS.sub("", text) if "\x1b" in text else text


def unwrap(raw: str) -> Iterator[LogLine]:
    """The line or lines inside one raw line: usually one, several where a JSON record or a repr carries a whole message.

    Never raises: what is no known wrapper stays in the text.
    """
    line = LogLine(text=strip_colours(raw).rstrip("\r\n"))
    for _ in range(MAX_WRAPPERS):
        if line.text.startswith("{") and (inner := _from_json(line)) is not None:
            for part in inner.text.splitlines() or [""]:
                yield from unwrap_with(replace(inner, text=strip_colours(part)))
            return
        match = next((match for wrapper in _WRAPPERS if (match := wrapper.match(line.text))), None)
        if match is None:
            break
        line = _peel(line, match)
    yield _server_prefix(line)


def unwrap_with(outer: LogLine) -> Iterator[LogLine]:
    """Unwrap the text of a line whose collector already told source and time."""
    for line in unwrap(outer.text):
        yield replace(line, source=line.source or outer.source, time=line.time or outer.time)


def _peel(line: LogLine, match: re.Match[str]) -> LogLine:
    groups = match.groupdict()
    return replace(
        line,
        text=line.text[match.end() :],
        # The outermost name wins: a pod name says more than a file name inside it.
        source=line.source or groups.get("source") or "",
        time=line.time or (groups.get("time") or "")[:19].replace("T", " "),
        partial=line.partial or groups.get("mark") == "P",
    )


def _server_prefix(line: LogLine) -> LogLine:
    match = SERVER_PREFIX.match(line.text.lstrip()) if "[" in line.text[:80] else None
    if match is None:
        return line
    text = line.text.lstrip()[match.end() :]
    return replace(line, text=text, time=match[1], rank=match[2].strip(), prefixed=True)


def _from_json(line: LogLine) -> LogLine | None:
    try:
        record = json.loads(line.text)
    except (ValueError, RecursionError):  # a deeply nested value exhausts the decoder's stack
        return None
    if not isinstance(record, dict):
        return None
    nested = [value for key in _JSON_NESTED_KEYS if isinstance(value := record.get(key), dict)]
    text = next((text for part in (record, *nested) if (text := _first_text(part, _JSON_TEXT_KEYS)) is not None), None)
    if text is None:
        return None
    time = _first_text(record, ("time", "timestamp", "@timestamp", "ts")) or ""
    return replace(
        line,
        text=text,
        source=line.source or _json_source(record, depth=3),
        time=line.time or (time[:19].replace("T", " ") if re.match(_ISO_TIME, time) else ""),
        # A container runtime cuts long lines: a record without line end is continued by the next one.
        partial=line.partial or ("log" in record and "stream" in record and not text.endswith("\n")),
    )


def _first_text(record: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((value for key in keys if isinstance(value := record.get(key), str)), None)


def _json_source(record: dict[str, Any], depth: int) -> str:
    for key in _JSON_SOURCE_KEYS:
        value = record.get(key)
        if isinstance(value, str) and value:
            return value
    for key in _JSON_NESTED_KEYS:
        value = record.get(key)
        if isinstance(value, dict) and depth and (source := _json_source(value, depth - 1)):
            return source
    return ""
