"""Loads, stores and prefetches by address: what numpy indexing cannot say to the compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvcanary.kernels.numba_ops.compiling import compiled

CACHE_LINE = 64
"""Bytes that a CPU loads at once."""

_I32, _U64_POINTER, _BYTE_POINTER = ir.IntType(32), ir.PointerType(ir.IntType(64)), ir.PointerType(ir.IntType(8))
_FOR_READING, _KEEP_IN_ALL_CACHES, _DATA_CACHE = 0, 3, 1


def _emit_load(typing_context, address):
    def codegen(context, builder, signature, arguments):
        return builder.load(builder.inttoptr(arguments[0], _U64_POINTER))

    return types.uint64(types.int64), codegen


def _emit_store(typing_context, address, value):
    def codegen(context, builder, signature, arguments):
        builder.store(arguments[1], builder.inttoptr(arguments[0], _U64_POINTER))
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), codegen


def _emit_prefetch(typing_context, address):
    def codegen(context, builder, signature, arguments):
        function_type = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTE_POINTER], function_type)
        hints = [ir.Constant(_I32, hint) for hint in (_FOR_READING, _KEEP_IN_ALL_CACHES, _DATA_CACHE)]
        builder.call(function, [builder.inttoptr(arguments[0], _BYTE_POINTER), *hints])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _emit_prefer_wide_vectors(typing_context):
    def codegen(context, builder, signature, arguments):
        # The set of names that llvmlite knows holds no string attribute; LLVM itself takes any.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), codegen


load: Any = intrinsic(_emit_load)
"""load(address: int64) -> uint64; the address must be a multiple of 8 inside a live tensor."""

store: Any = intrinsic(_emit_store)
"""store(address: int64, value: uint64); same rule for the address."""

prefetch: Any = intrinsic(_emit_prefetch)
"""prefetch(address: int64): start loading a cache line; any address is allowed, a wrong one does nothing."""

prefer_wide_vectors: Any = intrinsic(_emit_prefer_wide_vectors)
"""prefer_wide_vectors(): let the loops of the function that calls it use the widest vectors of the CPU.

LLVM stops at 256 bits by default; hashing is nothing but 64-bit multiplications, which a CPU with 512-bit vectors does twice as fast there.
"""


@compiled
def is_scattered(slots, begin, end):
    """Whether the slots of entries [begin, end) are not consecutive at first sight; the hardware foresees those that are."""
    return end - begin > 1 and slots[end - 1] - slots[begin] != end - 1 - begin


@compiled
def cache_lines(num_words):
    """Zeros, uint64 [num_words], from the begin of a cache line: a vector that straddles two takes twice as long."""
    room = np.zeros(num_words + CACHE_LINE // 8, np.uint64)
    start = (-np.int64(room.ctypes.data) & (CACHE_LINE - 1)) >> 3
    return room[start : start + num_words]
