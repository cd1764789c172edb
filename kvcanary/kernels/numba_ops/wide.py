"""Hashing in vectors that are written out, for CPUs that multiply eight 64-bit words at once.

The compiler's own vectors stop at loops whose next step needs the last one, and a fold is one: word after word of a row. Sixty-four rows
side by side are eight vectors, which is how many it takes to hide the latency of a multiplication.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvcanary import layout

WORDS = 8
"""Words of a vector, and of a row in one tile: a cache line."""

GROUPS = 8
ROWS = WORDS * GROUPS
"""Rows of a tile, which holds WORDS words of each, word by word."""

AVAILABLE = bool(llvmlite.binding.get_host_cpu_features().get("avx512dq"))
"""Whether this CPU has the instruction; elsewhere the same is slower than one row after the other."""

_I64, _I32 = ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_I64, WORDS)
_VECTOR_POINTER = ir.PointerType(_VECTOR)


def _splat(value):
    return ir.Constant(_VECTOR, [_I64(value)] * WORDS)


def _load(builder, address):
    return builder.load(builder.inttoptr(address, _VECTOR_POINTER), align=8)


def _store(builder, vector, address):
    builder.store(vector, builder.inttoptr(address, _VECTOR_POINTER), align=8)


def _shuffle(builder, one, other, places):
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_I32, len(places)), [_I32(place) for place in places]))


def _load_rows(builder, addresses, offset, vector):
    """Vectors at `offset` bytes of WORDS rows."""
    rows = []
    for row in range(WORDS):
        address = builder.load(builder.inttoptr(builder.add(addresses, _I64(8 * row)), ir.PointerType(_I64)))
        rows.append(builder.load(builder.inttoptr(builder.add(address, offset), ir.PointerType(vector)), align=8))
    return rows


def _emit_line(typing_context, addresses, offset, tile):
    def codegen(context, builder, signature, arguments):
        addresses, offset, tile = arguments
        rows = _load_rows(builder, addresses, offset, _VECTOR)
        # The usual three rounds of a transposition: swap the off-diagonal halves of blocks of two, four and eight.
        for size in (1, 2, 4):
            for row in [row for row in range(WORDS) if not row & size]:
                upper, lower = rows[row], rows[row + size]
                rows[row] = _shuffle(builder, upper, lower, [WORDS + at - size if at & size else at for at in range(WORDS)])
                rows[row + size] = _shuffle(builder, upper, lower, [WORDS + at if at & size else at + size for at in range(WORDS)])
        for word, vector in enumerate(rows):
            _store(builder, vector, builder.add(tile, _I64(8 * ROWS * word)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _emit_pair(typing_context, addresses, offset, tile):
    def codegen(context, builder, signature, arguments):
        addresses, offset, tile = arguments
        rows = _load_rows(builder, addresses, offset, ir.VectorType(_I64, 2))
        # Even rows in one vector and odd ones in another, so that taking words in turn from both leaves the rows in order.
        even, odd = (
            _shuffle(builder, _join(builder, rows[first], rows[first + 2]), _join(builder, rows[first + 4], rows[first + 6]), range(WORDS))
            for first in (0, 1)
        )
        for word in range(2):
            places = [place + word for pair in range(0, WORDS, 2) for place in (pair, WORDS + pair)]
            _store(builder, _shuffle(builder, even, odd, places), builder.add(tile, _I64(8 * ROWS * word)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _join(builder, one, other):
    return _shuffle(builder, one, other, range(4))


def _emit_fold(typing_context, tile, num_words, folded):
    def codegen(context, builder, signature, arguments):
        tile, num_words, folded = arguments
        sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(GROUPS)]
        for group, place in enumerate(sums):
            builder.store(_load(builder, builder.add(folded, _I64(8 * WORDS * group))), place)
        with cgutils.for_range(builder, num_words) as loop:
            row = builder.add(tile, builder.mul(loop.index, _I64(8 * ROWS)))
            mixed = [
                builder.xor(builder.load(place), _load(builder, builder.add(row, _I64(8 * WORDS * group))))
                for group, place in enumerate(sums)
            ]
            # One operation of all groups after the other: an instruction then never waits for the one before it.
            multipliers = layout.MIX_MULTIPLIER_1, layout.MIX_MULTIPLIER_2
            for shift, multiplier in zip(layout.MIX_SHIFTS, multipliers, strict=False):
                mixed = [builder.xor(value, builder.lshr(value, _splat(shift))) for value in mixed]
                mixed = [builder.mul(value, _splat(multiplier)) for value in mixed]
            mixed = [builder.xor(value, builder.lshr(value, _splat(layout.MIX_SHIFTS[-1]))) for value in mixed]
            for value, place in zip(mixed, sums, strict=True):
                builder.store(value, place)
        for group, place in enumerate(sums):
            _store(builder, builder.load(place), builder.add(folded, _I64(8 * WORDS * group)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


load_line: Any = intrinsic(_emit_line)
"""load_line(addresses: int64, offset: int64, tile: int64): WORDS words at `offset` bytes of WORDS rows into columns of a tile.

addresses points to int64 [WORDS], the rows; tile to where the first word of the first row belongs in uint64 [WORDS, ROWS].
"""

load_pair: Any = intrinsic(_emit_pair)
"""load_pair(addresses: int64, offset: int64, tile: int64): the same for two words of each row, all that partial hashing reads."""

fold_tile: Any = intrinsic(_emit_fold)
"""fold_tile(tile: int64, num_words: int64, folded: int64): fold the first num_words words of all ROWS rows into uint64 [ROWS] at folded."""
