"""A second opinion on the three ops that shares nothing with the package: bytes in, bytes out, every value derived from scratch.

The package walks entries and keeps running state. Here a value is defined by what it depends on: the hash of a token is a fold over
all tokens before it, a violation is a function of one entry, the buffer after a stamp is the buffer before it plus a list of patches.
"""

from __future__ import annotations

import struct
from functools import reduce

TWO64 = 1 << 64
ANCHOR = 0xC0FFEE1234567890


def scramble(value: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ value >> shift) * factor % TWO64
    return value ^ value >> 31


def fold(words, start: int = 0) -> int:
    return reduce(lambda acc, word: scramble(acc ^ word % TWO64), words, start)


def after(prev_hash: int, token: int, position: int) -> int:
    return fold([token, position], scramble(prev_hash % TWO64))


def record(buffer: bytes, stride: int, slot: int) -> tuple[int, int, int, int]:
    return struct.unpack_from("<4q", buffer, slot * stride)


def start_hash(buffer: bytes, stride: int, slot: int) -> int:
    if slot < 0:
        return scramble(ANCHOR)
    token, position, prev_hash, _ = record(buffer, stride, slot)
    return after(prev_hash, token, position)


def real_hash(sources, mode: int, slot: int) -> int:
    """sources: (bytes, row stride, page size, bytes per token, read bytes) each."""
    digests = []
    for data, row_stride, page_size, token_bytes, read_bytes in sources if mode else ():
        begin = slot // page_size * row_stride + slot % page_size * token_bytes
        length = 16 if mode == 1 else read_bytes
        digests.append(fold(struct.unpack_from(f"<{length // 8}Q", data, begin)))
    return fold(digests)


def signed(value: int) -> int:
    return (value + TWO64 // 2) % TWO64 - TWO64 // 2


def verify_rows(buffer, stride, sources, mode, tag, entries):
    """Violation rows of (slot, expected token or None, expected position, predecessor) entries, in order."""
    rows = []
    for slot, expected_token, expected_position, prev in entries:
        if slot == 0:
            continue
        token, position, prev_hash, stored_real = record(buffer, stride, slot)
        expected_hash = prev_hash if prev == 0 else signed(start_hash(buffer, stride, prev))
        failures = {
            1: prev_hash != expected_hash,
            2: position != expected_position,
            4: stored_real != signed(real_hash(sources, mode, slot)),
            32: expected_token not in (None, -1, token),
        }
        bits = sum(bit for bit, failed in failures.items() if failed)
        if bits:
            rows.append((tag, slot, position, token, -1 if expected_token is None else expected_token, prev_hash, expected_hash, bits))
    return rows


def stamp(buffer, stride, sources, mode, tag, requests, next_position_armed):
    """requests: (seed, [(slot, token, position, expected token or None, expected position or None)]). Returns (buffer, rows, stamped)."""
    rows, stamped = [], 0
    image = bytearray(buffer)
    for seed, tokens in requests:
        kept = [item for item in tokens if item[0] >= 0]
        if not tokens:
            continue
        start = start_hash(image, stride, seed)
        seed_position = record(image, stride, seed)[1] if seed >= 0 else None
        patches = []
        for index, (slot, token, position, wanted_token, wanted_position) in enumerate(kept):
            running = reduce(lambda h, item: after(h, item[1], item[2]), kept[:index], start)
            if wanted_token is not None:
                bits = 8 * (token != wanted_token) + 16 * (position != wanted_position)
                if bits:
                    rows.append((tag, slot, position, token, wanted_token, signed(running), wanted_position, bits))
            previous = kept[index - 1][2] if index else seed_position
            if next_position_armed and seed >= 0 and position != signed(previous + 1):
                rows.append((tag, slot, position, token, token, signed(running), signed(previous + 1), 16))
            patches.append((slot, struct.pack("<4q", token, position, signed(running), signed(real_hash(sources, mode, slot)))))
        for slot, patch in patches:
            image[slot * stride : slot * stride + 32] = patch
        stamped += len(kept)
    return bytes(image), rows, stamped


def plan(rows, prefixes, extends, table, window, lut, expected, valid_lens, token_offset):
    """(entries, offsets, seeds) of a batch; entries are (slot, expected token, position, predecessor)."""

    def slot_at(row: int, position: int) -> int:
        cell = table[row][position]
        return cell if lut is None or cell < 0 else lut[cell]

    def token_at(request: int, row: int, index: int) -> int:
        return expected[row][index] if expected is not None and 0 <= index < valid_lens[request] else -1

    live = [(request, row) for request, row in enumerate(rows) if row != 0]
    entries = [
        (slot_at(row, at), token_at(request, row, at + token_offset), at, slot_at(row, at - 1) if at else -1)
        for request, row in live
        for at in range(max(0, prefixes[request] - window) if window else 0, max(0, prefixes[request]))
    ]
    writes = [max(0, extend) if row else 0 for row, extend in zip(rows, extends, strict=True)]
    offsets = [sum(writes[:count]) for count in range(len(rows) + 1)]
    seeds = [slot_at(row, prefix - 1) if write and prefix > 0 else -1 for row, prefix, write in zip(rows, prefixes, writes, strict=True)]
    return entries, offsets, seeds
