"""What the canary costs in slots, and the changes that make a plan over budget fit. Every figure is tried on the plan itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvcanary.config.findings import Fix
from kvcanary.config.geometry import Unknown
from kvcanary.config.memory import MemoryPlan, memory_plan
from kvcanary.config.settings import flag_text
from kvcanary.config.solve import (
    FractionAnswer,
    PoolAnswer,
    changed,
    largest,
    largest_pool,
    largest_within,
    smallest_fraction,
    with_slots,
    within_budget,
)
from kvcanary.units import format_bytes, format_count, format_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryCost:
    """What the canary costs in one mode at equal memory: slots that are left of the pool, and the share lost."""

    mode: str
    label: str
    canary_bytes: int
    slots_without: int
    slots_with: int
    text: str

    @property
    def lost_slots(self) -> int:
        """Slots given up for the canary."""
        return self.slots_without - self.slots_with

    @property
    def lost_fraction(self) -> float:
        """Share of the pool given up, 0..1."""
        return self.lost_slots / self.slots_without if self.slots_without else 0.0


CANARY_MODES = (
    ("none", {"mode": "none"}, "off"),
    ("log", {"mode": "log", "verify_token_assert": False}, "log or raise, any real-data depth, with or without the V half"),
    ("log+tokens", {"mode": "log", "verify_token_assert": True}, "log or raise with the token check"),
)


def canary_cost(plan: MemoryPlan) -> tuple[CanaryCost, ...] | Unknown:
    """Slots lost to the canary by mode: the pool shrinks until pool and canary take what the pool alone took.

    Real-data depth and the V half change time, not memory. SGLang does not shrink the pool by itself, except for the workspace when it
    sizes after capture: the figures say what the same bytes would have bought.
    """
    if isinstance(plan.rank, Unknown) or plan.geometry.window_pool is None:
        return plan.line("kv_pool").unknown or Unknown(field="kv_pool", text="KV bytes are not known", settle="config.json")
    page, slots = plan.settings.pool.page_size, max(0, plan.settings.pool.pool_slot_count)
    without = plan.replan(changed(plan.settings, mode="none")).known_bytes

    def cost(mode: str, values: dict[str, Any], label: str) -> CanaryCost:
        base = plan.replan(changed(plan.settings, **values))
        canary_bytes, left = base.canary_bytes, slots
        if values["mode"] != "none":
            per_slot = (base.known_bytes - with_slots(base, 0).known_bytes) / slots if slots else 0
            guess = int(slots - (base.known_bytes - without) / per_slot) // page if per_slot else None
            pages = largest(lambda pages: with_slots(base, pages * page).known_bytes <= without, 0, slots // page, guess)
            left = (pages or 0) * page
        lost = format_fraction((slots - left) / slots) if slots else format_fraction(0.0)
        text = f"canary costs {lost} of the pool: {format_count(slots)} -> {format_count(left)} slots ({format_bytes(canary_bytes)})"
        return CanaryCost(mode=mode, label=label, canary_bytes=canary_bytes, slots_without=slots, slots_with=left, text=text)

    return tuple(cost(mode, values, label) for mode, values, label in CANARY_MODES)


def fraction_for_one_request(plan: MemoryPlan) -> FractionAnswer | Unknown:
    """The smallest mem_fraction_static that pays for the weights and a pool of one request of full length."""
    pool = plan.settings.pool
    page = pool.page_size
    return smallest_fraction(with_slots(plan, -(-max(1, pool.max_seq_len_per_req) // page) * page))


def remedies(plan: MemoryPlan) -> tuple[Fix, ...]:
    """Changes that make a plan over budget fit, each tried on the plan itself; empty where it fits or nothing single helps."""
    if within_budget(plan):
        return ()
    settings = plan.settings
    found: list[Fix] = []
    pool = largest_pool(plan)
    if isinstance(pool, PoolAnswer) and pool.slots:
        shown = f"pool {format_count(settings.pool.pool_slot_count)} -> {format_count(pool.slots)} slots"
        found.append(_fix("pool_slot_count", pool.slots, f"{shown} fits"))
    fraction = smallest_fraction(plan)
    if isinstance(fraction, FractionAnswer) and fraction.plan is not None and within_budget(fraction.plan):
        was = settings.memory.mem_fraction_static
        if fraction.fraction != was:
            found.append(_fix("mem_fraction_static", fraction.fraction, f"static fraction {was} -> {fraction.fraction} pays for this pool"))
    for field, value, text in (
        ("mode", "none", f"canary off frees {format_bytes(plan.canary_bytes)}"),
        ("verify_token_assert", False, "token check off frees its table"),
    ):
        trial = changed(settings, **{field: value})
        if trial != settings and within_budget(plan.replan(trial)):
            found.append(_fix(field, value, text))
    if (smaller := _smaller_dtype(plan)) is not None and within_budget(smaller):
        found.append(_fix("kv_dtype", "fp8_e4m3", "KV in fp8 halves the bytes of the pool"))
    rows = largest_within(
        lambda rows: plan.replan(changed(settings, req_to_token_pool_size=rows)), 1, settings.pool.req_to_token_pool_size - 1
    )
    if rows is not None:
        found.append(_fix("req_to_token_pool_size", rows, f"request rows {settings.pool.req_to_token_pool_size} -> {rows} fits"))
    return tuple(found)


def _smaller_dtype(plan: MemoryPlan) -> MemoryPlan | None:
    """The plan with KV in fp8; None where the type is not 16 bits wide or the bytes per token were stated."""
    if plan.geometry.kv_dtype not in ("bfloat16", "float16") or plan.geometry.stated_bytes_per_token is not None:
        return None
    settings = changed(plan.settings, kv_dtype="fp8_e4m3")
    given = None if plan.given_geometry is None else replace(plan.given_geometry, kv_dtype="fp8_e4m3")
    return memory_plan(settings, given, plan.given_draft)


def _fix(field: str, value: int | float | str | bool | None, text: str) -> Fix:
    return Fix(field=field, value=value, flag=flag_text(field, value), text=text)
