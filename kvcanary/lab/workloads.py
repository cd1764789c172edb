"""What a benchmark will run, worked out from the settings before anything starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvcanary import layout
from kvcanary.config.capacities import LaunchCapacities
from kvcanary.config.defaults import capture_batch_sizes
from kvcanary.config.geometry import Split
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from kvcanary.kernels.backends import check_choice
from kvcanary.lab.records import BenchmarkSpec
from kvcanary.lab.shape import SceneShape, scene_bytes
from kvcanary.lab.usable_memory import usable_bytes
from kvcanary.layout import RealKvHashMode
from kvcanary.units import format_bytes, format_count, format_seconds

DEFAULT_ROW_BYTES = 2048
MEMORY_SHARE = 0.8
_SWEEP_LENGTH = 4096
# Chains of one length at every size, short enough for several in the smallest pool: what differs between sizes is the size alone.
_SIZED_LENGTH = 512
# KV rows far beyond the caches of any machine; larger ones would cost minutes to fill and show nothing new.
_SIZED_ROWS_BYTES = 2 << 30
# Measured with numba on two cores, rounded to the slow side: they serve the estimate only.
_START_S, _BUILD_BYTES_PER_S, _HASHED_BYTES_PER_S = 5.0, 1.0e9, 5.0e9
_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
_ELEMENT_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "float32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """How much effort: decode batches at most, repeats and seconds per timed operation, prefix tokens, layouts, one hash mode or all.

    With `sizes`, pools of so many slots are swept instead of the settings' own, and decode is left to the other presets.
    """

    name: str
    batches: int
    min_repeats: int
    seconds: float
    prefix: int
    layouts: tuple[str, ...]
    every_hash_mode: bool
    sizes: tuple[int, ...] = ()


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(name="quick", batches=4, min_repeats=5, seconds=0.12, prefix=512, layouts=("contiguous",), every_hash_mode=False),
        Preset(
            name="standard", batches=8, min_repeats=15, seconds=0.3, prefix=1024, layouts=("contiguous", "shuffled"), every_hash_mode=True
        ),
        Preset(name="long", batches=64, min_repeats=31, seconds=0.8, prefix=2048, layouts=("contiguous", "shuffled"), every_hash_mode=True),
        Preset(
            name="limits",
            batches=0,
            min_repeats=7,
            seconds=0.1,
            prefix=0,
            layouts=("contiguous", "shuffled"),
            every_hash_mode=True,
            sizes=tuple(1 << power for power in range(12, 25, 2)),
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One point to measure: `shape` is its pool, `prefix` tokens are verified and `extend` stamped per request.

    A sweep verifies all tokens of the pool with one launch and, apart from that, stamps all of them with one.
    """

    kind: str
    shape: SceneShape
    prefix: int
    extend: int

    @property
    def layout(self) -> str:
        """contiguous or shuffled."""
        return "shuffled" if self.shape.shuffled else "contiguous"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkPlan:
    """Everything a run will do: its points, the final sweep's pool, what was left out and why, peak memory, and about how long."""

    workloads: tuple[Workload, ...]
    final: SceneShape
    skipped: tuple[str, ...]
    notes: tuple[str, ...]
    peak_bytes: int
    estimate_s: float
    row_bytes: int

    @property
    def sentence(self) -> str:
        """What will run, for the page and the command line."""
        kinds = [workload.kind for workload in self.workloads]
        parts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        page = self.final.page_size
        pages = f", {format_count(self.final.pages)} whole pages of {page}" if page > 1 else ""
        return (
            f"{len(kinds)} points ({parts}), then one sweep over a pool of {format_count(self.final.pool_slot_count)} slots{pages}; "
            f"about {format_seconds(self.estimate_s)} (an estimate), {format_bytes(self.peak_bytes)} of memory."
        )

    def to_document(self) -> dict[str, Any]:
        """What will run, as a versioned JSON document."""
        return {
            "schema": "kvcanary.benchmark_plan", "version": 1, "sentence": self.sentence, "estimate_s": self.estimate_s,
            "peak_bytes": self.peak_bytes, "row_bytes": self.row_bytes, "skipped": list(self.skipped), "notes": list(self.notes),
            "points": [
                {
                    "workload": workload.kind, "layout": workload.layout, "hash_mode": workload.shape.hash_mode.name.lower(),
                    "batch": workload.shape.requests, "prefix": workload.prefix, "extend": workload.extend,
                }
                for workload in self.workloads
            ],
        }  # fmt: skip


