"""Rules about the canary itself: modes, sweeps, ring, memory, pools and devices that cannot carry it."""

from __future__ import annotations

from collections.abc import Iterator

from kvcanary import layout
from kvcanary.config.capacities import (
    FULL,
    SUPPORTED_POOL_CLASSES,
    SWA,
    buffer_groups,
    canary_line_items,
    ring_problem,
)
from kvcanary.config.findings import Finding
from kvcanary.config.rule_parts import CAPACITIES, SERVER_ARGS, canary_on, error, fix, warning
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from kvcanary.units import GIB

HEALTH_WARM_UP_STEPS = HEALTH_PERIOD_STEPS = 100
# Devices whose torch type is not cuda and that capture graphs; HIP calls itself cuda and has the kernels.
HOST_DEVICES_WITHOUT_KERNELS = ("cpu", "xpu", "npu", "musa")
RING_FILL_STEPS_WORTH_A_WARNING = 1000
SLACK_SHARE_WORTH_A_WARNING = 0.05


def sweep_without_mode(settings: Settings) -> Iterator[Finding]:
    """A sweep needs a canary."""
    if settings.canary.sweep_interval > 0 and not canary_on(settings):
        message = "--kv-canary-sweep-interval requires --kv-canary in {log, raise}"
        why = "A sweep was asked for while the canary is off. Two ways out: switch the canary on, or the sweep off."
        yield error(
            "sweep_without_mode", ("mode", "sweep_interval"), message, why, fix("mode", "log"), fix("sweep_interval", 0), source=SERVER_ARGS
        )


def sweep_interval_negative(settings: Settings) -> Iterator[Finding]:
    """A negative interval passes every check of SGLang and then never lets a step go by without a sweep."""
    interval = settings.canary.sweep_interval
    if canary_on(settings) and interval < 0:
        message = f"a sweep interval of {interval} is not off: every step runs a sweep, and the health check does not watch it"
        why = "The engine compares the steps since the last sweep with the interval, and any number of steps is more. 0 means that no sweep runs."
        fields = ("sweep_interval",)
        yield warning("sweep_interval_negative", fields, message, why, fix("sweep_interval", 0), source="SGLang 0.5.23, SweepOrchestrator")


def prefill_graphs(settings: Settings) -> Iterator[Finding]:
    """Piecewise prefill graphs bypass the wrapped forward."""
    if canary_on(settings) and settings.batch.cuda_graph_backend_prefill == "tc_piecewise":
        message = (
            "kv-canary: piecewise cuda graph is not supported by the current SingleForwardManager design; set "
            "--cuda-graph-backend-prefill=disabled (or =breakable) when canary is enabled"
        )
        why = "Piecewise graphs run pieces of the model outside the forward that the canary wraps."
        field = "cuda_graph_backend_prefill"
        yield error("prefill_graphs", (field,), message, why, fix(field, "breakable"), fix(field, "disabled"), source=SERVER_ARGS)


def decode_graphs_without_kernels(settings: Settings) -> Iterator[Finding]:
    """Where only the torch reference runs, decode graphs would replay without the canary."""
    device, batch = settings.memory.device.strip().lower().partition(":")[0], settings.batch
    if not canary_on(settings) or device not in HOST_DEVICES_WITHOUT_KERNELS:
        return
    if not batch.cuda_graph_max_bs or batch.cuda_graph_backend_decode == "disabled":
        return
    message = (
        f"kv-canary: {device} has no canary CUDA kernels and its torch reference cannot be graph-captured; pass --disable-cuda-graph "
        "(or --cuda-graph-backend-decode=disabled) when canary is enabled"
    )
    why = "A captured graph would replay without the canary and report clean for ever, so the newest release refuses."
    yield error(
        "decode_graphs", ("device", "cuda_graph_max_bs"), message, why, fix("cuda_graph_backend_decode", "disabled"), source=SERVER_ARGS
    )


def pool_class(settings: Settings) -> Iterator[Finding]:
    """Only four pool classes carry a canary; the class is looked up by its exact type."""
    name = settings.pool.pool_class
    if not canary_on(settings) or name in SUPPORTED_POOL_CLASSES:
        return
    message = f"kv-canary: no attacher registered for pool class {name}; supported: {list(SUPPORTED_POOL_CLASSES)}"
    why = "The class is looked up by exact type, subclasses do not count. For this model and cache type the canary has to stay off."
    yield error("pool_class", ("pool_class",), message, why, fix("mode", "none"), source="SGLang 0.5.23, pool patcher")


