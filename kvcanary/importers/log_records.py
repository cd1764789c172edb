"""A log as records: one message each, freed from wrappers and put together where a runtime, a terminal or a chat window broke it.

Most lines of a long log state nothing about capacity, so in a long text only the lines with a telling word, and what continues them, are
looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kvcanary.importers.log_lines import LogLine, strip_colours, unwrap

READ_ALL_CHARS = 1 << 19
MAX_LINE_CHARS = 1 << 18
MAX_CONTINUATIONS = 40
# Ranks, pools and restarts repeat a line; nobody prints one this often and means something else each time.
_MOST_OF_A_KIND = 1000
_LEVEL_BEFORE_TIME = re.compile(r"(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|DEFAULT)\s+(?=\d{4}-\d\d-\d\dT)")
_COMMENT = re.compile(r"#+\s++(?=[(\[]|INFO|WARN|ERROR|\d{4}-)")
_RANK = r"[A-Z][A-Z_]*\d+"
_PREFIX = re.compile(
    rf"\[?(?:\d{{4}}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(?:[.,]\d+)?(?P<rank>(?: {_RANK})*)\] ?|\[(?P<only>{_RANK}(?: {_RANK})*)\] "
)
_EMBEDDED = re.compile(rf"(?=\[(?:\d{{4}}-\d\d-\d\d )?\d\d:\d\d:\d\d(?: {_RANK})*\] )")
_START = re.compile(
    r"\s*(?:[A-Za-z_.]*(?:Error|Exception)\b|Traceback|File \"|KV [Cc]ache|max_total_num_tokens=|self\.max_total|server_args=|ServerArgs\(|Captur|"
    r"Load weight|"
    r"Memory (?:pool|prof)|install_canary|attach_canary|Mamba |INFO|WARNING|ERROR|DEBUG|\(\w+ pid=|\[|---|#|During handling|Possible solutions|"
    r"\d+\. |Use sliding|SWAKVPool|DSV4|DSv4|GPU KV|Available KV|Maximum conc|Tree cache|Post-capture|Killed|kv[-_]canary|\{|"
    r"Decode batch|Prefill batch)"
)
# Numbers that no release prints at the end of their line: a text that stops behind one was cut there, perhaps inside it.
_NEVER_LAST = re.compile(
    r"(?:max_total_num_tokens=|chunked_prefill_size=|max_prefill_tokens=|max_running_requests=|available_gpu_mem=|mem=|usage=|#tokens: |size: )"
    r"-?[\d.]+$"
)
_LAST_NUMBER = re.compile(r"-?[\d.,_]*\d$")
_LONG_NUMBER = re.compile(r"\d{19,}")
_PROCESS = re.compile(r"\((\w+ pid=\d+)[,)]")

_BUSY = "Decode batch"
# Parts of words, so that few of them find every line that a reader or an explanation knows.
TELLING = (
    "avail", "KV ", "max_total", "install_canary", "attach_canary", "kv-canary:", "server_args=", "ServerArgs(", "'model_path': ", "emory",
    "amba ", "aptur", "Tree cache", "pool sizes", "mem usage", "Input length", "Error: ", "ready to roll", "blocks:", "concurrency for", " took ",
    "LLM engine", "Leak Detected", "hit an exception",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One message.

    text has broken lines glued, spaced has them joined by blanks. rank is what the server's prefix says, '' for a prefix without ranks, None
    without a prefix. process is vLLM's '(EngineCore_DP0 pid=311)'. source is the service, pod, host or file that what collected the log names.
    cut: the text ends inside a number of this record.
    """

    text: str
    spaced: str
    line: int
    rank: str | None
    process: str = ""
    source: str = ""
    cut: bool = False


@dataclass(slots=True)
class _Open:
    lines: list[str]
    line: int
    rank: str | None
    process: str
    source: str
    partial: bool


def may_hold_records(text: str) -> bool:
    """Whether any telling word occurs: most texts without one lack a letter of each, and a letter is found much faster than a word."""
    return any(all(char in text for char in word) and word in text for word in (*TELLING, _BUSY))


