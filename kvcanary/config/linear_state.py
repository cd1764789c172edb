"""State per request of linear-attention and Mamba layers: it grows with requests, not with tokens, and the canary does not cover it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kvcanary.errors import ConfigError

CONV_ELEMENT_BYTES = 2
SSM_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """Shape of the state of one layer for the whole model, as SGLang 0.5.23 builds it (configs/mamba_utils.py).

    The convolution state is [conv_inner + 2 * groups * group_dim, kernel - 1] in bf16 and the recurrent state is [heads, *cell] in
    `ssm_dtype`; both are cut over tensor-parallel ranks by heads. Mamba groups that do not divide are replicated (`groups` becomes the
    number of ranks); heads that do not divide are an error.
    """

    layers: int
    heads: int
    cell: tuple[int, int]
    conv_inner: int
    groups: int
    group_dim: int
    kernel: int
    ssm_dtype: str = "float32"

    def bytes_per_request(self, tp_size: int = 1) -> int:
        """Bytes of one state slot on one rank, all layers."""
        groups = self.groups if self.groups % tp_size == 0 else tp_size
        conv_dim = self.conv_inner + 2 * groups * self.group_dim
        if self.heads % tp_size or conv_dim % tp_size:
            raise ConfigError(f"tp_size must divide the {self.heads} state heads, got {tp_size}")
        conv = conv_dim // tp_size * (self.kernel - 1) * CONV_ELEMENT_BYTES
        recurrent = self.heads // tp_size * prod(self.cell) * SSM_ELEMENT_BYTES[self.ssm_dtype]
        return self.layers * (conv + recurrent)

    def formula(self, tp_size: int = 1) -> str:
        """Arithmetic of `bytes_per_request` with the model's numbers."""
        groups = self.groups if self.groups % tp_size == 0 else tp_size
        conv = f"({self.conv_inner} + 2 x {groups} x {self.group_dim}) / {tp_size} x {self.kernel - 1} x {CONV_ELEMENT_BYTES}"
        return (
            f"{self.layers} x ({conv} + {self.heads} / {tp_size} x {self.cell[0]} x {self.cell[1]} x {SSM_ELEMENT_BYTES[self.ssm_dtype]})"
        )