def plan_benchmark(spec: BenchmarkSpec, available_bytes: int | None = None) -> BenchmarkPlan:
    """Work out the points of a spec.

    `available_bytes` is the memory of the device that may be used, by default what `usable_bytes` finds. Raises ConfigError with
    SGLang's sentence for settings that do not start, and with the largest pool that fits when the memory does not suffice;
    BackendUnavailableError for a backend that does not exist or never works on the device.
    """
    if spec.preset not in PRESETS:
        raise ConfigError(f"preset must be one of {'/'.join(PRESETS)}, got {spec.preset!r}")
    check_choice(spec.backend, spec.device)
    if spec.seed < 0:
        raise ConfigError(f"seed must be 0 or more, got {spec.seed}; change --seed")
    if not _DEVICE.fullmatch(spec.device):
        raise ConfigError(f"device must be cpu or cuda:N (ROCm devices are called cuda, too), got {spec.device[:40]!r}")
    settings, preset = Settings.from_flat(spec.settings), PRESETS[spec.preset]
    if settings.pool.page_size < 1:
        raise ConfigError(f"page_size must be at least 1, got {settings.pool.page_size}")
    row_bytes, row_note = _row_bytes(settings)
    allowed = int((usable_bytes(spec.device) if available_bytes is None else available_bytes) * MEMORY_SHARE)
    builder = _build(settings, preset, row_bytes, allowed)
    _check_memory(builder, allowed)
    hashed = any(workload.shape.row_bytes for workload in builder.workloads)
    return BenchmarkPlan(
        workloads=tuple(builder.workloads),
        final=builder.final,
        skipped=tuple(builder.skipped),
        notes=(*([f"KV row of {row_bytes} bytes per slot: {row_note}"] if hashed else []), *_not_measured(settings)),
        peak_bytes=builder.peak_bytes,
        estimate_s=_estimate_s(builder.workloads, builder.final, preset),
        row_bytes=row_bytes,
    )


def _build(settings: Settings, preset: Preset, row_bytes: int, available: int) -> _Builder:
    """All points; `available` bytes limit the sizes of a preset that brings its own."""
    builder = _Builder(settings, preset, LaunchCapacities.from_settings(settings), row_bytes)
    modes = tuple(RealKvHashMode) if preset.every_hash_mode else (builder.mode,)
    if preset.sizes:
        builder.chain()
    for size in preset.sizes:
        for mode in modes:
            for name in preset.layouts:
                builder.sized(size, mode, available, shuffled=name == "shuffled")
    if preset.sizes:
        return builder
    for mode in modes:
        for shuffled in (name == "shuffled" for name in preset.layouts):
            builder.decode(mode, shuffled)
            builder.sweep(mode, shuffled)
        builder.prefill(mode)
    return builder


