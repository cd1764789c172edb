"""Rules about the canary itself: modes, sweeps, real-KV hash, ring, pools and devices that cannot carry it."""

from __future__ import annotations

from collections.abc import Iterator

from kvcanary import layout
from kvcanary.config.capacities import (
    DSV4_POOL_CLASS,
    FULL,
    SUPPORTED_POOL_CLASSES,
    SWA,
    LaunchCapacities,
    buffer_groups,
    canary_buffer_bytes,
    capacity_problems,
    ring_problem,
)
from kvcanary.config.findings import Finding
from kvcanary.config.rule_parts import CAPACITIES, SERVER_ARGS, error, fix, note, warning
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from kvcanary.units import GIB

HEALTH_WARM_UP_STEPS = HEALTH_PERIOD_STEPS = 100
HOST_DEVICES_WITHOUT_KERNELS = ("cpu", "xpu", "npu", "musa", "hpu")
RING_FILL_STEPS_WORTH_A_WARNING = 100
_ELEMENT_BYTES = {
    "auto": 2.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "float32": 4.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp4_e2m1": 0.5,
    "mxfp8": 1.0,
}


def _on(settings: Settings) -> bool:
    return settings.canary.mode != "none"


def sweep_without_mode(settings: Settings) -> Iterator[Finding]:
    """A sweep needs a canary."""
    if settings.canary.sweep_interval > 0 and not _on(settings):
        message = "--kv-canary-sweep-interval requires --kv-canary in {log, raise}"
        why = "A sweep was asked for while the canary is off. Two ways out: switch the canary on, or the sweep off."
        yield error(
            "sweep_without_mode", ("mode", "sweep_interval"), message, why, fix("mode", "log"), fix("sweep_interval", 0), source=SERVER_ARGS
        )


def sweep_interval_negative(settings: Settings) -> Iterator[Finding]:
    """Negative intervals mean nothing."""
    if settings.canary.sweep_interval < 0:
        message = f"sweep_interval must be non-negative, got {settings.canary.sweep_interval}"
        yield error(
            "sweep_interval_negative", ("sweep_interval",), message, "0 means that no sweep runs.", fix("sweep_interval", 0), exact=False,
            source=SERVER_ARGS,
        )  # fmt: skip


def prefill_graphs(settings: Settings) -> Iterator[Finding]:
    """Piecewise prefill graphs bypass the wrapped forward."""
    if _on(settings) and settings.batch.cuda_graph_backend_prefill == "tc_piecewise":
        message = (
            "kv-canary: piecewise cuda graph is not supported by the current SingleForwardManager design; set "
            "--cuda-graph-backend-prefill=disabled (or =breakable) when canary is enabled"
        )
        why = "Piecewise graphs run pieces of the model outside the forward that the canary wraps."
        field = "cuda_graph_backend_prefill"
        yield error("prefill_graphs", (field,), message, why, fix(field, "breakable"), fix(field, "disabled"), source=SERVER_ARGS)


def decode_graphs_without_kernels(settings: Settings) -> Iterator[Finding]:
    """Where only the torch reference runs, decode graphs would replay without the canary."""
    device, batch = settings.memory.device.lower(), settings.batch
    if not _on(settings) or device not in HOST_DEVICES_WITHOUT_KERNELS:
        return
    if not batch.cuda_graph_max_bs or batch.cuda_graph_backend_decode == "disabled":
        return
    message = (
        f"kv-canary: {device} has no canary CUDA kernels and its torch reference cannot be graph-captured; pass --disable-cuda-graph "
        "(or --cuda-graph-backend-decode=disabled) when canary is enabled"
    )
    why = "A captured graph would replay without the canary and report clean for ever, so the newest release refuses."
    fields = ("device", "cuda_graph_max_bs", "cuda_graph_backend_decode")
    yield error("decode_graphs", fields, message, why, fix("cuda_graph_backend_decode", "disabled"), source=SERVER_ARGS)


