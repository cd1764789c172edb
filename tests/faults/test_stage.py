"""The stage of a fault has its mechanism, fits any pool, and leaves other faults alone."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary.faults.catalogue import CATALOGUE
from kvcanary.faults.stage import RELOAD_KINDS, stage
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.events import EventKind
from kvcanary.serving.options import ServingOptions
from tests.serving.conftest import MECHANISMS, shared_prefixes, small_options

KINDS = [fault.kind for fault in CATALOGUE]


STAGED = [*((kind, "") for kind in KINDS), ("draft_pool", "chunk_end_after_retraction")]


@pytest.mark.parametrize("mechanism", list(MECHANISMS))
def test_every_kind_can_be_staged_on_every_mechanism(mechanism: str) -> None:
    options = small_options(**MECHANISMS[mechanism])
    for kind, variant in STAGED:
        staged = stage(options, kind, variant)
        assert (staged.page_size, staged.seed) == (options.page_size, options.seed)
        # 1.25 times the longest request, so that something leaves the device; the others keep their pool.
        tight = variant or (kind in RELOAD_KINDS and not options.host_slot_count)
        assert staged.pool_slot_count == (-(-150 // options.page_size) * options.page_size if tight else options.pool_slot_count)
        assert (staged.swa_pool_slot_count or 0) <= staged.pool_slot_count
        # Staged twice is staged once.
        assert stage(staged, kind, variant) == staged


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("swa_eviction", {"sliding_window": 16, "swa_pool_slot_count": 320}),
        ("spec_rollback", {"speculative_num_draft_tokens": 3}),
        ("draft_pool", {"speculative_num_draft_tokens": 3, "draft_pool": True, "chunked_prefill_size": 16}),
        ("padding_slot", {"dp_size": 2}),
        ("pd_transfer", {"disaggregation_mode": "decode", "radix_cache": False}),
        ("tier_reload", {"pool_slot_count": 150, "host_slot_count": 320}),
        ("storage_visible_garbage", {"pool_slot_count": 150, "host_slot_count": 320}),
        ("payload_bytes", {}),
    ],
)
def test_a_kind_gets_what_it_needs_and_nothing_else(kind: str, changes: dict[str, Any]) -> None:
    plain = small_options()
    assert stage(plain, kind) == ServingOptions(**{**plain.to_dict(), **changes})


def test_the_staged_mechanisms_are_at_work() -> None:
    seen = {}
    for kind, event in (
        ("swa_eviction", EventKind.WINDOW_OUT),
        ("spec_rollback", EventKind.ROLLBACK),
        ("pd_transfer", EventKind.TRANSFER_DONE),
        ("tier_reload", EventKind.RELOAD),
    ):
        steps = list(ServingEngine(stage(small_options(), kind), shared_prefixes(10, 1)).steps())
        seen[kind] = any(found.kind is event for step in steps for found in step.events)
    padded = ServingEngine(stage(small_options(), "padding_slot"), shared_prefixes(10, 1)).steps()
    seen["padding_slot"] = any(step.pad_tokens for step in padded)
    assert all(seen.values()), seen
