"""The catalogue as data: complete, named once, and honest about what is out of reach."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.faults.catalogue import CATALOGUE, find, reach
from kvcanary.faults.injectors import Injector
from kvcanary.layout import RealKvHashMode

EVERYTHING = CanaryConfig(
    real_data=RealKvHashMode.ALL, verify_v_half=True, sweep_interval=1, verify_token_assert=True, write_input_assert=True, strict=True
)
VARIANTS = [(fault.kind, variant.name) for fault in CATALOGUE for variant in fault.variants]


def test_names_are_unique_and_sglangs_five_modes_are_covered() -> None:
    assert len(set(VARIANTS)) == len(VARIANTS)
    modes = {variant.perturb for fault in CATALOGUE for variant in fault.variants} - {""}
    assert modes == {"req_to_token", "real_kv_used", "real_kv_unused_cache", "real_kv_post_forward", "next_token_swap"}


@pytest.mark.parametrize(("kind", "name"), VARIANTS)
def test_a_configuration_that_sees_nothing_gets_the_reason(kind: str, name: str) -> None:
    variant = find(kind, name)
    for config in (CanaryConfig(), CanaryConfig(real_data=RealKvHashMode.PARTIAL), EVERYTHING):
        here = reach(variant, config)
        assert here.visible == bool(here.sightings)
        assert bool(here.reason) != here.visible


@pytest.mark.parametrize(("kind", "name"), VARIANTS)
def test_what_lies_in_memory_can_be_injected(kind: str, name: str) -> None:
    if find(kind, name).in_memory:
        Injector(kind, name, seed=0)
    else:
        assert not reach(find(kind, name), EVERYTHING).visible


@pytest.mark.parametrize(
    ("kind", "name", "config", "visible", "certain"),
    [
        ("payload_bytes", "cached_only", {"real_data": RealKvHashMode.ALL, "sweep_interval": 8}, True, True),
        ("payload_bytes", "cached_only", {"real_data": RealKvHashMode.ALL}, True, False),
        ("payload_bytes", "cached_only", {"sweep_interval": 8}, False, False),
        ("payload_bytes", "v_row", {"real_data": RealKvHashMode.ALL}, False, False),
        ("payload_bytes", "later_bytes", {"real_data": RealKvHashMode.PARTIAL}, False, False),
        ("token_swap", "sampler_exit", {"verify_token_assert": True}, False, False),
        ("slot_alias", "cell_to_slot_0", {"strict": True}, True, True),
        ("slot_alias", "two_requests", {}, True, False),
        ("slot_alias", "two_requests", {"real_data": RealKvHashMode.PARTIAL}, True, True),
    ],
)
def test_reach(kind: str, name: str, config: dict[str, Any], visible: bool, certain: bool) -> None:
    here = reach(find(kind, name), CanaryConfig(**config))
    assert (here.visible, here.certain) == (visible, certain)
