"""Memory of one rank, line by line: weights, KV pool, canary, tables, graphs, and what is left.

SGLang splits a device in two shares. The static share (mem_fraction_static of the memory that was free before loading) pays weights, KV
slots and states. Everything else comes out of the rest, also the canary: its buffers are allocated after the pool was sized, and its
per-forward workspace is reserved only where the pool is sized again after graph capture (release 0.5.20 and later). A plan over either
share is a result with remedies, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache

from kvcanary.config.capacities import canary_line_items
from kvcanary.config.defaults import activation_reserve_bytes, window_slots
from kvcanary.config.formula import LineItem
from kvcanary.config.geometry import KvGeometry, Split, Unknown
from kvcanary.config.kv_parts import RankKv
from kvcanary.config.settings import Settings
from kvcanary.config.stated_geometry import geometry_from_settings, rank_from_settings
from kvcanary.errors import ConfigError
from kvcanary.units import format_bytes

POOL_SOURCE = "SGLang 0.5.23, memory_pool.py: a pool has page_size spare rows for padded tokens"
SIZING_SOURCE = "SGLang 0.5.23, pool_configurator.py"


class Share(StrEnum):
    """Who pays a line. static: the mem_fraction_static share · slack: the rest of the device, SGLang does not count it when it sizes the
    pool · reserved: as slack, but with sizing after capture SGLang takes it off the pool."""

    STATIC = "static"
    RESERVED = "reserved"
    SLACK = "slack"


class Verdict(StrEnum):
    """Whether the plan fits: over with what is known already, or fits with everything known, or open."""

    FITS = "fits"
    OVER = "over"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """One line of the plan: a LineItem with who pays it, or the reason why its bytes are not known."""

    name: str
    label: str
    part: str
    share: Share
    item: LineItem | None = None
    unknown: Unknown | None = None

    @property
    def bytes(self) -> int | None:
        """Bytes on this rank, None where unknown."""
        return None if self.item is None else self.item.bytes

    @property
    def in_words(self) -> str:
        """The label inside a sentence: 'the weights', 'the KV pool'."""
        return _in_words(self.label)


def _in_words(label: str) -> str:
    return f"the {label if label[1].isupper() else label[0].lower() + label[1:]}"


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Memory of one rank for one set of settings.

    `budget_bytes` is the memory that was free before loading (else the device's own memory, see `budget_note`), None where neither is
    known; then there is no headroom and no verdict but the lines stand.
    """

    settings: Settings
    geometry: KvGeometry
    rank: RankKv | Unknown
    lines: tuple[PlanLine, ...]
    budget_bytes: int | None
    budget_note: str
    given_geometry: KvGeometry | None = None
    given_draft: KvGeometry | None = None

    def replan(self, settings: Settings) -> MemoryPlan:
        """The plan of other settings for the same model."""
        return memory_plan(settings, self.given_geometry, self.given_draft)

    @cached_property
    def known_bytes(self) -> int:
        """Sum of all lines whose bytes are known."""
        return self.sum_of(self.lines)

    @cached_property
    def unknown_lines(self) -> tuple[PlanLine, ...]:
        """Lines that count towards the total but whose bytes are not known."""
        return tuple(line for line in self.lines if line.bytes is None)

    @property
    def headroom_bytes(self) -> int | None:
        """Budget less the known lines; negative is over budget. With unknown lines it is an upper limit."""
        return None if self.budget_bytes is None else self.budget_bytes - self.known_bytes

    @property
    def canary_bytes(self) -> int:
        """All lines that exist only because the canary is on."""
        return self.sum_of(line for line in self.lines if line.part in CANARY_PARTS)

    @property
    def static_limit_bytes(self) -> int | None:
        """The static share in bytes; None while mem_fraction_static or the budget is not known.

        When the pool is sized after capture and decode graphs do not cover all request rows, SGLang keeps more free for eager batches.
        """
        memory, batch = self.settings.memory, self.settings.batch
        if memory.mem_fraction_static is None or self.budget_bytes is None:
            return None
        kept_free = int(self.budget_bytes * (1 - memory.mem_fraction_static))
        gap = batch.cuda_graph_backend_decode != "disabled" and (batch.cuda_graph_max_bs or 0) < self.settings.pool.req_to_token_pool_size
        if memory.post_capture_kv_sizing and gap:
            kept_free = max(kept_free, activation_reserve_bytes(self.settings))
        return self.budget_bytes - kept_free

    @cached_property
    def static_bytes(self) -> int:
        """Known lines that the static share pays, with those that SGLang takes off the pool."""
        return self.sum_of(line for line in self.lines if line.share is not Share.SLACK)

    @property
    def static_left_bytes(self) -> int | None:
        """Static share less its known lines; negative: SGLang makes the pool smaller than asked for, or does not start."""
        return None if self.static_limit_bytes is None else self.static_limit_bytes - self.static_bytes

    @property
    def verdict(self) -> Verdict:
        """over as soon as the known lines exceed a share; fits only with nothing unknown."""
        spare = [left for left in (self.headroom_bytes, self.static_left_bytes) if left is not None]
        if any(left < 0 for left in spare):
            return Verdict.OVER
        return Verdict.OPEN if self.unknown_lines or self.headroom_bytes is None else Verdict.FITS

    @property
    def summary(self) -> str:
        """One sentence: the total against the budget, and what is missing from it."""
        total = f"{'at least ' if self.unknown_lines else ''}{format_bytes(self.known_bytes)}"
        unknown = ", ".join(line.in_words for line in self.unknown_lines)
        if self.budget_bytes is None or self.headroom_bytes is None:
            return f"{total} needed; not known: the memory of the device{f', {unknown}' if unknown else ''}"
        missing = f"; not known: {unknown}" if unknown else ""
        side = f"{format_bytes(self.headroom_bytes)} left" if self.headroom_bytes >= 0 else f"{format_bytes(-self.headroom_bytes)} over"
        return f"{total} of {format_bytes(self.budget_bytes)}: {side}{missing}"

    def line(self, name: str) -> PlanLine:
        """The line of that name; ConfigError if there is none."""
        for line in self.lines:
            if line.name == name:
                return line
        raise ConfigError(f"no memory line {name!r}; lines: {', '.join(line.name for line in self.lines)}")

    @staticmethod
    def sum_of(lines: Iterable[PlanLine]) -> int:
        """Known bytes of some lines."""
        return sum(line.bytes or 0 for line in lines)


