"""Parts of a token's KV on one rank, the storage types, and how heads and layers are dealt out to ranks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from kvcanary.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How an element is stored: bits each, and one scale of 8 bits per `block` elements (0: no scales)."""

    bits: int
    block: int = 0

    @property
    def bytes_per_element(self) -> Fraction:
        """Exact bytes of one element with its share of the scale."""
        return Fraction(self.bits, 8) + (Fraction(1, self.block) if self.block else 0)

    @property
    def text(self) -> str:
        """'2' or '(1/2 + 1/16)', as the formula line prints it."""
        data = str(Fraction(self.bits, 8))
        return f"({data} + 1/{self.block})" if self.block else data


STORAGE: dict[str, Storage] = {
    "float32": Storage(bits=32),
    "bfloat16": Storage(bits=16),
    "float16": Storage(bits=16),
    "fp8_e4m3": Storage(bits=8),
    "fp8_e5m2": Storage(bits=8),
    # SGLang's own block sizes: 16 for FP4 (MHATokenToKVPoolFP4), 32 for MXFP8 (MHATokenToKVPoolMXFP8).
    "fp4_e2m1": Storage(bits=4, block=16),
    "mxfp8": Storage(bits=8, block=32),
}
INDEX_SCALE_BYTES, INDEX_BLOCK = 4, 128


class PartRole(StrEnum):
    """kv: needed by attention · index: sparse-attention keys · idle: allocated by SGLang for layers that never use it."""

    KV = "kv"
    INDEX = "index"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPart:
    """Bytes of one token in a run of equal layers on one rank. `pool` is the SGLang sub-pool that holds it: full or swa."""

    name: str
    role: PartRole
    pool: str
    layers: int
    heads: int
    k_dim: int
    v_dim: int
    k_bytes: int
    v_bytes: int
    formula: str

    @property
    def bytes_per_token(self) -> int:
        """K and V bytes together."""
        return self.k_bytes + self.v_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankKv:
    """KV bytes of one token on one rank, by part."""

    parts: tuple[KvPart, ...]

    @property
    def bytes_per_token(self) -> int:
        """What attention needs: all layers, K and V; no index keys, no idle buffers, no drafts, no per-request state."""
        return sum(part.bytes_per_token for part in self.parts if part.role is PartRole.KV)

    @property
    def formula(self) -> str:
        """Arithmetic of `bytes_per_token` with the operator's numbers."""
        return " + ".join(part.formula for part in self.parts if part.role is PartRole.KV) or "0"

    def pool_bytes(self, pool: str) -> int:
        """Bytes SGLang allocates per slot of the sub-pool 'full' or 'swa'."""
        return sum(part.bytes_per_token for part in self.parts if part.pool == pool)

    def half_bytes(self, pool: str, half: str) -> int:
        """K ('k') or V ('v') bytes per slot of a sub-pool without index keys: what SGLang logs as K size and V size."""
        chosen = [part for part in self.parts if part.pool == pool and part.role is not PartRole.INDEX]
        return sum(part.k_bytes if half == "k" else part.v_bytes for part in chosen)

    def pool_formula(self, pool: str) -> str:
        """Arithmetic of `pool_bytes`."""
        return " + ".join(part.formula for part in self.parts if part.pool == pool) or "0"


def heads_per_rank(kv_heads: int, tp_size: int) -> int | None:
    """KV heads one rank holds: cut evenly, or replicated with one head each; None where neither works (SGLang's models assert)."""
    if kv_heads >= tp_size:
        return kv_heads // tp_size if kv_heads % tp_size == 0 else None
    return 1 if tp_size % kv_heads == 0 else None


def pipeline_slice(num_layers: int, pp_size: int, pp_rank: int) -> slice:
    """Layers of a pipeline rank: even, the last ranks take one more each where it does not divide (SGLang's get_pp_indices)."""
    if not 0 <= pp_rank < pp_size:
        raise ConfigError(f"pp_rank must be in 0..{pp_size - 1}, got {pp_rank}")
    if num_layers < pp_size:
        raise ConfigError(f"pp_size must not exceed the {num_layers} layers, got {pp_size}")
    base, extra = divmod(num_layers, pp_size)
    longer_before = max(0, pp_rank - (pp_size - extra))
    start = pp_rank * base + longer_before
    return slice(start, start + base + (pp_rank >= pp_size - extra))


def stored_bytes(elements: int, storage: Storage) -> int | None:
    """Bytes of some elements with their scales; None where they do not fill whole scale blocks."""
    size = elements * storage.bytes_per_element
    return int(size) if size.denominator == 1 else None
