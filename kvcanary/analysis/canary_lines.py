"""What SGLang's canary prints, line by line: regular expressions and readers without state.

The order of fields in a record is frozen in SGLang; a record may be wrapped over several lines or cut anywhere, so it is read by a small
grammar that tells complete, open (the text ends inside) and broken apart.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import Enum

from kvcanary.analysis.violations import REASON_BITS, Record
from kvcanary.layout import LaunchTag

Scalar = int | float | bool | str | None
Values = dict[str, Scalar]

MARKER = "kv_canary violation:"
_TAG = r"(?:[A-Z][A-Z0-9_]*|unknown\(-?\d{1,19}\))"
_INT, _HASH = r"-?\d{1,19}", r"0x[0-9a-fA-F]{16}"
_OPEN_INT, _OPEN_HASH = r"-?\d{0,19}", r"(?:0(?:x[0-9a-fA-F]{0,15})?)?"
NUMBER_KEYS = ("slot_idx", "position", "stored_token", "expected_token")
HASH_KEYS = ("stored_chain_hash", "expected_aux")
_GRAMMAR = (
    ("launch_tag=", re.compile(_TAG), re.compile(r"(?:[A-Z][A-Z0-9_]*|u[a-z]*\(?-?\d*\)?)?")),
    ("fail_reason=", re.compile(r"[a-z0-9_+]+"), re.compile(r"[a-z0-9_+]*")),
    *((f"{key}=", re.compile(_INT), re.compile(_OPEN_INT)) for key in NUMBER_KEYS),
    *((f"{key}=", re.compile(_HASH), re.compile(_OPEN_HASH)) for key in HASH_KEYS),
)
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_SPACES = re.compile(r"\s+")
_KEY_START = re.compile("|".join(key for key, _, _ in _GRAMMAR))

# A whole message as the server writes it, for the fast path: one match instead of seven lines. The body has to repeat the record.
_BYTES_PREFIX = rb"(?:\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?P<ranks>(?: [A-Z]{2,}\d+)*)\] )"
FAST_MESSAGE = re.compile(
    _BYTES_PREFIX
    + rb"kv_canary violation: launch_tag=(?P<tag>[A-Z0-9_]+|unknown\(-?\d{1,19}\)) fail_reason=(?P<reason>[a-z0-9_+]+) slot_idx=(?P<slot>-?\d{1,18}) "
    rb"position=(?P<position>-?\d{1,18}) stored_token=(?P<token>-?\d{1,18}) expected_token=(?P<expected>-?\d{1,18}) "
    rb"stored_chain_hash=0x(?P<hash>[0-9a-f]{16}) expected_aux=0x(?P<aux>[0-9a-f]{16})\r?\n"
    rb"KV cache canary violation detected \(kernel_kind=(?P=tag), slot_idx=(?P=slot), position=(?P=position)\)\r?\n"
    rb"canary_kind: {7}[a-z0-9_()-]+\r?\n  fail_reasons: [a-z_ ]+\r?\n  (?:stored|actual): {3}token_id=(?P=token) {3}position=(?P=position) "
    rb"prev_hash=0x(?P=hash)\r?\n  expected: [^\n]*\n"
    rb"  total_violations=(?P<total>\d{1,18}) ring_overflow=(?P<overflow>True|False) step_when_pumped=(?P<step>\d{1,18})\r?\n"
)
FAST_SWEEP = re.compile(_BYTES_PREFIX + rb"\[canary\] sweep succeeded (?P<passes>\d{1,18}) times \(last_step=(?P<step>\d{1,18})\)\r?\n")
FAST_STATS = re.compile(
    _BYTES_PREFIX + rb"\[canary\] step=(?P<step>\d{1,18}) protected_tokens=(?P<protected>\d{1,18}) sweep_passes=(?P<passes>\d{1,18}) "
    rb"violations=(?P<violations>\d{1,18}) launch_tags_active=(?P<active>\d+)/(?P<tags>\d+)\r?\n"
)

HEADER = re.compile(
    rf"KV cache canary violation detected \(kernel_kind=(?P<tag>{_TAG}), slot_idx=(?P<slot>{_INT}), position=(?P<position>{_INT})\)"
)
FOOTER = re.compile(r"total_violations=(\d{1,18})(?:\s+ring_overflow=(True|False))?(?:\s+step_when_pumped=(\d{1,18}))?(?!\d)")
# The rest of a footer that was wrapped after its first or second word.
FOOTER_REST = re.compile(r"\s*(?:ring_overflow=(True|False))?\s*(?:step_when_pumped=(\d{1,18}))?\s*$")
STATS = re.compile(
    r"\[canary\] step=(\d+) protected_tokens=(\d+) sweep_passes=(\d+) violations=(\d+)(?: launch_tags_active=(\d+)/(\d+))?(?![\d=])"
)
SWEEP = re.compile(r"\[canary\] sweep succeeded (\d+) times \(last_step=(\d+)\)")
OVERFLOW = re.compile(r"kv-canary: per-forward verify skipped this step due to overflow \(total=(\d+), capacity=(\d+)\)")
HEALTH = re.compile(r"kv-canary: kernel_run_counter (?:did not increase|is zero).{0,100}?tags=\[([^\]]{0,1000})\] at step=(\d+)")
PERTURB = re.compile(r"kv_canary perturb(?: ([a-z_0-9]+))?: (.*)")
DIVERGENCE = re.compile(r"kv_canary_swa_divergence=(\{[^}]{0,2000}\})|kv_canary swa_divergence: (.*)")
BODY_WORDS = ("canary_kind:", "fail_reasons:", "stored:", "actual:", "expected:")
BATCH = re.compile(rb"#running-req: (\d{1,9})")
# Bounded, like all patterns here: a hostile line must not take quadratic time.
_PAIR = re.compile(r"(\w{1,80})=(<[^>]{0,200}>|\[[^\]]{0,4000}\]|'[^']{0,1000}'|[^\s,()]+)")
_PAIR_CHARS = 1 << 16


class State(Enum):
    """How far a record could be read."""

    COMPLETE = "complete"
    OPEN = "open"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One attempt to read a record: the fields that are certain, how it ended, and where in the text."""

    state: State
    record: Record | None
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """The last body line of a message; ring_overflow and step are None where a report left them out."""

    total: int
    ring_overflow: bool | None
    step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryEvent:
    """A canary line that is no record. kind: stats, sweep, overflow, health, perturb, divergence, install, attach; values by name."""

    kind: str
    values: Values = field(default_factory=dict)
    tags: tuple[str, ...] = ()


