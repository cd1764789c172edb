"""Byte layout of the KV canary and the hash in plain integers: the one place for constants.

A canary slot is 32 bytes, four little-endian int64: token, position, prev_hash, real_kv_hash. All values here equal those of
SGLang 0.5.23; the hash functions are the slow, obvious form that the fast backends are pinned against.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum, IntFlag

MASK64 = (1 << 64) - 1

SLOT_BYTES = 32
SLOT_FIELDS = ("token", "position", "prev_hash", "real_kv_hash")
FIELD_TOKEN, FIELD_POSITION, FIELD_PREV_HASH, FIELD_REAL_KV_HASH = range(4)

CHAIN_ANCHOR = 0xC0FFEE1234567890
MIX_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MIX_MULTIPLIER_2 = 0x94D049BB133111EB
MIX_SHIFTS = (30, 27, 31)

PADDING_SLOT = 0
PADDING_ROW = 0
CHAIN_HEAD = -1
NO_EXPECTED_TOKEN = -1

MAX_REAL_KV_SOURCES = 4
REAL_KV_ALIGNMENT = 16
PARTIAL_BYTES = 16
PLAN_MAX_REQUESTS = 4096

RING_FIELDS = (
    "kernel_kind",
    "slot_idx",
    "position",
    "stored_token",
    "expected_token",
    "stored_chain_hash",
    "expected_aux",
    "fail_reason_bits",
)
RING_ROW_BYTES = 8 * len(RING_FIELDS)
DEFAULT_RING_CAPACITY = 1024
VERIFY_CAPACITY_FACTOR = 3


class LaunchTag(IntEnum):
    """Which launch wrote a violation row; the numbers are SGLang's kernel_kind."""

    HEAD_K_FULL = 0
    HEAD_V_FULL = 1
    TAIL_K_FULL = 2
    TAIL_V_FULL = 3
    SWEEP_K_FULL = 4
    SWEEP_V_FULL = 5
    HEAD_K_SWA = 6
    HEAD_V_SWA = 7
    TAIL_K_SWA = 8
    TAIL_V_SWA = 9
    SWEEP_K_SWA = 10
    SWEEP_V_SWA = 11


NUM_TAGS = len(LaunchTag)


class FailReason(IntFlag):
    """Reason bits of a violation row."""

    VERIFY_CHAIN_HASH = 1
    VERIFY_POSITION = 2
    VERIFY_REAL_KV_HASH = 4
    WRITE_TOKEN = 8
    WRITE_POSITION = 16
    VERIFY_TOKEN = 32


FAIL_REASON_LABELS = tuple(reason.name.lower() for reason in FailReason if reason.name)
WRITE_REASONS = FailReason.WRITE_TOKEN | FailReason.WRITE_POSITION


class RealKvHashMode(IntEnum):
    """How much of a slot's real KV bytes is hashed: nothing, the first 16 bytes of each source, or read_bytes."""

    NONE = 0
    PARTIAL = 1
    ALL = 2


class SlotStatus(IntEnum):
    """What is known of one slot on a map; uint8, ordered so that the worst status of a tile is its maximum.

    FREE holds no token, RESERVED is the padding slot and alignment, CLEAN was verified without a finding, SKIPPED holds a token that
    nothing verified, INJECTED was damaged on purpose and not reported, CORRUPTED was reported.
    """

    FREE = 0
    RESERVED = 1
    CLEAN = 2
    SKIPPED = 3
    INJECTED = 4
    CORRUPTED = 5


def to_unsigned(value: int) -> int:
    """Two's complement of an int64 as an unsigned 64-bit integer."""
    return value & MASK64


def to_signed(value: int) -> int:
    """An unsigned 64-bit integer as the int64 with the same bits."""
    value &= MASK64
    return value - (1 << 64) if value >> 63 else value


def splitmix64(value: int) -> int:
    """Bijective mixer S on 64 bits; there is no additive constant, so S(0) is 0."""
    x = value & MASK64
    x = ((x ^ (x >> MIX_SHIFTS[0])) * MIX_MULTIPLIER_1) & MASK64
    x = ((x ^ (x >> MIX_SHIFTS[1])) * MIX_MULTIPLIER_2) & MASK64
    return x ^ (x >> MIX_SHIFTS[2])


def mix3(prev_hash: int, token: int, position: int) -> int:
    """Chain step: hash after a token, from the hash before it, its id and its position."""
    return splitmix64(splitmix64(splitmix64(prev_hash) ^ to_unsigned(token)) ^ to_unsigned(position))


CHAIN_START = splitmix64(CHAIN_ANCHOR)


def chain_hashes(tokens: Sequence[int], positions: Sequence[int], start: int = CHAIN_START) -> list[int]:
    """The prev_hash stored with each token, in order; unsigned 64-bit."""
    stored, running = [], start
    for token, position in zip(tokens, positions, strict=True):
        stored.append(running)
        running = mix3(running, token, position)
    return stored


def fold_bytes(data: bytes) -> int:
    """Hash of one real-KV source: fold 8-byte little-endian words; the tail is padded with zeros."""
    acc = 0
    for start in range(0, len(data), 8):
        acc = splitmix64(acc ^ int.from_bytes(data[start : start + 8].ljust(8, b"\0"), "little"))
    return acc


def combine_sources(source_hashes: Iterable[int]) -> int:
    """real_kv_hash of a slot from the hashes of its sources, in their order; 0 without sources."""
    acc = 0
    for source_hash in source_hashes:
        acc = splitmix64(acc ^ source_hash)
    return acc


def reason_labels(bits: int) -> list[str]:
    """Labels of the set reason bits in SGLang's order."""
    return [label for index, label in enumerate(FAIL_REASON_LABELS) if bits >> index & 1]
