"""Any order of submitting, stepping, aborting and evicting keeps the conservation law and every reader's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.request import RequestSpec
from tests.serving.conftest import MECHANISMS, small_options
from tests.serving.shadow import ShadowMemory

TIGHT: dict[str, Any] = {"pool_slot_count": 96, "req_to_token_pool_size": 5, "max_seq_len_per_req": 60, "chunked_prefill_size": 16}
TIGHT_OVER: dict[str, Any] = {"swa_pool_slot_count": 72, "host_slot_count": 64}


class EngineMachine(RuleBasedStateMachine):
    """The engine under random orders; the mechanism under test is a class attribute of the subclass."""

    mechanism: dict[str, Any]

    @initialize(seed=st.integers(0, 3))
    def start(self, seed: int) -> None:
        tight = {**TIGHT, **{name: value for name, value in TIGHT_OVER.items() if name in self.mechanism}}
        self.engine = ServingEngine(small_options(**{**self.mechanism, **tight, "seed": seed}))
        self.shadow = ShadowMemory(self.engine)
        self.submitted = self.aborted = 0

    @rule(stem=st.integers(0, 2), shared=st.integers(0, 20), own=st.integers(1, 20), output=st.integers(1, 18), namespace=st.integers(0, 1))
    def submit(self, stem: int, shared: int, own: int, output: int, namespace: int) -> None:
        prompt = np.concatenate([np.arange(shared) + 100 * stem, np.arange(own) + 400 + self.submitted]).astype(np.int32)
        self.engine.submit(RequestSpec(prompt=prompt, output_len=output, namespace=namespace))
        self.submitted += 1

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            step = self.engine.schedule()
            if step is None:
                return
            self.shadow.run(step)
            self.engine.complete()
            self.engine.check()

    @precondition(lambda self: self.submitted > self.aborted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.engine.abort(data.draw(st.integers(1, self.submitted))):
            self.aborted += 1

    @rule()
    def evict(self) -> None:
        tree = self.engine.memory.tree
        locked = {node.serial for node in tree.nodes() if node.lock} if tree else set()
        self.engine.memory.evict_one()
        assert locked <= ({node.serial for node in tree.nodes() if node.slots is not None} if tree else set())

    @invariant()
    def every_slot_is_in_one_hand(self) -> None:
        self.engine.check()

    @invariant()
    def the_tree_counts_what_it_holds(self) -> None:
        tree = self.engine.memory.tree
        if tree is not None:
            assert tree.evictable == sum(len(node.device_slots) for node in tree.nodes() if not node.lock)
            assert tree.protected == sum(len(node.device_slots) for node in tree.nodes() if node.lock)
            assert tree.protected >= self.engine.memory.table.cached_lens.max()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for step in self.engine.steps():
            self.shadow.run(step)
            assert step.index < 10_000
        ledger = self.engine.check()
        assert ledger.held == ledger.in_flight == 0
        tree = self.engine.memory.tree
        assert tree is None or tree.protected == 0
        assert all(node.window_lock == 0 for node in tree.nodes()) if tree else True


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name not in ("tight", "no-chunks")])
def test_any_order_of_operations_keeps_the_law(name: str) -> None:
    machine = type("Machine", (EngineMachine,), {"mechanism": MECHANISMS[name]})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]),
    )
