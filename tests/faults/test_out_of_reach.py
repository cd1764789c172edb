"""What changes nothing in memory: the fault happens, every check is on, and the canary says nothing. Something else has to notice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvcanary.errors import ServingError
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.catalogue import CATALOGUE, find, reach
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.executors import CanaryExecutor
from kvcanary.layout import RealKvHashMode
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.pool import Int64Array
from kvcanary.serving.request import RequestSpec
from tests.serving.conftest import shared_prefixes, small_options

EVERYTHING = CanaryConfig(
    real_data=RealKvHashMode.ALL, verify_v_half=True, sweep_interval=1, verify_token_assert=True, write_input_assert=True, strict=True
)


def executor_for(options: ServingOptions) -> CanaryExecutor:
    return CanaryExecutor(options, EVERYTHING, choose_backend("auto")[0])


def test_a_leak_is_seen_by_the_sum_over_all_hands_and_by_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    options = small_options(radix_cache=False)
    engine = ServingEngine(options, shared_prefixes(12, 1))
    pool, leaked = engine.memory.pool, list[list[int]]()
    release = pool.release_slots

    def leaking(slots: Int64Array) -> None:
        if not leaked and len(slots) > 2:
            leaked.append(slots[:2].tolist())
            slots = slots[2:]
        release(slots)

    monkeypatch.setattr(pool, "release_slots", leaking)
    executor = executor_for(options)
    for step in engine.steps():
        assert not executor.run(step).reported
    assert leaked
    with pytest.raises(ServingError, match=rf"= 318 of 320 slots; 2 slots are in no hand, the first is {min(leaked[0])}"):
        engine.check()


def test_a_key_without_the_adapter_hits_anothers_prefix_in_silence() -> None:
    prompt = np.arange(1, 41, dtype=np.int32)
    requests = [RequestSpec(prompt=prompt, output_len=3, arrival_s=float(index), namespace=index) for index in range(2)]
    options = small_options()
    for keyed, cached in ((requests, 0), ([replace(spec, namespace=0) for spec in requests], 39)):
        executor = executor_for(options)
        prefixes = []
        for step in ServingEngine(options, keyed).steps():
            assert not executor.run(step).reported
            prefixes.append(int(step.prefix_lens[0]))
        # Four forwards of the first request, then the second: with the key its own prompt, without it the other adapter's.
        assert prefixes[4] == cached


def test_every_variant_that_no_configuration_sees_gives_a_reason_or_a_proof() -> None:
    blind = {
        (fault.kind, variant.name)
        for fault in CATALOGUE
        for variant in fault.variants
        if not reach(find(fault.kind, variant.name), EVERYTHING).visible
    }
    # Those in memory are injected by test_injectors under every configuration, and stay silent there.
    assert {pair for pair in blind if not find(*pair).in_memory} == {
        ("stale_prefix_hit", "key_without_adapter"),
        ("address_overflow", "load_wraps"),
        ("recurrent_state", "wrong_boundary"),
        ("slot_leak", "never_freed"),
    }
    assert {pair for pair in blind if find(*pair).in_memory} == {
        ("padding_slot", "slot_0"),
        ("payload_bytes", "bad_before_hash"),
        ("tier_reload", "early_read"),
    }
