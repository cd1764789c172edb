"""Which layers of a config.json keep token KV, with which reach, and which keep a state per request instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvcanary.config.geometry import LayerKind, Unknown
from kvcanary.config.hf_reader import ConfigReader
from kvcanary.errors import ConfigError

# Names of layer_types / layers_block_type: (reach of the attention, keeps a state per request).
LAYER_TYPES: dict[str, tuple[LayerKind, bool]] = {
    "full_attention": (LayerKind.FULL, False),
    "attention": (LayerKind.FULL, False),
    "global": (LayerKind.FULL, False),
    "sliding_attention": (LayerKind.WINDOW, False),
    "chunked_attention": (LayerKind.CHUNKED, False),
    "linear_attention": (LayerKind.NONE, True),
    "mamba": (LayerKind.NONE, True),
    "mamba2": (LayerKind.NONE, True),
    "conv": (LayerKind.NONE, True),
    "recurrent": (LayerKind.NONE, True),
    "mlp": (LayerKind.NONE, False),
    "moe": (LayerKind.NONE, False),
}
PATTERN_LETTERS = {"*": (LayerKind.FULL, False), "M": (LayerKind.NONE, True), "-": (LayerKind.NONE, False), "E": (LayerKind.NONE, False)}
ALL_WINDOW_MODELS = frozenset({"mistral", "mixtral", "phi3", "starcoder2"})
# Models whose own config class fills in a pattern that the file may leave out: every n-th layer is a full one.
DEFAULT_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2, "llama4": 4, "llama4_text": 4}


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Kind of each layer, whether it keeps a state, and KV heads where they differ by layer."""

    kinds: tuple[LayerKind, ...]
    states: tuple[bool, ...]
    window: int | None = None
    kv_heads: tuple[int, ...] | None = None
    unknowns: tuple[Unknown, ...] = ()
    note: str = ""


def layer_plan(reader: ConfigReader, num_layers: int) -> LayerPlan:
    """Apply the first rule whose keys the file has; without any, all layers are full attention."""
    rules: tuple[Callable[[ConfigReader, int], LayerPlan | None], ...] = (
        _side_by_side, _by_heads, _by_layer_types, _by_letters, _by_flags, _by_full_list, _by_interval, _by_window,
    )  # fmt: skip
    plan = next(plan for rule in rules if (plan := rule(reader, num_layers)) is not None)
    shared = reader.count("num_kv_shared_layers", zero=True) or 0
    if not shared:
        return plan
    if shared > num_layers:
        raise ConfigError(f"config.json: num_kv_shared_layers must be at most {num_layers}, got {shared}")
    kinds = plan.kinds[: num_layers - shared] + (LayerKind.NONE,) * shared
    return replace(plan, kinds=kinds, note=f"The last {shared} layers read the KV of earlier ones and need none of their own.")


def _plan(pairs: Sequence[tuple[LayerKind, bool]], window: int | None = None, **more: Any) -> LayerPlan:
    return LayerPlan(tuple(kind for kind, _ in pairs), tuple(state for _, state in pairs), window, **more)


def _window(reader: ConfigReader) -> int | None:
    return reader.count("sliding_window_size", "sliding_window", "window_size", zero=True) or None


def _checked(name: str, items: Sequence[Any] | str, num_layers: int) -> Sequence[Any]:
    # A longer list is legal: MTP layers are appended in some files, and SGLang cuts at num_hidden_layers.
    if len(items) < num_layers:
        raise ConfigError(f"config.json: {name} must have an entry for each of {num_layers} layers, got {len(items)}")
    return items[:num_layers]


def _side_by_side(reader: ConfigReader, num_layers: int) -> LayerPlan | None:
    """Falcon-H1 runs attention and Mamba in parallel in every layer."""
    return _plan([(LayerKind.FULL, True)] * num_layers) if reader.text("model_type") == "falcon_h1" else None


def _by_heads(reader: ConfigReader, num_layers: int) -> LayerPlan | None:
    """KV heads per layer, 0 for layers without attention: Nemotron-NAS block_configs, or a plain list."""
    blocks = reader.sequence("block_configs")
    heads: list[int]
    if blocks is not None:
        total = reader.count("num_attention_heads")
        heads = [_block_heads(block, total) for block in _checked("block_configs", blocks, num_layers)]
    else:
        name = next(
            (key for key in ("kv_heads_by_layer", "num_key_value_heads", "num_kv_heads") if isinstance(reader.raw(key), list)), None
        )
        if name is None:
            return None
        heads = list(_checked(name, reader.raw(name), num_layers))
        if any(isinstance(count, bool) or not isinstance(count, int) or count < 0 for count in heads):
            raise ConfigError(f"config.json: {name} must hold whole numbers from 0 up")
    kinds = tuple(LayerKind.FULL if count else LayerKind.NONE for count in heads)
    return LayerPlan(kinds, (False,) * num_layers, None, tuple(heads))


def _block_heads(block: Any, total: int | None) -> int:
    attention = block.get("attention") if isinstance(block, dict) else None
    if not isinstance(attention, dict):
        raise ConfigError("config.json: each entry of block_configs must have an object 'attention'")
    if attention.get("no_op") or attention.get("replace_with_linear"):
        return 0
    group = attention.get("n_heads_in_group")
    if isinstance(group, bool) or not isinstance(group, int) or group < 1 or total is None or total % group:
        raise ConfigError(f"config.json: n_heads_in_group must divide num_attention_heads ({total}), got {group!r}")
    return total // group


