"""Appending one violation, compiled; only ever called by one thread at a time."""

from __future__ import annotations

import numpy as np

from kvcanary.kernels.numba_ops.compiling import compiled


@compiled
def report(ring_rows, write_index, slot_flags, tag, slot, position, token, expected_token, stored_hash, expected_aux, bits):
    """Store a row while the ring has room, count it always, flag the slot when there is a map (slot_flags may be empty)."""
    index = write_index[0]
    if 0 <= index < ring_rows.shape[0]:
        row = ring_rows[index]
        row[0], row[1], row[2], row[3] = tag, slot, position, token
        row[4], row[5], row[6], row[7] = expected_token, stored_hash, expected_aux, bits
    write_index[0] = index + 1
    if slot_flags.shape[0]:
        slot_flags[slot] |= np.uint8(bits)