CANARY_PARTS = ("canary buffers", "canary workspace", "canary ring", "canary tables")


def memory_plan(settings: Settings, geometry: KvGeometry | None = None, draft: KvGeometry | None = None) -> MemoryPlan:
    """Plan one rank. Geometry defaults to the model fields of the settings, the draft to `draft_num_layers` layers like the target's.

    Raises ConfigError for sizes that are no sizes (a page of 0, negative bytes); a pool that is too small or too large is a result.
    """
    return _stated_plan(settings) if geometry is None and draft is None else _plan(settings, geometry, draft)


# Several questions about one plan try the same other plans.
@lru_cache(maxsize=128)
def _stated_plan(settings: Settings) -> MemoryPlan:
    return _plan(settings, None, None)


def _plan(settings: Settings, given: KvGeometry | None, draft: KvGeometry | None) -> MemoryPlan:
    if settings.pool.page_size < 1:
        raise ConfigError(f"page_size must be at least 1, got {settings.pool.page_size}")
    fraction = settings.memory.mem_fraction_static
    if fraction is not None and not 0 < fraction < 1:
        raise ConfigError(f"mem_fraction_static must be between 0 and 1, got {fraction}")
    geometry = geometry_from_settings(settings) if given is None else given
    split = Split.from_settings(settings)
    rank = rank_from_settings(settings, split) if given is None else given.rank(split)
    budget, note = _budget(settings)
    lines = [
        _stated(
            "weights",
            "Weights",
            "weights",
            Share.STATIC,
            settings.memory.weight_bytes,
            "weight_bytes",
            "the log line 'Load weight end ... mem usage', or total_size of model.safetensors.index.json over the ranks",
        ),
        *_pool_lines(settings, geometry, rank),
        *_draft_lines(settings, geometry, draft),
        *_state_lines(settings, geometry),
        *_canary_lines(settings),
        *_table_lines(settings, geometry),
        *_graph_lines(settings),
    ]
    if settings.memory.post_capture_kv_sizing:
        lines = [replace(line, share=Share.RESERVED) if line.share is Share.SLACK else line for line in lines]
    return MemoryPlan(
        settings=settings, geometry=geometry, rank=rank, lines=tuple(lines), budget_bytes=budget, budget_note=note,
        given_geometry=given, given_draft=draft,
    )  # fmt: skip