def read_record(text: str, start: int) -> Reading:
    """Read the record whose `launch_tag=` (or the white space before it) stands at `start`.

    OPEN when the text ends where more could follow: a value counts only when something ends it, since 4 may be the start of 47.
    """
    words: list[str] = []
    at = start
    for key, whole, opened in _GRAMMAR:
        blank = _SPACES.match(text, at)
        if blank:
            at = blank.end()
        elif words:
            return _reading(State.OPEN if at == len(text) else State.BROKEN, words, at)
        rest = text[at : at + len(key)]
        if rest != key:
            return _reading(State.OPEN if at + len(rest) == len(text) and key.startswith(rest) else State.BROKEN, words, at)
        value = whole.match(text, at + len(key))
        if value and (key.startswith(("stored_chain", "expected_aux")) or (value.end() < len(text) and text[value.end()].isspace())):
            words.append(value[0])
            at = value.end()
            continue
        part = opened.match(text, at + len(key))
        ended = part is not None and part.end() == len(text)
        return _reading(State.OPEN if ended else State.BROKEN, words, at)
    return _reading(State.COMPLETE, words, at)


def _reading(state: State, words: list[str], end: int) -> Reading:
    if len(words) < 2 or not _plausible(words[0], words[1]):
        return Reading(state=State.BROKEN if len(words) >= 2 else state, record=None, end=end)
    numbers = tuple(int(word, 16) if word.startswith("0x") else int(word) for word in words[2:])
    if any(not _INT64_MIN <= number <= _INT64_MAX for number in numbers[:4]):
        return Reading(state=State.BROKEN, record=None, end=end)
    return Reading(state=state, record=Record(launch_tag=words[0], fail_reason=words[1], numbers=numbers), end=end)


def _plausible(tag: str, reason: str) -> bool:
    # A cut label or an unknown one is kept only with a tag that SGLang has: prose about the marker is no record.
    return tag in LaunchTag.__members__ or tag.startswith("unknown(") or all(part in REASON_BITS for part in reason.split("+"))