def _by_layer_types(reader: ConfigReader, num_layers: int) -> LayerPlan | None:
    for name in ("layer_types", "layers_block_type"):
        types = reader.sequence(name)
        if types is None:
            continue
        types = _checked(name, types, num_layers)
        strange = sorted({str(kind)[:40] for kind in types if not isinstance(kind, str) or kind not in LAYER_TYPES})
        if strange:
            unknown = Unknown(
                field="num_layers",
                text=f"{name} has kinds that are not known here: {', '.join(strange[:5])}",
                settle="'K size', 'V size' and '#tokens' of a start-up log",
            )
            return _plan([(LayerKind.UNSTATED, False)] * num_layers, _window(reader), unknowns=(unknown,))
        pairs = [LAYER_TYPES[kind] for kind in types]
        windowed = any(kind in (LayerKind.WINDOW, LayerKind.CHUNKED) for kind, _ in pairs)
        return _plan(pairs, (_window(reader) or reader.count("attention_chunk_size")) if windowed else None)
    return None


def _by_letters(reader: ConfigReader, num_layers: int) -> LayerPlan | None:
    """Nemotron-H: one letter a layer, a star is attention and M is Mamba."""
    pattern = reader.text("hybrid_override_pattern")
    if pattern is None:
        return None
    letters = _checked("hybrid_override_pattern", pattern, num_layers)
    if strange := sorted(set(letters) - set(PATTERN_LETTERS)):
        raise ConfigError(f"config.json: hybrid_override_pattern may hold {' '.join(PATTERN_LETTERS)}, got {strange[0]!r}")
    return _plan([PATTERN_LETTERS[letter] for letter in letters])


def _by_flags(reader: ConfigReader, num_layers: int) -> LayerPlan | None:
    """A 0/1 list: hybrid_layer_pattern has 1 for window layers, attn_type_list (MiniMax) has 1 for full and 0 for linear."""
    for name, zero, one in (
        ("hybrid_layer_pattern", (LayerKind.FULL, False), (LayerKind.WINDOW, False)),
        ("attn_type_list", (LayerKind.NONE, True), (LayerKind.FULL, False)),
    ):
        flags = reader.sequence(name)
        if flags is None:
            continue
        flags = _checked(name, flags, num_layers)
        if any(flag not in (0, 1) for flag in flags):
            raise ConfigError(f"config.json: {name} must hold 0 and 1 only")
        return _plan([one if flag else zero for flag in flags], _window(reader))
    return None


def _by_full_list(reader: ConfigReader, num_layers: int) -> LayerPlan | None:
    """A list of the attention layers; the rest is linear. Kimi's list counts from 1, the others from 0."""
    linear = reader.mapping("linear_attn_config") or {}
    kimi = linear.get("full_attn_layers", reader.raw("full_attn_layers"))
    first = 1 if kimi is not None else 0
    listed = kimi if kimi is not None else (reader.raw("attn_layer_indices") or reader.raw("full_attn_idxs"))
    if listed is None:
        return None
    last = num_layers - 1 + first
    if not isinstance(listed, list) or any(isinstance(i, bool) or not isinstance(i, int) or not first <= i <= last for i in listed):
        raise ConfigError(f"config.json: the list of attention layers must hold layer numbers {first}..{last}")
    chosen = {i - first for i in listed}
    return _plan([(LayerKind.FULL, False) if i in chosen else (LayerKind.NONE, True) for i in range(num_layers)])


def _by_interval(reader: ConfigReader, num_layers: int) -> LayerPlan | None:
    """Every n-th layer is full attention and the rest linear (Qwen3-Next), or attention at period and offset (Jamba)."""
    every, offset = reader.count("full_attention_interval"), None
    if every is None:
        every, offset = reader.count("attn_layer_period"), reader.count("attn_layer_offset", zero=True) or 0
    if every is None:
        return None
    remainder = every - 1 if offset is None else offset % every
    return _plan([(LayerKind.FULL, False) if i % every == remainder else (LayerKind.NONE, True) for i in range(num_layers)])


def _by_window(reader: ConfigReader, num_layers: int) -> LayerPlan:
    """Plain attention: all full, all window, every n-th full, or the upper layers window; else a window without a pattern is open."""
    window, chunk = _window(reader), reader.count("attention_chunk_size")
    model_type = reader.text("model_type") or ""
    near = LayerKind.WINDOW if window else LayerKind.CHUNKED
    full = (LayerKind.FULL, False)
    # A number beside use_sliding_window=false is a leftover: the model's own config class drops it.
    if (window is None and chunk is None) or (reader.flag("use_sliding_window") is False and chunk is None):
        return _plan([full] * num_layers)
    every = reader.count("sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval")
    every = every or DEFAULT_FULL_EVERY.get(model_type)
    if every is None and reader.architecture == "Llama4ForConditionalGeneration":
        every = DEFAULT_FULL_EVERY["llama4"]
    if every is not None:
        return _plan([full if (i + 1) % every == 0 else (near, False) for i in range(num_layers)], window or chunk)
    if reader.flag("use_sliding_window"):
        first = reader.count("max_window_layers", zero=True)
        return _plan([full if i < (first or 0) else (near, False) for i in range(num_layers)], window)
    if model_type in ALL_WINDOW_MODELS:
        return _plan([(near, False)] * num_layers, window)
    unknown = Unknown(
        field="swa_num_layers",
        text=f"a window of {window or chunk} tokens is stated, but not which layers use it",
        settle="layer_types or architectures of config.json, or the 'Use sliding window memory pool' line of a start-up log",
    )
    return _plan([(LayerKind.UNSTATED, False)] * num_layers, window or chunk, unknowns=(unknown,))
