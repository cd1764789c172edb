"""The plan solved backwards: the largest pool, the smallest fraction, the longest context.

Every answer is found by asking `memory_plan` itself, so an answer and the plan it leads to cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from kvcanary.config.defaults import request_row_width
from kvcanary.config.geometry import Unknown
from kvcanary.config.memory import MemoryPlan, Share
from kvcanary.config.settings import FIELDS, Settings
from kvcanary.units import format_bytes, format_count

FRACTION_STEPS = 1000
DEFAULT_CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def changed(settings: Settings, **values: Any) -> Settings:
    """A copy with some typed fields changed, without parsing the others again; the values must be of the field's type."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        groups.setdefault(FIELDS[name].group, {})[name] = value
    return settings.model_copy(update={name: getattr(settings, name).model_copy(update=update) for name, update in groups.items()})


def largest(fits: Callable[[int], bool], low: int, high: int, guess: int | None = None) -> int | None:
    """The largest whole number in low..high that fits, for a condition that once false stays false; None if not even `low` does.

    A good `guess` makes it quick; a bad one costs a few more tries and never changes the answer.
    """
    if low > high or not fits(low):
        return None
    if guess is not None and low < guess <= high:
        low, high = _bracket(fits, low, high, guess)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _bracket(fits: Callable[[int], bool], low: int, high: int, guess: int) -> tuple[int, int]:
    """Narrow low..high, where low fits, by steps away from the guess that grow fourfold."""
    step = 1
    if fits(guess):
        low = guess
        while low < high:
            probe = min(high, low + step)
            if not fits(probe):
                return low, probe - 1
            low, step = probe, step * 4
        return low, high
    high = guess - 1
    while low < high:
        probe = max(low, high - step)
        if fits(probe):
            return probe, high
        high, step = probe - 1, step * 4
    return low, high


def within_budget(plan: MemoryPlan, *, static_only: bool = False) -> bool:
    """Whether the known lines exceed neither the static share nor (unless static_only) the device; unknown shares do not limit."""
    return all(left is None or left >= 0 for left in _spare(plan, static_only))


def _spare(plan: MemoryPlan, static_only: bool) -> tuple[int | None, ...]:
    return (plan.static_left_bytes,) if static_only else (plan.static_left_bytes, plan.headroom_bytes)


def largest_within(plan_at: Callable[[int], MemoryPlan], low: int, high: int, *, static_only: bool = False) -> int | None:
    """The largest number whose plan is within the budget. Bytes grow evenly with it, so a straight line between the ends is a good guess."""
    if low > high:
        return None
    ends = [_spare(plan_at(number), static_only) for number in (low, high)]
    guesses = [
        low + first * (high - low) // (first - last)
        for first, last in zip(*ends, strict=True)
        if first is not None and last is not None and first > last
    ]
    return largest(lambda number: within_budget(plan_at(number), static_only=static_only), low, high, min(guesses, default=None))


def _obstacle(plan: MemoryPlan) -> Unknown | None:
    """What keeps the plan from being solved: an unknown static line, or no budget."""
    line = next((line for line in plan.lines if line.share is Share.STATIC and line.unknown is not None), None)
    if line is not None:
        return line.unknown
    if plan.budget_bytes is None:
        return Unknown(field="device_memory_bytes", text="the memory of the device is not known", settle="the device, or its memory")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswer:
    """The largest pool, its plan, and which share stops a larger one ('static', 'device' or 'cap'). 0 slots: nothing fits."""

    slots: int
    plan: MemoryPlan
    limit: str
    text: str