def join_wrapped(text: str, following: str) -> str | None:
    """The record's text with its next line, or None when that line does not continue it.

    A wrap at a space lost the space; a hard wrap at a column cut a word. The key names decide which it was.
    """
    rest = following.strip()
    if not rest:
        return None
    attempts = (f"{text} {rest}", text + rest) if _KEY_START.match(rest) else (text + rest, f"{text} {rest}")
    return next((attempt for attempt in attempts if read_marked(attempt).state is not State.BROKEN), None)


def read_marked(text: str) -> Reading:
    """Read a record that begins with the marker, or with a part of it that a hard wrap cut."""
    if not text.startswith(MARKER):
        return Reading(state=State.OPEN if MARKER.startswith(text) else State.BROKEN, record=None, end=len(text))
    return read_record(text, len(MARKER))


def read_footer(text: str) -> Footer | None:
    """The message's footer, if this line is one."""
    match = FOOTER.search(text)
    if match is None:
        return None
    return Footer(
        total=int(match[1]),
        ring_overflow=None if match[2] is None else match[2] == "True",
        step=None if match[3] is None else int(match[3]),
    )


def read_event(text: str) -> CanaryEvent | None:
    """Any other canary line, or None."""
    if match := STATS.search(text):
        names = ("step", "protected_tokens", "sweep_passes", "violations", "tags_active", "tags")
        return CanaryEvent(
            kind="stats", values={name: int(value) for name, value in zip(names, match.groups(), strict=True) if value is not None}
        )
    if match := SWEEP.search(text):
        return CanaryEvent(kind="sweep", values={"passes": int(match[1]), "last_step": int(match[2])})
    if match := OVERFLOW.search(text):
        return CanaryEvent(kind="overflow", values={"total": int(match[1]), "capacity": int(match[2])})
    if match := HEALTH.search(text):
        return CanaryEvent(
            kind="health", values={"step": int(match[2])}, tags=tuple(tag.strip() for tag in match[1].split(",") if tag.strip())
        )
    if match := PERTURB.search(text):
        return _perturb(match[1] or "", match[2])
    if match := DIVERGENCE.search(text):
        return _divergence(match)
    for word, kind in (("install_canary:", "install"), ("attach_canary_buffers:", "attach")):
        if word in text:
            return CanaryEvent(kind=kind, values=_install_values(text[text.index(word) + len(word) :]))
    return None


def _perturb(name: str, rest: str) -> CanaryEvent:
    values: Values = {"name": name or "window"}
    if not name or rest.startswith("skipped"):
        values["skipped"] = rest.strip()
    values |= {key: _scalar(value) for key, value in _PAIR.findall(rest[:_PAIR_CHARS]) if key != "name" and "skipped" not in values}
    return CanaryEvent(kind="perturb", values=values)


def _divergence(match: re.Match[str]) -> CanaryEvent | None:
    if match[2] is not None:
        return CanaryEvent(kind="divergence", values={key: _scalar(value) for key, value in _PAIR.findall(match[2][:_PAIR_CHARS])})
    try:
        values = json.loads(match[1])
    except (ValueError, RecursionError):
        return None
    return CanaryEvent(kind="divergence", values={key: value for key, value in values.items() if isinstance(value, int)})


def pairs(text: str) -> Values:
    """Every key=value of a line; nested names are not kept apart."""
    return {key: _scalar(value) for key, value in _PAIR.findall(text[:_PAIR_CHARS])}


_OLD_NAMES = {"sweep_cadence": "sweep_interval"}


def _install_values(text: str) -> Values:
    """Flat fields of an install or attach line; the nested reprs share no field name, enums become their lower-case name."""
    values: Values = {}
    for key, value in _PAIR.findall(text[:_PAIR_CHARS]):
        values[_OLD_NAMES.get(key, key)] = _scalar(value)
    for key in ("config", "perturb_config", "launch_capacities"):
        values.pop(key, None)
    return values


def _scalar(text: str) -> Scalar:
    if enum := re.fullmatch(r"<\w+\.(\w+): [^>]*>", text):
        return enum[1].lower()
    if text in ("True", "False"):
        return text == "True"
    if text == "None":
        return None
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d+\.\d+(?:e-?\d+)?", text):
        return float(text)
    return text.strip("'")
