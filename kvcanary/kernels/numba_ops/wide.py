"""Hashing in vectors that are written out, for CPUs that multiply eight 64-bit words at once.

The compiler's own vectors stop at loops whose next step needs the last one, and a fold is one: word after word of a row. Sixty-four rows
side by side are eight vectors, which is how many it takes to hide the latency of a multiplication.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from kvcanary import layout

WORDS = 8
"""Words of a vector, and of a row in one tile: a cache line."""

GROUPS = 8
ROWS = WORDS * GROUPS
"""Rows of a tile, which holds WORDS words of each, word by word."""

_TRIPLE, _CPU, _FEATURES = cpu_target.target_context.codegen().magic_tuple()

AVAILABLE = "+avx512dq" in _FEATURES.split(",")
"""Whether the CPU that numba compiles for has the instruction; elsewhere the same is slower than one row after the other.

Compiled code holds this as a constant, so it comes from what numba's disk cache keeps such code apart by.
"""

_I64, _I32 = ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_I64, WORDS)
_VECTOR_POINTER = ir.PointerType(_VECTOR)
_PAIR = ir.VectorType(_I64, 2)
_GROUP_BYTES = 8 * WORDS


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


def _apart(builder, rows):
    """The first words of WORDS pairs, and the second ones."""
    # Even rows in one vector and odd ones in another, so that taking words in turn from both leaves the rows in order.
    even, odd = (
        _shuffle(builder, _join(builder, rows[first], rows[first + 2]), _join(builder, rows[first + 4], rows[first + 6]), range(WORDS))
        for first in (0, 1)
    )
    return [
        _shuffle(builder, even, odd, [place + word for pair in range(0, WORDS, 2) for place in (pair, WORDS + pair)]) for word in range(2)
    ]


def _join(builder, one, other):
    return _shuffle(builder, one, other, range(4))


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
        for word, vector in enumerate(_apart(builder, _load_rows(builder, addresses, offset, _PAIR))):
            _store(builder, vector, builder.add(tile, _I64(8 * ROWS * word)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _splitmix(builder, values):
    """splitmix64 of several vectors: one operation of all after the other, so that an instruction never waits for the one before it."""
    first, second, last = layout.MIX_SHIFTS
    for shift, multiplier in ((first, layout.MIX_MULTIPLIER_1), (second, layout.MIX_MULTIPLIER_2)):
        values = [builder.xor(value, builder.lshr(value, _splat(shift))) for value in values]
        values = [builder.mul(value, _splat(multiplier)) for value in values]
    return [builder.xor(value, builder.lshr(value, _splat(last))) for value in values]


def _emit_fold(typing_context, tile, num_words, folded):
    def codegen(context, builder, signature, arguments):
        tile, num_words, folded = arguments
        sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(GROUPS)]
        for group, place in enumerate(sums):
            builder.store(_load(builder, builder.add(folded, _I64(_GROUP_BYTES * group))), place)
        with cgutils.for_range(builder, num_words) as loop:
            row = builder.add(tile, builder.mul(loop.index, _I64(8 * ROWS)))
            words = [_load(builder, builder.add(row, _I64(_GROUP_BYTES * group))) for group in range(GROUPS)]
            mixed = _splitmix(builder, [builder.xor(builder.load(place), word) for place, word in zip(sums, words, strict=True)])
            for value, place in zip(mixed, sums, strict=True):
                builder.store(value, place)
        for group, place in enumerate(sums):
            _store(builder, builder.load(place), builder.add(folded, _I64(_GROUP_BYTES * group)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _emit_pairs(typing_context, slots, address, distance, hashes):
    def codegen(context, builder, signature, arguments):
        slots, address, distance, hashes = arguments
        words = []
        for group in range(GROUPS):
            rows = []
            for row in range(WORDS):
                slot = builder.load(builder.inttoptr(builder.add(slots, _I64(_GROUP_BYTES * group + 8 * row)), ir.PointerType(_I64)))
                place = builder.add(address, builder.mul(slot, distance))
                rows.append(builder.load(builder.inttoptr(place, ir.PointerType(_PAIR)), align=8))
            words.append(_apart(builder, rows))
        mixed = _splitmix(builder, [first for first, _ in words])
        mixed = _splitmix(builder, [builder.xor(value, second) for value, (_, second) in zip(mixed, words, strict=True)])
        for group, value in enumerate(_splitmix(builder, mixed)):
            _store(builder, value, builder.add(hashes, _I64(_GROUP_BYTES * group)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen


load_line: Any = intrinsic(_emit_line)
"""load_line(addresses: int64, offset: int64, tile: int64): WORDS words at `offset` bytes of WORDS rows into columns of a tile.

addresses points to int64 [WORDS], the rows; tile to where the first word of the first row belongs in uint64 [WORDS, ROWS].
"""

load_pair: Any = intrinsic(_emit_pair)
"""load_pair(addresses: int64, offset: int64, tile: int64): the same for two words of each row, all that partial hashing reads."""

fold_tile: Any = intrinsic(_emit_fold)
"""fold_tile(tile: int64, num_words: int64, folded: int64): fold the first num_words words of all ROWS rows into uint64 [ROWS] at folded."""

hash_pairs: Any = intrinsic(_emit_pairs)
"""hash_pairs(slots: int64, address: int64, distance: int64, hashes: int64): real_kv_hash of ROWS slots that have one source of two words.

slots points to int64 [ROWS]; slot s has its words at address + s * distance; hashes points to uint64 [ROWS].
"""
