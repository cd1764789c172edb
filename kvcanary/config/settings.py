"""The settings: one frozen object behind the form, the URL, files and the command line.

Illegal values (a pool of 0 slots) can be held, so that every problem can be shown at once; only text that is no value at all
is refused here. The rules live in `rules.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from kvcanary import units
from kvcanary.config.findings import Finding, Fix, Severity
from kvcanary.errors import ConfigError

CanaryMode = Literal["none", "log", "raise"]
RealData = Literal["none", "partial", "all"]
KvDtype = Literal["auto", "bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1", "mxfp8"]
PrefillGraph = Literal["disabled", "breakable", "tc_piecewise", "full"]
DecodeGraph = Literal["full", "disabled"]
ModelDtype = Literal["unknown", "bfloat16", "float16", "float32"]


def setting(
    default: Any, label: str, help_text: str, *, flag: str = "", kind: Literal["count", "size", "fraction", "choice", "switch", "text"]
) -> Any:
    """Declare a field with what the form and the command line need: label, help, SGLang flag, how its text is read."""
    return Field(default=default, title=label, description=help_text, json_schema_extra={"flag": flag, "kind": kind})


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PoolSettings(_Group):
    """Sizes of the request table and the KV pool of one rank."""

    req_to_token_pool_size: int = setting(
        256,
        "Request rows",
        "Most requests that run at once on one data-parallel rank: rows of the request table (req_to_token).",
        flag="--max-running-requests",
        kind="count",
    )
    max_seq_len_per_req: int = setting(
        32768,
        "Tokens per request",
        "Widest row of the request table, which is the context length plus a few spare tokens.",
        flag="--context-length",
        kind="count",
    )
    pool_slot_count: int = setting(
        262144,
        "KV slots",
        "Tokens the KV pool of one rank can hold (max_total_num_tokens).",
        flag="--max-total-tokens",
        kind="count",
    )
    page_size: int = setting(1, "Page size", "Slots per page; the pool is cut into whole pages.", flag="--page-size", kind="count")
    max_total_tokens: int | None = setting(
        None,
        "Cap on KV slots",
        "The operator's own upper limit for the pool before rounding to pages; empty means no limit.",
        flag="--max-total-tokens",
        kind="count",
    )
    pool_class: str = setting(
        "MHATokenToKVPool", "Pool class", "SGLang's memory pool class; only four of them can carry a canary.", kind="text"
    )
    sliding_window: int | None = setting(
        None, "Sliding window", "Window of the sliding-window layers in tokens; empty means none.", kind="count"
    )
    swa_full_tokens_ratio: float = setting(
        0.8, "Window pool ratio", "Slots of the window pool over slots of the full pool.", flag="--swa-full-tokens-ratio", kind="fraction"
    )
    enable_hierarchical_cache: bool = setting(
        False, "Host cache tier", "KV may be moved to host memory and back (HiCache).", flag="--enable-hierarchical-cache", kind="switch"
    )
    disable_radix_cache: bool = setting(
        False, "Radix cache off", "No prefix cache: the sweep has nothing to walk.", flag="--disable-radix-cache", kind="switch"
    )


class BatchSettings(_Group):
    """What one forward pass may hold."""

    cuda_graph_max_bs: int | None = setting(
        256,
        "CUDA-graph batch",
        "Largest decode batch captured as a CUDA graph; empty means no decode graph.",
        flag="--cuda-graph-max-bs-decode",
        kind="count",
    )
    speculative_num_draft_tokens: int | None = setting(
        None,
        "Draft tokens",
        "Tokens per request and step under speculative decoding; empty means none.",
        flag="--speculative-num-draft-tokens",
        kind="count",
    )
    speculative_eagle_topk: int | None = setting(
        None,
        "Draft branches",
        "Branches of the draft tree (EAGLE topk); above 1 the chain is a tree.",
        flag="--speculative-eagle-topk",
        kind="count",
    )
    max_prefill_tokens: int = setting(
        16384, "Prefill budget", "Most prompt tokens in one forward.", flag="--max-prefill-tokens", kind="count"
    )
    chunked_prefill_size: int | None = setting(
        8192,
        "Prefill chunk",
        "Longest piece of a prompt in one forward; empty or negative means chunking off.",
        flag="--chunked-prefill-size",
        kind="count",
    )
    enable_mixed_chunk: bool = setting(
        False, "Mixed chunk", "Decode rows ride along in a prefill chunk.", flag="--enable-mixed-chunk", kind="switch"
    )
    cuda_graph_backend_prefill: PrefillGraph = setting(
        "disabled", "Prefill graphs", "How prefill is captured.", flag="--cuda-graph-backend-prefill", kind="choice"
    )
    cuda_graph_backend_decode: DecodeGraph = setting(
        "full", "Decode graphs", "Whether decode is captured.", flag="--cuda-graph-backend-decode", kind="choice"
    )
    dp_size: int = setting(1, "Data-parallel ranks", "Data-parallel size; each rank has its own pool.", flag="--dp-size", kind="count")
    enable_dp_attention: bool = setting(
        False,
        "DP attention",
        "Attention is data-parallel: limits given on the command line are global.",
        flag="--enable-dp-attention",
        kind="switch",
    )
    max_running_requests: int | None = setting(
        None,
        "Running requests asked for",
        "The number given on the command line, over all ranks; empty means the engine chooses.",
        flag="--max-running-requests",
        kind="count",
    )
    global_chunked_prefill_size: int | None = setting(
        None,
        "Chunk asked for",
        "The chunk size given on the command line under DP attention, over all ranks.",
        flag="--chunked-prefill-size",
        kind="count",
    )


class CanarySettings(_Group):
    """Options of the canary itself."""

    mode: CanaryMode = setting(
        "log", "Canary mode", "none = off, log = report and go on, raise = stop at the first violation.", flag="--kv-canary", kind="choice"
    )
    real_data: RealData = setting(
        "none",
        "Real KV hash",
        "How much of the KV bytes is hashed: none, the first 16 bytes of a layer-0 row, or the whole row.",
        flag="--kv-canary-real-data",
        kind="choice",
    )
    sweep_interval: int = setting(
        0,
        "Sweep interval",
        "Every so many forwards verify all cached slots; 0 means never.",
        flag="--kv-canary-sweep-interval",
        kind="count",
    )
    ring_capacity: int = setting(
        1024, "Ring rows", "Violations kept; later ones are only counted.", flag="SGLANG_KV_CANARY_RING_CAPACITY", kind="count"
    )
    verify_v_half: bool = setting(False, "V half", "Verify the V buffers too.", flag="SGLANG_KV_CANARY_ENABLE_MHA_V", kind="switch")
    verify_token_assert: bool = setting(
        False,
        "Token check",
        "Compare stored tokens with the request's own token ids when verifying.",
        flag="SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT",
        kind="switch",
    )
    write_input_assert: bool = setting(
        False,
        "Input check",
        "Compare inputs with a token oracle when stamping (tests).",
        flag="SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT",
        kind="switch",
    )


class ModelSettings(_Group):
    """KV geometry; empty means not known."""

    model: str = setting("", "Model", "Name shown beside the plan; nothing is looked up.", kind="text")
    num_layers: int | None = setting(None, "Layers", "Layers that keep KV.", kind="count")
    num_kv_heads: int | None = setting(None, "KV heads", "Key/value heads of the whole model, before tensor parallelism.", kind="count")
    head_dim: int | None = setting(None, "Head size (K)", "Elements of one K head.", kind="count")
    v_head_dim: int | None = setting(None, "Head size (V)", "Elements of one V head; empty means as K.", kind="count")
    kv_lora_rank: int | None = setting(
        None, "Latent rank", "Latent attention (MLA): elements of the compressed KV; empty means none.", kind="count"
    )
    qk_rope_head_dim: int | None = setting(
        None, "Latent rope size", "Latent attention (MLA): elements of the shared rotary key.", kind="count"
    )
    swa_num_layers: int | None = setting(
        None, "Window layers", "How many of the layers use the sliding window; empty means none.", kind="count"
    )
    swa_num_kv_heads: int | None = setting(
        None, "KV heads (window)", "Key/value heads of the sliding-window layers; empty means as the other layers.", kind="count"
    )
    swa_head_dim: int | None = setting(
        None, "Head size K (window)", "Elements of one K head in the sliding-window layers; empty means as the other layers.", kind="count"
    )
    swa_v_head_dim: int | None = setting(
        None, "Head size V (window)", "Elements of one V head in the sliding-window layers; empty means as their K.", kind="count"
    )
    index_head_dim: int | None = setting(
        None, "Index key size", "Sparse attention: elements of the index key kept beside the KV; empty means none.", kind="count"
    )
    index_num_layers: int | None = setting(
        None, "Index layers", "How many layers keep an index key; empty means all that have KV.", kind="count"
    )
    num_idle_layers: int | None = setting(
        None,
        "Layers without KV",
        "Layers that keep neither token KV nor a state; SGLang's plain pool allocates a buffer for each of them all the same.",
        kind="count",
    )
    num_state_layers: int | None = setting(
        None, "State layers", "Layers that keep a state per request (linear attention, Mamba); the canary does not cover it.", kind="count"
    )
    state_bytes_per_request: int | None = setting(
        None, "State per request", "Bytes of that state for one request on one rank; empty means not known.", kind="size"
    )
    draft_num_layers: int | None = setting(
        None, "Draft layers", "Layers of the draft model's own KV pool under speculative decoding; empty means not known.", kind="count"
    )
    model_dtype: ModelDtype = setting(
        "unknown", "Model dtype", "Type of the model itself; a KV dtype of auto takes it.", flag="--dtype", kind="choice"
    )
    kv_bytes_per_token: int | None = setting(
        None,
        "KV bytes per token",
        "Bytes of K and V that one token takes on one rank, where known from a log; replaces the arithmetic over layers and heads.",
        kind="size",
    )
    kv_dtype: KvDtype = setting(
        "auto", "KV dtype", "Type of the cached K and V; auto is the model's own.", flag="--kv-cache-dtype", kind="choice"
    )


class MemorySettings(_Group):
    """The memory side of one accelerator."""

    device: str = setting(
        "cuda", "Device", "Device type SGLang runs on (cuda, hip, xpu, cpu) or a name from the device list.", flag="--device", kind="text"
    )
    device_memory_bytes: int | None = setting(None, "Device memory", "Memory of one accelerator; empty means not known.", kind="size")
    weight_bytes: int | None = setting(None, "Weights per rank", "Memory of the weights on one rank; empty means not known.", kind="size")
    mem_fraction_static: float | None = setting(
        None,
        "Static fraction",
        "Share of the memory for weights and KV pool; empty means the engine chooses.",
        flag="--mem-fraction-static",
        kind="fraction",
    )
    free_before_load_bytes: int | None = setting(
        None,
        "Free before loading",
        "Free memory before the weights are loaded, which is what the static fraction applies to; empty means not known.",
        kind="size",
    )
    graph_bytes: int | None = setting(
        None, "Decode graphs", "Memory that the captured graphs take, from a start-up log; empty means not known.", kind="size"
    )
    post_capture_kv_sizing: bool = setting(
        False,
        "Size pool after capture",
        "The pool is resized after graph capture and the canary's workspace is reserved for it.",
        flag="SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
        kind="switch",
    )
    tp_size: int = setting(1, "Tensor-parallel ranks", "Tensor-parallel size.", flag="--tp-size", kind="count")
    pp_size: int = setting(1, "Pipeline ranks", "Pipeline-parallel size.", flag="--pp-size", kind="count")


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One settings field as the form, the URL, the command line and importers see it."""

    name: str
    group: str
    label: str
    help: str
    flag: str
    kind: str
    default: Any
    optional: bool
    choices: tuple[str, ...]