def read_records(text: str) -> Iterator[Record]:
    """Records in order. Never raises on any text; work is linear in its length."""
    open_record: _Open | None = None
    number = 0
    for number, raw in _lines(text):
        for line, rank, wrapped, process in _messages(raw):
            record = open_record
            # A broken line goes on bare; what a runtime marked as partial goes on behind the runtime's own prefix.
            bare = not wrapped and rank is None and not _START.match(line.text)
            goes_on = record is not None and (bare or (record.partial and record.source == line.source))
            if record is not None and goes_on and len(record.lines) < MAX_CONTINUATIONS and len(record.lines[-1]) < MAX_LINE_CHARS:
                if record.partial:
                    # The runtime says that it cut the line here, perhaps inside a number.
                    record.lines[-1] += line.text
                else:
                    record.lines.append(line.text)
                record.partial = line.partial
                continue
            if record is not None:
                yield _close(record)
            open_record = _Open([line.text], number, rank, process, line.source, line.partial)
    if open_record is not None:
        # A text without a last line end may stop inside a number.
        yield _close(open_record, cut=not text.endswith(("\n", "\r")) and number == text.count("\n") + 1)


def _close(record: _Open, *, cut: bool = False) -> Record:
    glued, spaced = "".join(record.lines), " ".join(record.lines)
    cut = cut and _NEVER_LAST.search(glued[-80:]) is not None and (record.rank is not None or "=" in glued[:-40])
    if cut:
        glued, spaced = (joined[:-80] + _LAST_NUMBER.sub("", joined[-80:]) for joined in (glued, spaced))
    if _LONG_NUMBER.search(glued):
        # No engine prints such a number, hardly any field of the settings takes it, and the interpreter reads none of several thousand digits.
        glued, spaced = (_LONG_NUMBER.sub("#", joined) for joined in (glued, spaced))
    return Record(
        text=glued, spaced=spaced, line=record.line, rank=record.rank, process=record.process, source=record.source, cut=cut
    )  # fmt: skip


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Physical lines with their numbers: all of a short text; of a long one those with a telling word and what follows them."""
    if len(text) <= READ_ALL_CHARS:
        for number, line in enumerate(text.split("\n"), 1):
            yield number, line[:MAX_LINE_CHARS]
        return
    spans = _telling_spans(text)
    number, at = 1, 0
    for start, end in spans:
        number += text.count("\n", at, start)
        at = start
        for offset, line in enumerate(text[start:end].split("\n")):
            yield number + offset, line[:MAX_LINE_CHARS]


def _telling_spans(text: str) -> list[tuple[int, int]]:
    """Offsets of stretches of whole lines: each telling line and the few lines behind it."""
    starts: set[int] = set()
    for word in TELLING:
        at = text.find(word)
        found = 0
        while at >= 0 and found < _MOST_OF_A_KIND:
            starts.add(text.rfind("\n", 0, at) + 1)
            found += 1
            line_end = text.find("\n", at)
            at = text.find(word, line_end) if line_end >= 0 else -1
    if (last := text.rfind(_BUSY)) >= 0:
        starts.add(text.rfind("\n", 0, last) + 1)
    spans: list[tuple[int, int]] = []
    for start in sorted(starts):
        end = start
        for _ in range(6):
            end = text.find("\n", end)
            if end < 0:
                end = len(text)
                break
            end += 1
        end = end if end == len(text) else end - 1
        if spans and start <= spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _without(start: re.Pattern[str], text: str) -> str:
    match = start.match(text)
    return text[match.end() :] if match else text


def _messages(raw: str) -> Iterator[tuple[LogLine, str | None, bool, str]]:
    """Messages of one physical line: the line, its rank, whether a wrapper stood before it, and the process that printed it."""
    process = _PROCESS.search(raw[:200])
    name = process[1] if process else ""
    for piece in strip_colours(raw).rstrip("\r").split("\r"):
        plain = _without(_LEVEL_BEFORE_TIME, _without(_COMMENT, piece))
        for line in unwrap(plain):
            wrapped = bool(line.source or line.time) or line.text != plain.rstrip("\r\n")
            rank: str | None = line.rank if line.prefixed else None
            for index, text in enumerate(_EMBEDDED.split(line.text)):
                match = _PREFIX.match(text)
                if match:
                    rank = (match["only"] or match["rank"] or "").strip()
                    text = text[match.end() :]
                elif index:
                    rank = None
                if text.strip() or index == 0:
                    yield LogLine(text=text, source=line.source, partial=line.partial), rank, wrapped or index > 0, name