def pool_class(settings: Settings) -> Iterator[Finding]:
    """Only four pool classes carry a canary; the class is looked up by its exact type."""
    name = settings.pool.pool_class
    if not _on(settings) or name in SUPPORTED_POOL_CLASSES:
        return
    message = f"kv-canary: no attacher registered for pool class {name}; supported: {list(SUPPORTED_POOL_CLASSES)}"
    why = "The class is looked up by exact type, subclasses do not count. For this model and cache type the canary has to stay off."
    yield error("pool_class", ("pool_class",), message, why, fix("mode", "none"), source="SGLang 0.5.23, pool patcher")


def ring_rows(settings: Settings) -> Iterator[Finding]:
    """The ring has at least one row."""
    if _on(settings) and (message := ring_problem(settings)):
        why = "Violations are kept in a ring of this many rows."
        yield error("ring_rows", ("ring_capacity",), message, why, fix("ring_capacity", layout.DEFAULT_RING_CAPACITY), source=CAPACITIES)


def _row_bytes(settings: Settings) -> int | None:
    """Bytes of one K row of layer 0 on one rank, None where the model fields do not say."""
    model, memory = settings.model, settings.memory
    if not model.num_kv_heads or not model.head_dim or model.kv_lora_rank or memory.tp_size < 1:
        return None
    heads = max(1, model.num_kv_heads // memory.tp_size)
    return int(heads * model.head_dim * _ELEMENT_BYTES[model.kv_dtype])


def row_bytes(settings: Settings) -> Iterator[Finding]:
    """The real-KV hash reads 16 bytes at a time."""
    size = _row_bytes(settings)
    if not _on(settings) or settings.canary.real_data == "none" or size is None or size % layout.REAL_KV_ALIGNMENT == 0:
        return
    message = f"kv-canary: num_bytes_per_token must be a positive multiple of 16, got {size}"
    why = "The hash of real KV reads 16 bytes at a time and cannot read such a row. Without the hash the same pool is fine."
    head, heads = settings.model.head_dim or 0, max(1, (settings.model.num_kv_heads or 1) // settings.memory.tp_size)
    per_element = heads * _ELEMENT_BYTES[settings.model.kv_dtype]
    nearest = next(dim for dim in range(head + 1, head + 129) if (dim * per_element) % layout.REAL_KV_ALIGNMENT == 0)
    fields = ("real_data", "num_kv_heads", "head_dim", "kv_dtype")
    yield error("row_bytes", fields, message, why, fix("real_data", "none"), fix("head_dim", nearest), source="SGLang 0.5.23, RealKvSource")


def health_trip_step(interval: int) -> int | None:
    """Step at which the health check finds no sweep since its last sample, None if never.

    The check samples at every multiple of 100 after a warm-up of 100 steps and runs one step later; sweeps run at multiples of the
    interval. Confirmed against the class of release 0.5.23: 101 trips at 10101, 120 at 601, 150 at 301, 200 at 201, up to 100 never.
    """
    if interval <= HEALTH_PERIOD_STEPS:
        return None
    sample = HEALTH_WARM_UP_STEPS
    while True:
        following = sample + HEALTH_PERIOD_STEPS
        if (following - 1) // interval == (sample - 1) // interval and sample > 0:
            return following + 1
        sample = following


def sweep_interval_trips_health_check(settings: Settings) -> Iterator[Finding]:
    """The health check wants every active tag to grow in 100 steps, and stops the server in log mode, too."""
    interval = settings.canary.sweep_interval
    if not _on(settings) or settings.pool.page_size <= 0 or (step := health_trip_step(interval)) is None:
        return
    try:
        tags = ", ".join(_sweep_tags(settings))
    except ConfigError:
        return
    message = f"kv-canary: kernel_run_counter did not increase since previous check for tags=[{tags}] at step={step}; canary path is not executing"
    why = (
        f"The health check compares counters every {HEALTH_PERIOD_STEPS} steps and stops the server, in log mode too. With a sweep every "
        f"{interval} steps it finds a stretch without one at step {step}. Draft runners are exempt."
    )
    yield warning(
        "sweep_health", ("sweep_interval",), message, why, fix("sweep_interval", HEALTH_PERIOD_STEPS), exact=True,
        source="SGLang 0.5.23, canary health check",
    )  # fmt: skip


def _sweep_tags(settings: Settings) -> list[str]:
    halves = ["K", "V"] if settings.canary.verify_v_half else ["K"]
    tags = [
        f"SWEEP_{half}_{kind}"
        for kind in (FULL, SWA)
        for group in buffer_groups(settings)
        if group.kind == kind
        for half in halves
        if half == "K" or group.has_v_half
    ]
    return tags or ["SWEEP_K_FULL"]


def draft_tree(settings: Settings) -> Iterator[Finding]:
    """The +1 assert expects a chain."""
    branches = settings.batch.speculative_eagle_topk
    if _on(settings) and branches is not None and branches > 1:
        message = f"the position assert expects a linear chain; a draft tree (topk {branches}) reports write_position for sound steps"
        why = "Each report is a false alarm that looks like corruption. The engine's own tests switch the canary off for trees."
        yield warning(
            "draft_tree",
            ("speculative_eagle_topk",),
            message,
            why,
            fix("speculative_eagle_topk", 1),
            fix("mode", "none", "switch the canary off"),
        )


def host_tier(settings: Settings) -> Iterator[Finding]:
    """Canary records stay on the device when KV moves to the host."""
    if _on(settings) and settings.pool.enable_hierarchical_cache:
        message = (
            "canary records do not move with KV to host memory: after a reload the device slot carries an old record, so chain and position "
            "reports cannot be trusted"
        )
        why = "False alarms that look like corruption, and real damage hidden among them."
        yield warning(
            "host_tier", ("enable_hierarchical_cache",), message, why, fix("enable_hierarchical_cache", False),
            fix("mode", "none", "switch the canary off"),
        )  # fmt: skip


def sweep_without_tree(settings: Settings) -> Iterator[Finding]:
    """The sweep walks the radix tree."""
    if _on(settings) and settings.canary.sweep_interval > 0 and settings.pool.disable_radix_cache:
        message = "walk_radix_cache_for_canary does not support ChunkCache"
        why = "Without a prefix cache there is no tree to walk; the first sweep raises NotImplementedError."
        yield warning(
            "sweep_without_tree", ("disable_radix_cache", "sweep_interval"), message, why, fix("sweep_interval", 0),
            fix("disable_radix_cache", False), exact=True,
        )  # fmt: skip


def ring_fills_with_sweeps(settings: Settings) -> Iterator[Finding]:
    """A frequent sweep reports one damaged page again and again until the fill-once ring is full."""
    canary, page = settings.canary, settings.pool.page_size
    if not _on(settings) or canary.sweep_interval <= 0 or canary.ring_capacity <= 0 or page <= 1:
        return
    sweeps = -(-canary.ring_capacity // page)
    steps = sweeps * canary.sweep_interval
    if steps > RING_FILL_STEPS_WORTH_A_WARNING:
        return
    every = "in every step" if canary.sweep_interval == 1 else f"every {canary.sweep_interval} steps"
    times = f"{page} times per step" if canary.sweep_interval == 1 else f"{page} times per sweep"
    message = (
        f"the ring keeps its first {canary.ring_capacity} rows and drops the rest; a sweep {every} reports one damaged page of {page} slots "
        f"{times} and fills it in {steps} steps"
    )
    why = (
        "What comes later is only counted, so a second fault would leave no row. A larger ring costs almost nothing: 65 536 rows are 4 MiB."
    )
    yield warning(
        "ring_fills",
        ("ring_capacity", "sweep_interval"),
        message,
        why,
        fix("ring_capacity", 65536),
        fix("sweep_interval", HEALTH_PERIOD_STEPS),
    )


def memory_beside_the_static_share(settings: Settings) -> Iterator[Finding]:
    """Buffers and workspace come out of what mem_fraction_static leaves; worth a word when they take a tenth of it or more."""
    memory = settings.memory
    if not _on(settings) or memory.device_memory_bytes is None or memory.mem_fraction_static is None:
        return
    if not 0 < memory.mem_fraction_static < 1 or settings.pool.page_size <= 0 or capacity_problems(settings):
        return
    try:
        groups = buffer_groups(settings)
        buffers = canary_buffer_bytes(settings)
    except ConfigError:
        return
    if not groups:
        return
    slack = memory.device_memory_bytes * (1 - memory.mem_fraction_static)
    workspace = LaunchCapacities.from_settings(settings).workspace_bytes(len(groups))
    if buffers + workspace < 0.05 * slack:
        return
    message = (
        f"canary buffers {buffers / GIB:.2f} GiB and one workspace of {workspace / GIB:.2f} GiB per runner come out of the memory beside "
        f"mem_fraction_static ({slack / GIB:.2f} GiB) unless post-capture sizing accounts for the workspace"
    )
    why = "The canary is allocated after the pool was sized, so it competes with activations and graphs for the same rest."
    lower = int((memory.mem_fraction_static - (buffers + workspace) / memory.device_memory_bytes) * 1000) / 1000
    fixes = (fix("mem_fraction_static", lower),) if lower > 0 else ()
    yield warning("canary_beside_static", ("pool_slot_count", "mem_fraction_static"), message, why, *fixes)


def real_data_coverage(settings: Settings) -> Iterator[Finding]:
    """What the chosen hash depth cannot see."""
    depth, size = settings.canary.real_data, _row_bytes(settings)
    if not _on(settings):
        return
    row = f"{size} bytes" if size else "the bytes"
    if settings.pool.pool_class == DSV4_POOL_CLASS and depth != "none":
        message = "this pool has no real-KV hash: its 584 bytes per token are no multiple of 16"
        yield note("real_data_coverage", ("real_data",), message, "Changed KV bytes are not seen, whatever is chosen here.")
    elif depth == "none":
        message = "no KV byte is hashed: overwritten KV is not seen, only wrong mappings, positions and tokens are"
        yield note(
            "real_data_coverage", ("real_data",), message, "The cheapest mode; it checks records, not data.", fix("real_data", "partial")
        )
    elif depth == "partial":
        message = f"partial hashes the first 16 of {row} of one K row in layer 0; a change elsewhere is not seen"
        yield note("real_data_coverage", ("real_data",), message, "'Clean' has to be read with this coverage.", fix("real_data", "all"))
    else:
        message = f"all hashes {row} of one K row in layer 0; other layers, and V unless its half is on, are not seen"
        yield note("real_data_coverage", ("real_data",), message, "'Clean' has to be read with this coverage.")


def v_half_off(settings: Settings) -> Iterator[Finding]:
    """V buffers are allocated even while nobody verifies them."""
    canary = settings.canary
    if not _on(settings) or canary.verify_v_half or settings.pool.pool_class not in SUPPORTED_POOL_CLASSES:
        return
    if settings.pool.pool_class == DSV4_POOL_CLASS or canary.real_data == "none":
        return
    message = "the V half is off: V rows are not verified although their buffers are allocated"
    yield note("v_half_off", ("verify_v_half",), message, "Half of the buffers cost memory and see nothing.", fix("verify_v_half", True))


def real_data_without_mode(settings: Settings) -> Iterator[Finding]:
    """Options of a canary that is off."""
    if not _on(settings) and settings.canary.real_data != "none":
        message = "real_data has no effect while the canary mode is none"
        yield note("real_data_without_mode", ("real_data", "mode"), message, "Nothing is hashed.", fix("mode", "log"))


def input_assert(settings: Settings) -> Iterator[Finding]:
    """The input check compares with a token oracle that only tests install."""
    if _on(settings) and settings.canary.write_input_assert:
        message = (
            "the input check needs the token oracle of the engine's tests; real prompts differ from it and are reported as write_token"
        )
        yield warning(
            "input_assert", ("write_input_assert",), message, "Meant for tests with SGLANG_KV_CANARY_ENABLE_TOKEN_ORACLE=1.",
            fix("write_input_assert", False),
        )  # fmt: skip
