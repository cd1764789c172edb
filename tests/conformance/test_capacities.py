"""Capacities, first errors and workspace against SGLang's own CanaryLaunchCapacities."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvcanary.config.capacities import LaunchCapacities
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from tests.conformance.sglang_wheel import WheelUnavailable, load, load_kernel

CASES = 5000
# What SGLang reads from its process-wide context instead of from arguments.
CONTEXT = SimpleNamespace(graph=None, draft=None, prefill=1, chunk=None)


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    stub = {
        "get_exec": lambda: SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=CONTEXT.graph)),
        "get_spec": lambda: SimpleNamespace(speculative_num_draft_tokens=CONTEXT.draft),
        "get_schedule": lambda: SimpleNamespace(max_prefill_tokens=CONTEXT.prefill, chunked_prefill_size=CONTEXT.chunk),
        "get_observability": lambda: None,
    }
    try:
        load_kernel("verify")
        return load("sglang.srt.kv_canary.capacities", {"sglang.srt.runtime_context": stub})
    except WheelUnavailable as error:
        pytest.skip(str(error))


def _random_flat(random: np.random.Generator) -> dict[str, Any]:
    def size() -> int:
        return int(
            random.choice([-3, -1, 0, 1, 2, 7, 96, 4096, 5000, int(random.integers(1, 10**7))], p=[0.02, 0.02, 0.03] + [0.93 / 7] * 7)
        )

    def maybe(value: int) -> int | None:
        return None if random.random() < 0.25 else value

    return {
        "req_to_token_pool_size": size(), "max_seq_len_per_req": size(), "pool_slot_count": size(), "cuda_graph_max_bs": maybe(size()),
        "speculative_num_draft_tokens": maybe(int(random.integers(-2, 17))), "max_prefill_tokens": size(), "chunked_prefill_size": maybe(size()),
    }  # fmt: skip


def _theirs(theirs: ModuleType, flat: dict[str, Any], groups: int) -> tuple[int, ...] | str:
    graph = flat["cuda_graph_max_bs"]
    CONTEXT.graph = None if graph is None else SimpleNamespace(decode=SimpleNamespace(max_bs=graph))
    CONTEXT.draft, CONTEXT.prefill, CONTEXT.chunk = (
        flat[name] for name in ("speculative_num_draft_tokens", "max_prefill_tokens", "chunked_prefill_size")
    )
    arguments = {name: flat[name] for name in ("req_to_token_pool_size", "max_seq_len_per_req", "pool_slot_count")}
    try:
        found = theirs.CanaryLaunchCapacities.from_args(**arguments)
    except ValueError as error:
        return str(error)
    return (
        found.per_forward_verify_capacity,
        found.per_forward_write_req_capacity,
        found.per_forward_write_entry_capacity,
        found.per_forward_workspace_bytes(num_buffer_groups=groups),
    )


def _ours(flat: dict[str, Any], groups: int) -> tuple[int, ...] | str:
    try:
        found = LaunchCapacities.from_settings(Settings.from_flat(flat))
    except ConfigError as error:
        return str(error)
    return found.verify_capacity, found.write_req_capacity, found.write_entry_capacity, found.workspace_bytes(groups)


def test_values_and_first_errors_are_equal(theirs: ModuleType) -> None:
    random = np.random.default_rng(20)
    refused = 0
    for _ in range(CASES):
        flat, groups = _random_flat(random), int(random.integers(1, 4))
        expected = _theirs(theirs, flat, groups)
        assert _ours(flat, groups) == expected, flat
        refused += isinstance(expected, str)
    assert CASES * 0.1 < refused < CASES * 0.9