def ring_rows(settings: Settings) -> Iterator[Finding]:
    """The ring has at least one row."""
    if canary_on(settings) and (message := ring_problem(settings)):
        why = "Violations are kept in a ring of this many rows."
        yield error("ring_rows", ("ring_capacity",), message, why, fix("ring_capacity", layout.DEFAULT_RING_CAPACITY), source=CAPACITIES)


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
    if not canary_on(settings) or settings.pool.page_size <= 0 or (step := health_trip_step(interval)) is None:
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
    if canary_on(settings) and branches is not None and branches > 1:
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
    if canary_on(settings) and settings.pool.enable_hierarchical_cache:
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
    if canary_on(settings) and settings.canary.sweep_interval > 0 and settings.pool.disable_radix_cache:
        message = "walk_radix_cache_for_canary does not support ChunkCache"
        why = (
            "Without a prefix cache there is no tree to walk. Older releases use a ChunkCache then and the first sweep stops the server with "
            "this sentence (NotImplementedError); 0.5.23 walks an empty tree, so that its sweeps verify nothing."
        )
        yield warning(
            "sweep_without_tree", ("disable_radix_cache", "sweep_interval"), message, why, fix("sweep_interval", 0),
            fix("disable_radix_cache", False), exact=True, source="SGLang before 0.5.23, radix walker; 0.5.23, radix cache factory",
        )  # fmt: skip


def ring_fills_with_sweeps(settings: Settings) -> Iterator[Finding]:
    """A frequent sweep reports one damaged page again and again until the fill-once ring is full."""
    canary, page = settings.canary, settings.pool.page_size
    if not canary_on(settings) or canary.sweep_interval <= 0 or canary.ring_capacity <= 0 or page <= 0:
        return
    sweeps = -(-canary.ring_capacity // page)
    steps = sweeps * canary.sweep_interval
    if steps > RING_FILL_STEPS_WORTH_A_WARNING:
        return
    every = "in every step" if canary.sweep_interval == 1 else f"every {canary.sweep_interval} steps"
    per = "step" if canary.sweep_interval == 1 else "sweep"
    damage = f"damaged page of {page} slots {page} times" if page > 1 else "damaged slot once"
    message = (
        f"the ring keeps its first {canary.ring_capacity} rows and drops the rest; a sweep {every} reports one {damage} per {per} and fills "
        f"it in {steps} steps"
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
    """Buffers and workspace come out of what mem_fraction_static leaves; worth a word when they take a twentieth of it or more."""
    memory = settings.memory
    if not canary_on(settings) or not memory.device_memory_bytes or memory.mem_fraction_static is None:
        return
    if not 0 < memory.mem_fraction_static < 1 or memory.post_capture_kv_sizing:
        return
    try:
        items = canary_line_items(settings)
    except ConfigError:
        return
    buffers, workspace = (sum(item.bytes for item in items if item.part == part) for part in ("canary buffers", "canary workspace"))
    slack = memory.device_memory_bytes * (1 - memory.mem_fraction_static)
    if not items or buffers + workspace < SLACK_SHARE_WORTH_A_WARNING * slack:
        return
    message = (
        f"canary buffers {buffers / GIB:.2f} GiB and one workspace of {workspace / GIB:.2f} GiB per runner come out of the memory beside "
        f"mem_fraction_static ({slack / GIB:.2f} GiB) unless post-capture sizing accounts for the workspace"
    )
    why = "The canary is allocated after the pool was sized, so it competes with activations and graphs for the same rest."
    lower = int((memory.mem_fraction_static - (buffers + workspace) / memory.device_memory_bytes) * 1000) / 1000
    fixes = (fix("mem_fraction_static", lower),) if lower > 0 else ()
    yield warning("canary_beside_static", ("pool_slot_count", "mem_fraction_static"), message, why, *fixes)


def input_assert(settings: Settings) -> Iterator[Finding]:
    """The input check compares with a token oracle that only tests install."""
    if canary_on(settings) and settings.canary.write_input_assert:
        message = (
            "kv-canary: enable_write_input_assert=True requires a TokenOracleManager; pass "
            "token_oracle_manager=install_oracle_sampler(oracle=...) into install_canary(...)"
        )
        why = (
            "The first forward stops with this sentence unless SGLANG_KV_CANARY_ENABLE_TOKEN_ORACLE=1 is set as well, and with that every "
            "reply is made up: the check is for the engine's own tests."
        )
        yield warning("input_assert", ("write_input_assert",), message, why, fix("write_input_assert", False), exact=True)