class Settings(_Group):
    """All settings of one rank. Flat field names are unique over the groups; they are the contract of every input."""

    pool: PoolSettings = PoolSettings()
    batch: BatchSettings = BatchSettings()
    canary: CanarySettings = CanarySettings()
    model: ModelSettings = ModelSettings()
    memory: MemorySettings = MemorySettings()

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """Build from flat names; text is parsed, missing names take the default.

        Raises SettingsTextError with one finding per field that is unknown or unreadable.
        """
        settings, problems = read_flat(values)
        if problems:
            raise SettingsTextError(problems)
        return cls.model_validate(settings.model_dump())

    def to_flat(self) -> dict[str, Any]:
        """Flat names to typed values, in form order; `from_flat` of it gives an equal object."""
        return {name: getattr(getattr(self, spec.group), name) for name, spec in FIELDS.items()}

    def replace(self, **changes: Any) -> Self:
        """A copy with some flat fields changed."""
        return type(self).from_flat({**self.to_flat(), **changes})


class SettingsTextError(ConfigError):
    """Some fields hold text that is no value; `.findings` has one entry per field."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("; ".join(finding.message for finding in findings))
        self.findings = findings


def _spec(group: str, name: str, info: FieldInfo) -> FieldSpec:
    extra = info.json_schema_extra
    assert isinstance(extra, dict), f"{name} is not declared with setting()"
    optional = get_origin(info.annotation) in (Union, UnionType) and type(None) in get_args(info.annotation)
    choices = tuple(get_args(info.annotation)) if extra["kind"] == "choice" else ()
    return FieldSpec(
        name, group, info.title or name, info.description or "", str(extra["flag"]), str(extra["kind"]), info.default, optional, choices
    )


GROUPS: dict[str, type[BaseModel]] = {
    "pool": PoolSettings,
    "batch": BatchSettings,
    "canary": CanarySettings,
    "model": ModelSettings,
    "memory": MemorySettings,
}
FIELDS: dict[str, FieldSpec] = {
    name: _spec(group, name, info) for group, model in GROUPS.items() for name, info in model.model_fields.items()
}

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def parse_field(name: str, raw: Any) -> Any:
    """One value, typed, from text or from an already typed value; ConfigError names the field, the rule and what was received."""
    spec = FIELDS.get(name)
    if spec is None:
        raise ConfigError(f"{name}: unknown settings field; known fields: {', '.join(FIELDS)}")
    try:
        if isinstance(raw, str):
            return _parse_text(spec, raw)
        return _check_typed(spec, raw)
    except ConfigError as error:
        raise ConfigError(f"{name} {error}") from None


def _parse_text(spec: FieldSpec, raw: str) -> Any:
    text = raw.strip()
    if not text and spec.kind != "text":
        if spec.optional:
            return None
        raise ConfigError(f"must not be empty; its default is {format_field(spec.name, spec.default)}")
    if spec.kind == "count":
        return units.parse_integer(text)
    if spec.kind == "size":
        return units.parse_size(text)
    if spec.kind == "fraction":
        return units.parse_fraction(text)
    if spec.kind == "switch":
        if text.lower() not in _TRUE + _FALSE:
            raise ConfigError(f"must be true or false, got {text[:40]!r}")
        return text.lower() in _TRUE
    if spec.kind == "choice":
        if text.lower() not in spec.choices:
            raise ConfigError(f"must be one of {'/'.join(spec.choices)}, got {text[:40]!r}")
        return text.lower()
    if len(text) > 200 or not text.isprintable():
        raise ConfigError("must be printable text of at most 200 characters")
    return text


def _check_typed(spec: FieldSpec, raw: Any) -> Any:
    if raw is None:
        if spec.optional:
            return None
        raise ConfigError("must not be empty, got null")
    least = 0 if spec.kind == "size" else -units.INT64_MAX
    if spec.kind in ("count", "size") and isinstance(raw, int) and not isinstance(raw, bool) and least <= raw <= units.INT64_MAX:
        return raw
    if spec.kind == "fraction" and isinstance(raw, int | float) and not isinstance(raw, bool) and abs(raw) < 1e18:
        return float(raw)
    if spec.kind == "switch" and isinstance(raw, bool):
        return raw
    raise ConfigError(f"must be a {spec.kind}, got {_received(raw)} ({type(raw).__name__})")


def _received(raw: Any) -> str:
    try:
        return repr(str(raw)[:40])
    except ValueError:  # The interpreter writes no number of several thousand digits.
        return "thousands of digits"


def read_flat(values: Mapping[str, Any]) -> tuple[Settings, list[Finding]]:
    """Settings from whatever is readable, with a finding for each field that is not; unreadable fields hold their default.

    A caller that shows rule findings beside these must leave out the ones about the unreadable fields.
    """
    grouped: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    problems: list[Finding] = []
    for name, raw in values.items():
        try:
            grouped[FIELDS[name].group if name in FIELDS else "pool"][name] = parse_field(name, raw)
        except ConfigError as error:
            problems.append(_text_finding(name, str(error)))
    return Settings.model_validate(grouped), problems


def _text_finding(name: str, message: str) -> Finding:
    spec = FIELDS.get(name)
    fixes: tuple[Fix, ...] = ()
    why = "No such field; the link or file may come from another version."
    if spec is not None:
        shown = format_field(name, spec.default) or "empty"
        fixes = (Fix(field=name, value=spec.default, flag=flag_text(name, spec.default), text=f"set {name} to {shown}"),)
        why = "The text is not a value of this field, so nothing was computed from it."
    return Finding(rule="unreadable", severity=Severity.ERROR, fields=(name,), message=message, why=why, fixes=fixes, source="settings")


def format_field(name: str, value: Any) -> str:
    """The text form of a value; `parse_field` reads it back to an equal value."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # Never 1e-05: the readers of fractions and SGLang's users know digits only.
        return format(Decimal(repr(value)), "f")
    return str(value)


def flag_text(name: str, value: Any) -> str:
    """How the value is given to SGLang: '--page-size 64', 'SGLANG_…=1' or '' where there is no flag."""
    flag = FIELDS[name].flag
    if not flag or value is None:
        return ""
    if flag.startswith("SGLANG_"):
        return f"{flag}={int(value) if isinstance(value, bool) else value}"
    if isinstance(value, bool):
        return flag if value else ""
    return f"{flag} {value}"
