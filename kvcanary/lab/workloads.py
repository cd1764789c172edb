"""What a benchmark will run, worked out from the settings before anything starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from kvcanary import layout
from kvcanary.config.capacities import LaunchCapacities
from kvcanary.config.defaults import capture_batch_sizes
from kvcanary.config.geometry import Split
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from kvcanary.lab.records import BenchmarkSpec
from kvcanary.lab.shape import SceneShape, scene_bytes
from kvcanary.layout import RealKvHashMode
from kvcanary.units import format_bytes, format_count, format_seconds

DEFAULT_ROW_BYTES = 2048
MEMORY_SHARE = 0.8
_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
_ELEMENT_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "float32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """How much effort: decode batches at most, repeats and seconds per timed operation, prefix tokens, layouts, one hash mode or all."""

    name: str
    batches: int
    min_repeats: int
    seconds: float
    prefix: int
    layouts: tuple[str, ...]
    every_hash_mode: bool


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(name="quick", batches=4, min_repeats=5, seconds=0.12, prefix=512, layouts=("contiguous",), every_hash_mode=False),
        Preset(
            name="standard", batches=8, min_repeats=15, seconds=0.3, prefix=1024, layouts=("contiguous", "shuffled"), every_hash_mode=True
        ),
        Preset(name="long", batches=64, min_repeats=31, seconds=0.8, prefix=2048, layouts=("contiguous", "shuffled"), every_hash_mode=True),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One point to measure: `shape` is its pool, `prefix` tokens are verified and `extend` stamped per request."""

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
    peak_bytes: int
    estimate_s: float
    row_bytes: int
    row_note: str

    @property
    def sentence(self) -> str:
        """What will run, for the page and the command line."""
        kinds = [workload.kind for workload in self.workloads]
        parts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        return (
            f"{len(kinds)} points ({parts}), then one sweep over a pool of {format_count(self.final.num_slots)} slots; "
            f"about {format_seconds(self.estimate_s)} (an estimate), {format_bytes(self.peak_bytes)} of memory."
        )


def plan_benchmark(spec: BenchmarkSpec, available_bytes: int | None = None) -> BenchmarkPlan:
    """Work out the points of a spec.

    `available_bytes` is the memory of the device that may be used, by default the free memory of this host. Raises ConfigError with
    SGLang's sentence for settings that do not start, and with the largest pool that fits when the memory does not suffice.
    """
    if spec.preset not in PRESETS:
        raise ConfigError(f"preset must be one of {'/'.join(PRESETS)}, got {spec.preset!r}")
    if not _DEVICE.fullmatch(spec.device):
        raise ConfigError(f"device must be cpu or cuda:N (ROCm devices are called cuda, too), got {spec.device[:40]!r}")
    settings, preset = Settings.from_flat(spec.settings), PRESETS[spec.preset]
    capacities = LaunchCapacities.from_settings(settings)
    if settings.pool.page_size < 1:
        raise ConfigError(f"page_size must be at least 1, got {settings.pool.page_size}")
    row_bytes, row_note = _row_bytes(settings)
    chosen = RealKvHashMode[settings.canary.real_data.upper()]
    modes = tuple(RealKvHashMode) if preset.every_hash_mode else (chosen,)
    builder = _Builder(settings, preset, capacities, row_bytes)
    for mode in modes:
        for shuffled in (name == "shuffled" for name in preset.layouts):
            builder.decode(mode, shuffled)
            builder.sweep(mode, shuffled)
        builder.prefill(mode)
    final = builder.whole_pool(chosen, shuffled=True)
    peak = max(scene_bytes(shape) for shape in (final, *(workload.shape for workload in builder.workloads)))
    _check_memory(peak, final, psutil.virtual_memory().available if available_bytes is None else available_bytes)
    timed = sum(4 if workload.prefix and workload.extend else 2 for workload in builder.workloads)
    build_s = sum(scene_bytes(workload.shape) for workload in builder.workloads) / 1.0e9
    return BenchmarkPlan(
        workloads=tuple(builder.workloads),
        final=final,
        skipped=tuple(builder.skipped),
        peak_bytes=peak,
        estimate_s=5.0 + timed * preset.seconds * 1.3 + build_s,
        row_bytes=row_bytes,
        row_note=row_note,
    )


class _Builder:
    def __init__(self, settings: Settings, preset: Preset, capacities: LaunchCapacities, row_bytes: int) -> None:
        self.settings, self.preset, self.capacities, self.row_bytes = settings, preset, capacities, row_bytes
        self.slots, self.page = settings.pool.pool_slot_count, settings.pool.page_size
        self.workloads: list[Workload] = []
        self.skipped: list[str] = []

    def decode(self, mode: RealKvHashMode, shuffled: bool) -> None:
        """Batches up to the request capacity, each request with the preset's prefix or what the pool can give it."""
        batch = self.settings.batch
        draft = batch.speculative_num_draft_tokens or 0
        extend = max(1, draft)
        sizes = {*capture_batch_sizes(batch.cuda_graph_max_bs or 0, speculative=draft > 0), self.capacities.write_req_capacity}
        for count in _thin(sorted(sizes), self.preset.batches):
            room = min(self.slots // count, self.settings.pool.max_seq_len_per_req) - extend
            prefix = min(self.preset.prefix, room)
            if prefix < 1:
                self._skip(f"decode batch {count}: {count} requests of {extend + 1} tokens do not fit into {self.slots} slots")
                continue
            self.workloads.append(
                Workload(kind="decode", shape=self._shape(count, prefix + extend, mode, shuffled), prefix=prefix, extend=extend)
            )

    def prefill(self, mode: RealKvHashMode) -> None:
        """Chunks up to the write-entry capacity, as one prompt and as several prompts in one forward."""
        limit = min(self.capacities.write_entry_capacity, self.slots)
        for requests in (1, 16):
            tokens = min(limit // requests, self.settings.pool.max_seq_len_per_req)
            if tokens < 1 or requests > self.capacities.write_req_capacity:
                self._skip(f"prefill of {requests} prompts: more than the batch or the pool can hold")
                continue
            self.workloads.append(
                Workload(kind="prefill", shape=self._shape(requests, tokens, mode, shuffled=False), prefix=0, extend=tokens)
            )

    def sweep(self, mode: RealKvHashMode, shuffled: bool) -> None:
        """Every slot of the pool in one verify launch."""
        shape = self.whole_pool(mode, shuffled=shuffled)
        self.workloads.append(Workload(kind="sweep", shape=shape, prefix=shape.length, extend=0))

    def whole_pool(self, mode: RealKvHashMode, *, shuffled: bool) -> SceneShape:
        """The pool filled with as many full-length requests as it holds, or with one request where not even one fits."""
        length = min(self.settings.pool.max_seq_len_per_req, self.slots, 4096)
        return self._shape(max(1, self.slots // length), length, mode, shuffled)

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


def _check_memory(needed: int, final: SceneShape, available: int) -> None:
    allowed = int(available * MEMORY_SHARE)
    if needed <= allowed:
        return
    per_slot = needed / final.num_slots
    raise ConfigError(
        f"pool_slot_count {final.num_slots} needs {format_bytes(needed)} for this benchmark, {format_bytes(allowed)} may be used "
        f"({MEMORY_SHARE:.0%} of what is free); the largest pool that fits is about {int(allowed / per_slot)} slots: "
        "lower pool_slot_count, or choose real_data none or partial"
    )
