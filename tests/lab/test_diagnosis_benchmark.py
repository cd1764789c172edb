"""Known logs: every visible fault is there, equal seeds give equal text, and the deployment does not give the fault away."""

from __future__ import annotations

from collections import defaultdict

from kvcanary.kernels.backends import choose_backend
from kvcanary.lab import diagnosis_benchmark as bench
from kvcanary.lab.campaign import CampaignPlan


def test_cells_are_what_sglang_itself_can_see() -> None:
    cells = bench.visible_cells()
    faults = {fault for fault, _ in cells}
    assert ("slot_alias", "wrong_cell") in faults
    # Only a strict check would see these, and SGLang has none.
    assert not faults & {("slot_alias", "cell_to_slot_0"), ("payload_bytes", "other_layer"), ("slot_leak", "never_freed")}
    assert "strict" not in {config for _, config in cells}


def test_no_deployment_belongs_to_one_fault_alone() -> None:
    by_place = defaultdict(set)
    for fault, _ in bench.visible_cells():
        for place in bench.deployments(fault):
            by_place[place.name].add(fault[0])
    assert all(len(kinds) >= 10 for kinds in by_place.values())


def test_equal_keys_print_equal_text() -> None:
    backend, _ = choose_backend("auto", "cpu")
    plan = CampaignPlan(configs=bench.SGLANG_CONFIGS)
    key = ("slot_alias", "wrong_cell", "partial", 3)
    one, again = (bench.print_run(plan, key, backend) for _ in range(2))
    assert one == again
    assert "install_canary:" in one.text
    assert "kv_canary violation:" in one.without_start
    assert "install_canary:" not in one.without_start
    assert one.text.endswith(one.without_start)
