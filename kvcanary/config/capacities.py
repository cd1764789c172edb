"""Launch capacities of the canary, its buffer groups, and the memory they take, as SGLang 0.5.23 computes them.

Every figure carries its formula. All published releases that have the canary (0.5.13 to 0.5.23) share these rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kvcanary import layout
from kvcanary.config.formula import Bound, LineItem, Number
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError

CAPACITY_SOURCE = "SGLang 0.5.23, CanaryLaunchCapacities"
ATTACHER_SOURCE = "SGLang 0.5.23, attachers of the canary's pool patcher"
STATE_SOURCE = "SGLang 0.5.23, CanaryDeviceState"

SUPPORTED_POOL_CLASSES = ("DeepSeekV4TokenToKVPool", "MHATokenToKVPool", "MHATokenToKVPoolFP4", "SWAKVPool")
DSV4_POOL_CLASS, SWA_POOL_CLASS = "DeepSeekV4TokenToKVPool", "SWAKVPool"
FULL, SWA = "FULL", "SWA"
PAGE_SIZE_RULE = "page_size must be positive, got {}; set --page-size to 1 or more"
SWA_RATIO_RULE = "--swa-full-tokens-ratio should be in range (0, 1.0]."
COUNTER_BYTES = 2 * 8 * layout.NUM_TAGS + 4

# Per group: four int64 columns of the verify plan; offsets and seeds of the write plan, with one offset more than requests; num_valid,
# enable and num_valid_reqs as int32. Once: two int64 columns per written token and four per request.
WORKSPACE_FORMULA = (
    "num_buffer_groups * (32 * verify_capacity + 16 * write_req_capacity + 20) + 16 * write_entry_capacity + 32 * write_req_capacity"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCapacities:
    """How many entries the tensors of one forward can hold; upper bounds that are fixed at start.

    verify: slots checked by one launch; write_req: requests of one batch; write_entry: tokens stamped by one launch. ConfigError
    unless each is positive.
    """

    verify: Bound
    write_req: Bound
    write_entry: Bound

    def __post_init__(self) -> None:
        for bound in self.bounds:
            if bound.value <= 0:
                raise ConfigError(f"kv-canary: per_forward_{bound.name} must be positive, got {bound.value}")

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Capacities of one runner; raises ConfigError with the sentence that SGLang raises first."""
        problem = next(iter(capacity_problems(settings)), None)
        if problem is not None:
            raise ConfigError(problem[1])
        verify = _bound(
            "verify_capacity",
            "Slots verified per launch",
            layout.VERIFY_CAPACITY_FACTOR * settings.pool.pool_slot_count,
            f"{layout.VERIFY_CAPACITY_FACTOR} * pool_slot_count",
            pool_slot_count=settings.pool.pool_slot_count,
        )
        return cls(verify=verify, write_req=_write_req(settings), write_entry=_write_entry(settings))

    @property
    def bounds(self) -> tuple[Bound, Bound, Bound]:
        """The three capacities in SGLang's order."""
        return self.verify, self.write_req, self.write_entry

    @property
    def verify_capacity(self) -> int:
        """Entries of a verify plan; more than these and nothing is verified in that step."""
        return self.verify.value

    @property
    def write_req_capacity(self) -> int:
        """Requests of one batch."""
        return self.write_req.value

    @property
    def write_entry_capacity(self) -> int:
        """Tokens stamped in one forward."""
        return self.write_entry.value

    def workspace_bytes(self, num_buffer_groups: int) -> int:
        """Bytes of one forward's plans and inputs, transient, per runner."""
        return self.workspace(num_buffer_groups).bytes

    def workspace(self, num_buffer_groups: int) -> LineItem:
        """The workspace as a line of the memory plan."""
        verify, requests, entries = self.verify_capacity, self.write_req_capacity, self.write_entry_capacity
        return LineItem(
            name="canary_workspace",
            label="Canary workspace of one forward",
            part="canary workspace",
            bytes=num_buffer_groups * (32 * verify + 16 * requests + 20) + 16 * entries + 32 * requests,
            formula=WORKSPACE_FORMULA,
            terms={
                "num_buffer_groups": num_buffer_groups,
                "verify_capacity": verify,
                "write_req_capacity": requests,
                "write_entry_capacity": entries,
            },
            source=f"{CAPACITY_SOURCE}.per_forward_workspace_bytes",
            note="Allocated for each forward and freed after it; target and draft runners take turns, so the larger one counts.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferGroup:
    """One set of canary buffers: FULL or SWA, its rows, and whether V buffers stand beside the K buffers.

    `slots_formula` over `slots_terms` gives num_slots.
    """

    kind: str
    num_slots: int
    has_v_half: bool
    slots_formula: str
    slots_terms: tuple[tuple[str, int], ...]

    @property
    def num_buffers(self) -> int:
        """HEAD and TAIL, for K alone or for K and V."""
        return 4 if self.has_v_half else 2

    @property
    def bytes(self) -> int:
        """Memory of all buffers of the group."""
        return self.num_buffers * layout.SLOT_BYTES * self.num_slots


def capacity_problems(settings: Settings) -> list[tuple[str, str]]:
    """(field, SGLang's sentence) for each input that the capacities refuse, in SGLang's order of checks."""
    pool, batch = settings.pool, settings.batch
    positive = [
        ("req_to_token_pool_size", pool.req_to_token_pool_size),
        ("max_seq_len_per_req", pool.max_seq_len_per_req),
        ("pool_slot_count", pool.pool_slot_count),
    ]
    non_negative = [
        ("cuda_graph_max_bs", batch.cuda_graph_max_bs or 0),
        ("speculative_num_draft_tokens", batch.speculative_num_draft_tokens or 0),
    ]
    problems = [(name, f"kv-canary: {name} must be positive, got {value}") for name, value in positive if value <= 0]
    problems += [(name, f"kv-canary: {name} must be non-negative, got {value}") for name, value in non_negative if value < 0]
    if batch.max_prefill_tokens <= 0:
        problems.append(("max_prefill_tokens", f"kv-canary: max_prefill_tokens must be positive, got {batch.max_prefill_tokens}"))
    return problems


def ring_problem(settings: Settings) -> str:
    """SGLang's sentence about a violation ring without rows; empty where it has some."""
    ring = settings.canary.ring_capacity
    return "" if ring > 0 else f"kv-canary: ViolationLog ring_capacity must be positive, got {ring}"


def swa_slot_count(settings: Settings) -> int:
    """Slots of the sliding-window pool, cut to whole pages; ConfigError unless page size and ratio are legal."""
    pool = settings.pool
    if pool.page_size <= 0:
        raise ConfigError(PAGE_SIZE_RULE.format(pool.page_size))
    if not 0 < pool.swa_full_tokens_ratio <= 1:
        raise ConfigError(SWA_RATIO_RULE)
    full = pool.pool_slot_count // pool.page_size * pool.page_size
    return int(full * pool.swa_full_tokens_ratio) // pool.page_size * pool.page_size


def buffer_groups(settings: Settings) -> tuple[BufferGroup, ...]:
    """The groups that SGLang attaches to this pool class, in its order; none for a class that cannot carry a canary.

    Rows are those of the layer-0 K tensor, which holds one page more than the pool; the DeepSeek-V4 pool counts without that page.
    ConfigError unless page_size is positive.
    """
    pool = settings.pool
    if pool.page_size <= 0:
        raise ConfigError(PAGE_SIZE_RULE.format(pool.page_size))
    if pool.pool_class not in SUPPORTED_POOL_CLASSES:
        return ()
    if pool.pool_class == DSV4_POOL_CLASS:
        slots = swa_slot_count(settings)
        return (BufferGroup(kind=SWA, num_slots=slots, has_v_half=False, slots_formula="swa_slots", slots_terms=(("swa_slots", slots),)),)
    groups = [_group(FULL, "pool_slot_count", pool.pool_slot_count, pool.page_size)]
    if pool.pool_class == SWA_POOL_CLASS:
        groups.append(_group(SWA, "swa_slots", swa_slot_count(settings), pool.page_size))
    return tuple(groups)


def canary_buffer_bytes(settings: Settings) -> int:
    """Bytes of all canary buffers of the target runner."""
    return sum(group.bytes for group in buffer_groups(settings))


def ring_bytes(settings: Settings) -> int:
    """Bytes of the violation ring with its counter."""
    return layout.RING_ROW_BYTES * settings.canary.ring_capacity + 4


def has_draft_pool(settings: Settings) -> bool:
    """Whether a draft model with a KV pool of its own is known to run; its runner carries a canary of its own."""
    return bool(settings.batch.speculative_num_draft_tokens) and bool(settings.model.draft_num_layers)


def canary_line_items(settings: Settings) -> list[LineItem]:
    """Every byte that the canary takes on one rank, line by line; empty when the mode is none or the pool cannot carry it.

    Raises ConfigError where the capacities do. With a known draft pool the buffers, ring and counters stand twice.
    """
    groups = buffer_groups(settings)
    if settings.canary.mode == "none" or not groups:
        return []
    if problem := ring_problem(settings):
        raise ConfigError(problem)
    capacities = LaunchCapacities.from_settings(settings)
    items = [item for group in groups for item in _buffer_items(group)]
    items += [*_state_items(settings), capacities.workspace(len(groups))]
    if has_draft_pool(settings):
        # SGLang gives the draft pool as many slots as the target's; its class is not known, a plain one is assumed.
        draft = _group(FULL, "pool_slot_count", settings.pool.pool_slot_count, settings.pool.page_size)
        items += [*_buffer_items(draft, prefix="draft_"), *_state_items(settings, prefix="draft_")]
    return items


def _bound(name: str, label: str, value: int, formula: str, **terms: Number) -> Bound:
    return Bound(name=name, label=label, value=value, formula=formula, terms=terms, source=CAPACITY_SOURCE)


def _write_req(settings: Settings) -> Bound:
    graph, rows = settings.batch.cuda_graph_max_bs or 0, settings.pool.req_to_token_pool_size
    return _bound(
        "write_req_capacity",
        "Requests per batch",
        max(graph, rows),
        "max(cuda_graph_max_bs, req_to_token_pool_size)",
        cuda_graph_max_bs=graph,
        req_to_token_pool_size=rows,
    )


def _write_entry(settings: Settings) -> Bound:
    batch = settings.batch
    requests, budget, chunk = _write_req(settings).value, batch.max_prefill_tokens, batch.chunked_prefill_size
    terms: dict[str, Number] = {"write_req_capacity": requests}
    per_request, stamped = "write_req_capacity", requests
    if batch.speculative_num_draft_tokens:
        terms["speculative_num_draft_tokens"] = batch.speculative_num_draft_tokens
        per_request, stamped = "write_req_capacity * speculative_num_draft_tokens", requests * batch.speculative_num_draft_tokens
    terms["max_prefill_tokens"] = budget
    extend, longest = "max_prefill_tokens", budget
    # A chunk size of 0 is a limit of zero tokens here, although the scheduler reads it as no chunking.
    if chunk is not None and chunk >= 0:
        terms["chunked_prefill_size"] = chunk
        extend, longest = "min(max_prefill_tokens, chunked_prefill_size)", min(budget, chunk)
    return _bound("write_entry_capacity", "Tokens stamped per launch", max(stamped, longest), f"max({per_request}, {extend})", **terms)


def _group(kind: str, slots_name: str, slots: int, page_size: int) -> BufferGroup:
    return BufferGroup(
        kind=kind,
        num_slots=slots + page_size,
        has_v_half=True,
        slots_formula=f"({slots_name} + page_size)",
        slots_terms=((slots_name, slots), ("page_size", page_size)),
    )


def _buffer_items(group: BufferGroup, prefix: str = "") -> list[LineItem]:
    return [
        LineItem(
            name=f"{prefix}canary_{group.kind.lower()}_{half.lower()}",
            label=f"{'Draft: ' if prefix else ''}Canary buffers {group.kind} {half} (HEAD and TAIL)",
            part="canary buffers",
            bytes=2 * layout.SLOT_BYTES * group.num_slots,
            formula=f"2 * {layout.SLOT_BYTES} * {group.slots_formula}",
            terms=dict(group.slots_terms),
            source=ATTACHER_SOURCE,
            note="Allocated even while the V half is not verified." if half == "V" else "",
        )
        for half in ("K", "V")[: group.num_buffers // 2]
    ]


def _state_items(settings: Settings, prefix: str = "") -> list[LineItem]:
    rows, width, ring = settings.pool.req_to_token_pool_size, settings.pool.max_seq_len_per_req, settings.canary.ring_capacity
    label = "Draft: " if prefix else ""
    items = [
        LineItem(
            name=f"{prefix}canary_ring",
            label=f"{label}Violation ring",
            part="canary ring",
            bytes=ring_bytes(settings),
            formula=f"{layout.RING_ROW_BYTES} * ring_capacity + 4",
            terms={"ring_capacity": ring},
            source=STATE_SOURCE,
        ),
        LineItem(
            name=f"{prefix}canary_counters",
            label=f"{label}Launch counters",
            part="canary ring",
            bytes=COUNTER_BYTES,
            formula=f"2 * 8 * {layout.NUM_TAGS} + 4",
            terms={},
            source=STATE_SOURCE,
        ),
    ]
    if settings.canary.verify_token_assert:
        items.append(
            LineItem(
                name=f"{prefix}canary_expected_tokens",
                label=f"{label}Expected-token table",
                part="canary tables",
                bytes=4 * (rows + 1) * width,
                formula="4 * (req_to_token_pool_size + 1) * max_seq_len_per_req",
                terms={"req_to_token_pool_size": rows, "max_seq_len_per_req": width},
                source=STATE_SOURCE,
            )
        )
    return items
