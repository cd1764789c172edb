"""The plan op, compiled: lengths and offsets in one pass over the batch, then the entries of any range of requests."""

from __future__ import annotations

import numpy as np

from kvcanary import layout
from kvcanary.kernels.numba_ops.compiling import compiled

_PADDING_ROW, _CHAIN_HEAD, _NO_TOKEN = layout.PADDING_ROW, layout.CHAIN_HEAD, layout.NO_EXPECTED_TOKEN
_U64 = np.uint64


@compiled
def measure(rows, prefix_lens, extend_lens, table_shape, window, valid_lens, token_width, token_offset, starts, offsets):
    """Fill starts (first entry of each request) and offsets (first token of each request).

    Returns False when a row, prefix or expected token lies outside its table; nothing but starts was written then.
    """
    batch = rows.shape[0]
    starts[0] = 0
    for request in range(batch):
        row, prefix = rows[request], max(prefix_lens[request], np.int64(0))
        count = np.int64(0)
        if row != _PADDING_ROW:
            count = min(prefix, np.int64(window)) if window > 0 else prefix
            if row < 0 or row >= table_shape[0] or prefix > table_shape[1]:
                return False
            if valid_lens.shape[0] and prefix > 0 and min(prefix + token_offset, valid_lens[request]) > token_width:
                return False
        starts[request + 1] = starts[request] + count
    offsets[0] = 0
    for request in range(batch):
        extend = max(extend_lens[request], np.int64(0)) if rows[request] != _PADDING_ROW else np.int64(0)
        offsets[request + 1] = offsets[request] + extend
    offsets[batch + 1 :] = 0
    return True


@compiled
def cells_fit(rows, prefix_lens, table, window, lut_len, first, last):
    """Whether every table cell that requests [first, last) translate lies inside a translation table of lut_len cells."""
    for request in range(first, last):
        row, prefix = rows[request], prefix_lens[request]
        if row == _PADDING_ROW or prefix <= 0:
            continue
        begin = max(prefix - window - 1, np.int64(0)) if window > 0 else np.int64(0)
        highest = np.int32(-1)
        for position in range(_U64(begin), _U64(prefix)):
            highest = max(highest, table[_U64(row), position])
        if highest >= lut_len:
            return False
    return True


@compiled
def translate(lut, slot):
    """Slot through the SWA table; without a table, or when it is negative, as it is."""
    if lut.shape[0] and slot >= 0:
        return lut[_U64(slot)]
    return slot


@compiled
def fill_seeds(rows, prefix_lens, table, lut, offsets, seeds):
    """Seed slot of each request that writes: its last prefix token, -1 at a chain head; int64 seeds [requests] are overwritten."""
    for request in range(rows.shape[0]):
        seed = np.int64(_CHAIN_HEAD)
        if offsets[request + 1] > offsets[request] and prefix_lens[request] > 0:
            seed = translate(lut, np.int64(table[rows[request], prefix_lens[request] - 1]))
        seeds[request] = seed


@compiled
def fill_entries(
    rows, prefix_lens, table, lut, expected, valid_lens, token_offset, starts, first, last, slots, tokens, positions, prevs
):  # fmt: skip
    """Fill the entries of requests [first, last)."""
    for request in range(first, last):
        out, end = _U64(starts[request]), _U64(starts[request + 1])
        if out == end:
            continue
        row, position = _U64(rows[request]), prefix_lens[request] - (starts[request + 1] - starts[request])
        prev = np.int64(_CHAIN_HEAD)
        if position > 0:
            prev = translate(lut, np.int64(table[row, _U64(position - 1)]))
        while out < end:
            slot = translate(lut, np.int64(table[row, _U64(position)]))
            token = np.int64(_NO_TOKEN)
            index = position + token_offset
            if valid_lens.shape[0] and 0 <= index < valid_lens[request]:
                token = np.int64(expected[row, _U64(index)])
            slots[out], tokens[out], positions[out], prevs[out] = slot, token, position, prev
            prev = slot
            position += 1
            out += _U64(1)