def _budget(settings: Settings) -> tuple[int | None, str]:
    memory = settings.memory
    for name in ("free_before_load_bytes", "device_memory_bytes", "weight_bytes", "graph_bytes"):
        if (value := getattr(memory, name)) is not None and value < 0:
            raise ConfigError(f"{name} must not be negative, got {value}")
    if memory.free_before_load_bytes is not None:
        return memory.free_before_load_bytes, "free memory before the weights are loaded"
    if memory.device_memory_bytes is not None:
        return (
            memory.device_memory_bytes,
            "all memory of the device; what is free before loading is a little less (context, other processes)",
        )
    return None, "neither the device nor its memory is stated"


def _stated(name: str, label: str, part: str, share: Share, value: int | None, field: str, settle: str) -> PlanLine:
    if value is None:
        return _open(name, label, part, share, Unknown(field=field, text=f"{_in_words(label)} are not stated", settle=settle))
    return _line(share, LineItem(name=name, label=label, part=part, bytes=value, formula=field, terms={field: value}, source="stated"))


def _line(share: Share, item: LineItem) -> PlanLine:
    return PlanLine(name=item.name, label=item.label, part=item.part, share=share, item=item)


def _open(name: str, label: str, part: str, share: Share, unknown: Unknown) -> PlanLine:
    return PlanLine(name=name, label=label, part=part, share=share, unknown=unknown)


def _pool_lines(settings: Settings, geometry: KvGeometry, rank: RankKv | Unknown) -> list[PlanLine]:
    """KV slots (static share) and the spare page of each pool (slack: the sizing does not count it)."""
    if isinstance(rank, Unknown):
        return [_open("kv_pool", "KV pool", "kv", Share.STATIC, rank)]
    if geometry.window_pool is None:
        unknown = next((unknown for unknown in geometry.unknowns if unknown.field in ("pool_class", "swa_num_layers")), None)
        fallback = Unknown(field="pool_class", text="it is open which pool holds the window layers", settle="architectures of config.json")
        return [_open("kv_pool", "KV pool", "kv", Share.STATIC, unknown or fallback)]
    pool = settings.pool
    slots = max(0, pool.pool_slot_count)
    full = rank.pool_bytes("full")
    lines = _slot_lines("kv_pool", "KV pool", slots, pool.page_size, full, rank.pool_formula("full"))
    if geometry.window_pool:
        # A model of window layers alone has no full pool to take a share of.
        small = window_slots(slots, pool.page_size, pool.swa_full_tokens_ratio if full else 1.0)
        lines += _slot_lines("kv_window_pool", "KV window pool", small, pool.page_size, rank.pool_bytes("swa"), rank.pool_formula("swa"))
    return lines


def _slot_lines(name: str, label: str, slots: int, page_size: int, slot_bytes: int, per_slot: str) -> list[PlanLine]:
    pool = LineItem(
        name=name, label=label, part="kv", bytes=slots * slot_bytes, formula="slots * bytes_per_slot",
        terms={"slots": slots, "bytes_per_slot": slot_bytes}, source=SIZING_SOURCE, note=f"bytes per slot: {per_slot} = {slot_bytes}",
    )  # fmt: skip
    spare = LineItem(
        name=f"{name}_spare_page", label=f"{label}, spare page", part="kv", bytes=page_size * slot_bytes,
        formula="page_size * bytes_per_slot", terms={"page_size": page_size, "bytes_per_slot": slot_bytes},
        source=POOL_SOURCE, note="the sizing does not count it",
    )  # fmt: skip
    return [_line(Share.STATIC, pool), _line(Share.SLACK, spare)]