def largest_pool(plan: MemoryPlan, *, static_only: bool = False) -> PoolAnswer | Unknown:
    """Most KV slots, in whole pages, for the fraction and the device of a plan; `max_total_tokens` caps it as in SGLang.

    static_only: what SGLang itself would take, which does not ask whether the rest of the device suffices.
    """
    if (obstacle := _obstacle(plan)) is not None:
        return obstacle
    page = plan.settings.pool.page_size
    cap = plan.settings.pool.max_total_tokens
    cell = _slot_cost(plan)
    if cell == 0:
        return Unknown(field="pool_slot_count", text="the model keeps no token KV on this rank", settle="--max-total-tokens")
    top = (plan.budget_bytes or 0) // (cell * page) + 1
    if cap is not None:
        top = min(top, max(0, cap) // page)
    pages = largest_within(lambda pages: with_slots(plan, pages * page), 1, top, static_only=static_only) or 0
    answer = with_slots(plan, pages * page)
    over = with_slots(plan, (pages + 1) * page)
    limit = "static" if over.static_left_bytes is not None and over.static_left_bytes < 0 else "device"
    if cap is not None and pages == max(0, cap) // page and within_budget(over, static_only=static_only):
        limit = "cap"
    reason = {"static": "the static share is full", "device": "the device is full", "cap": "max_total_tokens caps it"}[limit]
    text = f"{format_count(answer.settings.pool.pool_slot_count)} slots; with another page {reason}" if pages else f"no slot fits: {reason}"
    return PoolAnswer(slots=pages * page, plan=answer, limit=limit, text=text)


def with_slots(plan: MemoryPlan, slots: int) -> MemoryPlan:
    """The same plan with another pool."""
    return plan.replan(changed(plan.settings, pool_slot_count=slots))


def _slot_cost(plan: MemoryPlan) -> int:
    """Bytes of KV per slot of the larger pool: a lower bound of what one more slot costs."""
    return 0 if isinstance(plan.rank, Unknown) else plan.rank.pool_bytes("full") or plan.rank.pool_bytes("swa")


@dataclass(frozen=True, slots=True, kw_only=True)
class FractionAnswer:
    """The smallest mem_fraction_static (three digits) whose static share pays the plan's pool; None where no fraction below 1 does."""

    fraction: float | None
    plan: MemoryPlan | None
    text: str


def smallest_fraction(plan: MemoryPlan) -> FractionAnswer | Unknown:
    """Solve for mem_fraction_static at the plan's own pool. Whether the rest of the device suffices is in the answer's plan."""
    if (obstacle := _obstacle(plan)) is not None:
        return obstacle

    def at(step: int) -> MemoryPlan:
        return plan.replan(changed(plan.settings, mem_fraction_static=step / FRACTION_STEPS))

    # A larger fraction only ever leaves more, so the condition is turned round for the search of the largest step that falls short.
    guess = plan.static_bytes * FRACTION_STEPS // plan.budget_bytes if plan.budget_bytes else None
    short = largest(lambda step: (at(step).static_left_bytes or 0) < 0, 1, FRACTION_STEPS - 1, guess)
    step = 1 if short is None else short + 1
    if step >= FRACTION_STEPS:
        over = -(at(FRACTION_STEPS - 1).static_left_bytes or 0)
        return FractionAnswer(fraction=None, plan=None, text=f"no fraction below 1 pays for this pool: {format_bytes(over)} too much")
    answer = at(step)
    rest = answer.headroom_bytes or 0
    left = f"{format_bytes(rest)} stay free" if rest >= 0 else f"but the device is {format_bytes(-rest)} too small for the rest"
    return FractionAnswer(fraction=step / FRACTION_STEPS, plan=answer, text=f"{step / FRACTION_STEPS} pays for the pool; {left}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """Longest context for a number of requests that all reach it at once; 0 where not even a short one fits.

    `limit` says what stops a longer one: 'memory', 'pool' or 'model' (its positions end).
    """

    concurrency: int
    context: int
    pool_slots: int
    limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Longest context by concurrency at fixed memory, and where the plan's own settings lie."""

    points: tuple[FrontierPoint, ...]
    current: FrontierPoint
    current_fits: bool


def _slots_for(settings: Settings, concurrency: int, context: int) -> int:
    page = settings.pool.page_size
    return concurrency * ceil(context / page) * page


def largest_context(plan: MemoryPlan, concurrency: int, *, fixed: str = "memory") -> FrontierPoint | Unknown:
    """Longest context that `concurrency` requests can all reach at once.

    fixed='memory': the pool and the request table grow with it until the budget is used up. fixed='pool': the pool stays as it is, only
    the slots are shared out. Prefix sharing is not counted on.
    """
    positions = plan.geometry.max_position_embeddings
    page = plan.settings.pool.page_size
    if fixed == "pool":
        context = max(0, plan.settings.pool.pool_slot_count) // concurrency // page * page
        limit = "pool"
        if positions is not None and context > positions:
            context, limit = positions, "model"
        slots = plan.settings.pool.pool_slot_count
        return FrontierPoint(concurrency=concurrency, context=context, pool_slots=slots, limit=limit)
    if (obstacle := _obstacle(plan)) is not None:
        return obstacle
    cell = _slot_cost(plan)
    if cell == 0:
        return Unknown(field="pool_slot_count", text="the model keeps no token KV on this rank", settle="--max-total-tokens")
    top = (plan.budget_bytes or 0) // cell // concurrency + page
    if positions is not None:
        top = min(top, positions)
    context = largest_within(lambda length: _at_point(plan, concurrency, length), 1, top) or 0
    limit = "model" if positions is not None and context == positions else "memory"
    return FrontierPoint(concurrency=concurrency, context=context, pool_slots=_slots_for(plan.settings, concurrency, context), limit=limit)


def _at_point(plan: MemoryPlan, concurrency: int, context: int) -> MemoryPlan:
    settings = plan.settings
    width = int(request_row_width(context, settings.batch.speculative_num_draft_tokens).value)
    slots = _slots_for(settings, concurrency, context)
    return plan.replan(changed(settings, req_to_token_pool_size=concurrency, max_seq_len_per_req=width, pool_slot_count=slots))


def frontier(plan: MemoryPlan, concurrencies: Sequence[int] = DEFAULT_CONCURRENCIES) -> Frontier | Unknown:
    """Points of largest_context at fixed memory, ascending by concurrency, with the plan's own point."""
    rows = max(1, plan.settings.pool.req_to_token_pool_size)
    points: list[FrontierPoint] = []
    for concurrency in sorted({*concurrencies, rows}):
        point = largest_context(plan, concurrency)
        if isinstance(point, Unknown):
            return point
        points.append(point)
    spare = 4 + (plan.settings.batch.speculative_num_draft_tokens or 0)
    context = max(0, plan.settings.pool.max_seq_len_per_req - spare)
    slots = _slots_for(plan.settings, rows, context)
    current = FrontierPoint(concurrency=rows, context=context, pool_slots=slots, limit="")
    return Frontier(points=tuple(points), current=current, current_fits=bool(context) and within_budget(_at_point(plan, rows, context)))
