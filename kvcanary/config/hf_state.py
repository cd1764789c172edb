"""Shape of the per-request state of linear-attention and Mamba layers from a config.json."""

from __future__ import annotations

from collections.abc import Callable

from kvcanary.config.geometry import Unknown
from kvcanary.config.hf_reader import ConfigReader
from kvcanary.config.linear_state import SSM_ELEMENT_BYTES, StateShape


def state_shape(reader: ConfigReader, layers: int, unknowns: list[Unknown]) -> StateShape | None:
    """State of one layer times `layers`; None without such layers, or with an entry in `unknowns` where the file does not settle it."""
    if not layers:
        return None
    rules: tuple[Callable[[ConfigReader, int], StateShape | None], ...] = (_gated_delta, _kimi_delta, _mamba2)
    shape = next((shape for rule in rules if (shape := rule(reader, layers)) is not None), None)
    if shape is None:
        unknowns.append(
            Unknown(
                field="state_bytes_per_request",
                text=f"{layers} layers keep a state per request whose size the file does not settle",
                settle="'Mamba Cache is allocated' of a start-up log: conv and ssm size over the number of slots",
            )
        )
    return shape


def _ssm_dtype(reader: ConfigReader) -> str:
    stated = reader.text("mamba_ssm_dtype")
    return stated if stated in SSM_ELEMENT_BYTES else "float32"


def _gated_delta(reader: ConfigReader, layers: int) -> StateShape | None:
    """Gated delta net (Qwen3-Next, Qwen3.5)."""
    k_heads, v_heads = reader.count("linear_num_key_heads"), reader.count("linear_num_value_heads")
    k_dim, v_dim, kernel = (reader.count(f"linear_{name}") for name in ("key_head_dim", "value_head_dim", "conv_kernel_dim"))
    if k_heads is None or v_heads is None or k_dim is None or v_dim is None or kernel is None:
        return None
    return StateShape(
        layers=layers, heads=v_heads, cell=(v_dim, k_dim), conv_inner=v_heads * v_dim, groups=k_heads, group_dim=k_dim,
        kernel=kernel, ssm_dtype=_ssm_dtype(reader),
    )  # fmt: skip


def _kimi_delta(reader: ConfigReader, layers: int) -> StateShape | None:
    """Kimi delta attention: q, k and v are convolved, all with the same heads. Its dtype ignores the file."""
    linear = ConfigReader(reader.mapping("linear_attn_config") or {})
    heads, dim, kernel = linear.count("num_heads"), linear.count("head_dim"), linear.count("short_conv_kernel_size")
    if heads is None or dim is None or kernel is None:
        return None
    return StateShape(layers=layers, heads=heads, cell=(dim, dim), conv_inner=heads * dim, groups=heads, group_dim=dim, kernel=kernel)


def _mamba2(reader: ConfigReader, layers: int) -> StateShape | None:
    """Mamba-2 (Nemotron-H, Falcon-H1, Granite, Bamba)."""
    heads = reader.count("mamba_num_heads", "mamba_n_heads")
    dim = reader.count("mamba_head_dim", "mamba_d_head")
    state = reader.count("ssm_state_size", "mamba_d_state")
    groups = reader.count("n_groups", "mamba_n_groups")
    kernel = reader.count("conv_kernel", "mamba_d_conv")
    if heads is None or dim is None or state is None or groups is None or kernel is None:
        return None
    return StateShape(
        layers=layers, heads=heads, cell=(dim, state), conv_inner=heads * dim, groups=groups, group_dim=state,
        kernel=kernel, ssm_dtype=_ssm_dtype(reader),
    )  # fmt: skip