class _Builder:
    """Collects the points of one pool; raises ConfigError when it has no whole page."""

    def __init__(self, settings: Settings, preset: Preset, capacities: LaunchCapacities, row_bytes: int) -> None:
        self.settings, self.preset, self.capacities, self.row_bytes = settings, preset, capacities, row_bytes
        self.mode = RealKvHashMode[settings.canary.real_data.upper()]
        self.page, self.widest = settings.pool.page_size, settings.pool.max_seq_len_per_req
        self.pages = settings.pool.pool_slot_count // self.page
        if self.pages < 1:
            raise ConfigError(f"pool_slot_count {settings.pool.pool_slot_count} holds no whole page of {self.page} slots; raise it")
        self.slots = self.pages * self.page
        self.workloads: list[Workload] = []
        self.skipped: list[str] = []

    @property
    def final(self) -> SceneShape:
        """The pool of the last sweep."""
        return self.whole_pool(self.mode, shuffled=True)

    @property
    def peak_bytes(self) -> int:
        """Memory of the largest scene; the KV rows are shared, so two scenes never add up."""
        return max(scene_bytes(shape) for shape in (self.final, *(workload.shape for workload in self.workloads)))

    def decode(self, mode: RealKvHashMode, shuffled: bool) -> None:
        """Batches up to the request capacity, each request with the preset's prefix or what the pool can give it."""
        batch = self.settings.batch
        draft = batch.speculative_num_draft_tokens or 0
        extend = max(1, draft)
        sizes = {*capture_batch_sizes(batch.cuda_graph_max_bs or 0, speculative=draft > 0), self.capacities.write_req_capacity}
        for count in _thin(sorted(sizes), self.preset.batches):
            room = self._room(count) - extend
            if room < 1:
                self._skip(f"decode batch {count}: {count} requests of {extend + 1} tokens do not fit into {self.slots} slots")
                continue
            self._add("decode", count, min(self.preset.prefix, room), extend, mode, shuffled=shuffled)

    def prefill(self, mode: RealKvHashMode) -> None:
        """Chunks up to the write-entry capacity, as one prompt, as several prompts in one forward, and as the second chunk of one prompt."""
        for requests in (1, 16):
            tokens = min(self.capacities.write_entry_capacity // requests, self._room(requests))
            if tokens < 1 or requests > self.capacities.write_req_capacity:
                self._skip(f"prefill of {requests} prompts: more than the batch or the pool can hold")
                continue
            self._add("prefill", requests, 0, tokens, mode)
            if requests == 1 and 2 * tokens <= self._room(1):
                self._add("prefill", 1, tokens, tokens, mode)

    def sweep(self, mode: RealKvHashMode, shuffled: bool) -> None:
        """Every slot of the pool in one verify launch."""
        shape = self.whole_pool(mode, shuffled=shuffled)
        self.workloads.append(Workload(kind="sweep", shape=shape, prefix=shape.length, extend=shape.length))

    def chain(self) -> None:
        """One prompt alone, whose chain nothing can shorten."""
        self._add("prefill", 1, 0, min(self.capacities.write_entry_capacity, self._room(1)), RealKvHashMode.NONE)

    def sized(self, slots: int, mode: RealKvHashMode, available: int, *, shuffled: bool) -> None:
        """A pool of `slots` slots, full, swept and stamped whole; left out where it would not fit into `available` bytes."""
        length = -(-_SIZED_LENGTH // self.page) * self.page
        shape = replace(self._shape(0, length, mode, shuffled), num_slots=slots + self.page, requests=slots // length)
        if not shape.requests:
            self._skip(f"pools of {format_count(slots)} slots: a chain of {length} tokens does not fit")
        elif shape.row_bytes * slots > _SIZED_ROWS_BYTES:
            self._skip(f"real-KV hashing above {format_bytes(_SIZED_ROWS_BYTES)} of KV rows: larger pools take longer and show nothing new")
        elif scene_bytes(shape) > available:
            self._skip(f"pools of {format_count(slots)} slots and more: {format_bytes(scene_bytes(shape))} do not fit into memory")
        else:
            self.workloads.append(Workload(kind="sweep", shape=shape, prefix=length, extend=length))

    def whole_pool(self, mode: RealKvHashMode, *, shuffled: bool) -> SceneShape:
        """The pool filled with as many requests of up to 4096 tokens as it holds."""
        length = min(self.widest, self.slots, _SWEEP_LENGTH)
        return self._shape(self.pages // -(-length // self.page), length, mode, shuffled)

    def _room(self, requests: int) -> int:
        """Tokens that each of so many requests can have, in whole pages."""
        return min(self.pages // requests * self.page, self.widest)

    def _add(self, kind: str, requests: int, prefix: int, extend: int, mode: RealKvHashMode, *, shuffled: bool = False) -> None:
        shape = self._shape(requests, prefix + extend, mode, shuffled)
        self.workloads.append(Workload(kind=kind, shape=shape, prefix=prefix, extend=extend))

    def _shape(self, requests: int, length: int, mode: RealKvHashMode, shuffled: bool) -> SceneShape:
        return SceneShape(
            num_slots=self.slots + self.page,
            requests=requests,
            length=length,
            shuffled=shuffled,
            page_size=self.page,
            row_bytes=self.row_bytes if mode is not RealKvHashMode.NONE else 0,
            hash_mode=mode,
            ring_capacity=max(1, self.settings.canary.ring_capacity),
        )

    def _skip(self, reason: str) -> None:
        if reason not in self.skipped:
            self.skipped.append(reason)


def _thin(sizes: Sequence[int], limit: int) -> list[int]:
    """At most `limit` of the sizes, evenly spread by rank, always with the first and the last."""
    if len(sizes) <= limit:
        return list(sizes)
    return [sizes[round(step * (len(sizes) - 1) / (limit - 1))] for step in range(limit)]


def _row_bytes(settings: Settings) -> tuple[int, str]:
    """Bytes of one slot's K row in layer 0 on one rank, from the model fields, or a stated default."""
    model, element = settings.model, _ELEMENT_BYTES.get(settings.model.kv_dtype)
    if model.num_kv_heads and model.head_dim and element:
        heads = max(1, model.num_kv_heads // Split.from_settings(settings).attn_tp_size)
        size = heads * model.head_dim * element
        if size % layout.REAL_KV_ALIGNMENT == 0:
            return size, f"{heads} heads x {model.head_dim} x {element} bytes"
    return DEFAULT_ROW_BYTES, f"assumed: {DEFAULT_ROW_BYTES} bytes, since the model fields do not give a row that can be hashed"


def _not_measured(settings: Settings) -> list[str]:
    """What a server with these settings launches and this benchmark does not."""
    notes = []
    if settings.canary.verify_v_half:
        notes.append("the V half is on: the K half is timed, and a forward counted as if the V half took as long")
    if settings.pool.sliding_window:
        notes.append("the window group is not timed; it verifies at most sliding_window tokens per request, in launches of its own")
    return notes


def _estimate_s(workloads: Sequence[Workload], final: SceneShape, preset: Preset) -> float:
    """About how long, from rates of a two-core host: start and gate, then building each pool and timing each operation on it."""
    total = _START_S + scene_bytes(final) / _BUILD_BYTES_PER_S
    for workload in workloads:
        shape = workload.shape
        hashed = {RealKvHashMode.NONE: 0, RealKvHashMode.PARTIAL: layout.PARTIAL_BYTES}.get(shape.hash_mode, shape.row_bytes)
        per_token = (2 * layout.SLOT_BYTES + hashed) / _HASHED_BYTES_PER_S
        total += scene_bytes(shape) / _BUILD_BYTES_PER_S + shape.used * per_token
        heads = 0 if workload.kind == "sweep" or not hashed else 1
        for tokens in (workload.prefix, workload.extend):
            if tokens:
                once_s = shape.requests * tokens * per_token
                total += (2 + heads) * max(preset.seconds, (preset.min_repeats + 1) * once_s)
        total += 0.0 if workload.kind == "sweep" else preset.seconds
    return total


def _check_memory(builder: _Builder, allowed: int) -> None:
    needed = builder.peak_bytes
    if needed <= allowed:
        return
    fits = _largest_fit(builder, allowed)
    largest = f"the largest pool that fits is {format_count(fits)} slots: lower pool_slot_count" if fits else "not even one page fits"
    saving = ""
    if builder.preset.every_hash_mode:
        saving = ", or choose the quick preset, which measures the chosen real_data alone"
    elif builder.mode is not RealKvHashMode.NONE:
        saving = ", or choose real_data none, which needs no KV rows"
    raise ConfigError(
        f"pool_slot_count {format_count(builder.slots)} needs {format_bytes(needed)} for this benchmark, {format_bytes(allowed)} may be used "
        f"({MEMORY_SHARE:.0%} of what is free); {largest}{saving}"
    )


def _largest_fit(builder: _Builder, allowed: int) -> int:
    """The most slots, in whole pages, whose benchmark stays within `allowed` bytes; 0 when not even one page does."""
    low, high = 0, builder.pages
    while high - low > 1:
        middle = (low + high) // 2
        smaller = builder.settings.replace(pool_slot_count=middle * builder.page)
        if _build(smaller, builder.preset, builder.row_bytes, allowed).peak_bytes <= allowed:
            low = middle
        else:
            high = middle
    return low * builder.page