def draft_cell_bytes(settings: Settings, geometry: KvGeometry, draft: KvGeometry | None = None) -> int | Unknown:
    """Bytes of the draft model's KV per slot on this rank; 0 without speculation."""
    if not settings.batch.speculative_num_draft_tokens:
        return 0
    if draft is None:
        if geometry.draft_layers is None:
            return Unknown(
                field="draft_num_layers",
                text="the draft model's layers are not stated",
                settle="num_nextn_predict_layers or the draft's config.json, or the second 'KV Cache is allocated' line of a start-up log",
            )
        if not geometry.layers:
            return Unknown(field="draft_num_layers", text="the draft's KV sizes are not stated", settle="the draft's config.json")
        draft = geometry.draft(geometry.draft_layers)
    # A draft model is not cut by pipeline; SGLang runs it on the last stage.
    rank = draft.rank(Split(attn_tp_size=Split.from_settings(settings).attn_tp_size))
    return rank if isinstance(rank, Unknown) else rank.pool_bytes("full") + rank.pool_bytes("swa")


def _draft_lines(settings: Settings, geometry: KvGeometry, draft: KvGeometry | None) -> list[PlanLine]:
    cell = draft_cell_bytes(settings, geometry, draft)
    if isinstance(cell, Unknown):
        return [_open("draft_kv_pool", "Draft KV pool", "kv", Share.STATIC, cell)]
    if not cell:
        return []
    layers = geometry.draft_layers if draft is None else len(draft.layers)
    pool = settings.pool
    return _slot_lines("draft_kv_pool", "Draft KV pool", max(0, pool.pool_slot_count), pool.page_size, cell, f"{layers} draft layers")


def _state_lines(settings: Settings, geometry: KvGeometry) -> list[PlanLine]:
    """Per-request state of linear and Mamba layers: SGLang sizes it by a ratio of the free memory, which only a log or a flag states."""
    layers = geometry.state_layers or (settings.model.num_state_layers or 0)
    if not layers:
        return []
    size = settings.model.state_bytes_per_request
    each = f" of {format_bytes(size)}" if size is not None else ""
    unknown = Unknown(
        field="state_bytes_per_request",
        text=f"{layers} layers keep a state{each} per request, not covered by the canary; how many SGLang allocates is not settled",
        settle="--max-mamba-cache-size, or 'Mamba Cache is allocated' of a start-up log",
    )
    return [_open("state_cache", "State cache (not covered)", "state", Share.STATIC, unknown)]


def _canary_lines(settings: Settings) -> list[PlanLine]:
    try:
        items = canary_line_items(settings)
    except ConfigError as error:
        unknown = Unknown(field="pool_slot_count", text=str(error), settle="settings that the canary accepts")
        return [_open("canary", "Canary", "canary buffers", Share.SLACK, unknown)]
    return [_line(Share.SLACK, item) for item in items]


def _table_lines(settings: Settings, geometry: KvGeometry) -> list[PlanLine]:
    pool = settings.pool
    rows, width, slots = max(0, pool.req_to_token_pool_size), max(0, pool.max_seq_len_per_req), max(0, pool.pool_slot_count)
    table = LineItem(
        name="request_table", label="Request table", part="tables", bytes=4 * (rows + 1) * width,
        formula="4 * (req_to_token_pool_size + 1) * max_seq_len_per_req",
        terms={"req_to_token_pool_size": rows, "max_seq_len_per_req": width},
        source="SGLang 0.5.23, ReqToTokenPool: int32 [rows + 1, width], row 0 is padding",
    )  # fmt: skip
    lines = [_line(Share.SLACK, table)]
    if geometry.window_pool:
        index = LineItem(
            name="window_index", label="Window slot table", part="tables", bytes=8 * (slots + pool.page_size + 1),
            formula="8 * (pool_slot_count + page_size + 1)", terms={"pool_slot_count": slots, "page_size": pool.page_size},
            source="SGLang 0.5.23, full_to_swa_index_mapping: int64 per full slot",
        )  # fmt: skip
        lines.append(_line(Share.SLACK, index))
    return lines


def _graph_lines(settings: Settings) -> list[PlanLine]:
    batch = settings.batch
    if not batch.cuda_graph_max_bs and batch.cuda_graph_backend_prefill == "disabled":
        return []
    if batch.cuda_graph_backend_decode == "disabled" and batch.cuda_graph_backend_prefill == "disabled":
        return []
    settle = "'mem usage' of the 'Capture ... CUDA graph end' lines of a start-up log"
    return [_stated("graphs", "CUDA graphs", "graphs", Share.SLACK, settings.memory.graph_bytes, "graph_bytes", settle)]
