from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvcanary.config.memory import memory_plan
from kvcanary.config.reconcile import bytes_per_token, plan_to_compare, reconcile
from kvcanary.config.reconciliation import Reconciliation, Row, Status
from kvcanary.errors import ConfigError
from kvcanary.units import GIB
from tests.config.plans import BASE, WINDOW, server

HALF = 24 * 6 * 96 * 2
FREE = {"free_before_load_bytes": int(45.4 * GIB)}


def printed(size_bytes: float) -> float:
    """A size as SGLang prints it: GiB with two digits."""
    return round(size_bytes / GIB, 2)


def log_of(**changes: Any) -> dict[str, Any]:
    """A complete log of the base server, made from its own numbers the way the engine prints them."""
    weights, slots = 18 * GIB, 150_000
    after = 45.4 * GIB - weights
    pool = (slots + 1) * 2 * HALF
    tables = 4 * 201 * 20_004
    canary = 150_001 * 128 + 65_540 + 196
    return {
        "load_weight_mem_gb": 18.0,
        "load_weight_avail_gb": printed(after),
        "kv_tokens": slots,
        "k_size_gb": printed(pool / 2),
        "v_size_gb": printed(pool / 2),
        "memory_pool_end_avail_gb": printed(after - pool - tables),
        "cuda_graph_mem_gb": printed(900 << 20),
        "canary": {"verify_capacity": 450_000, "write_req_capacity": 200, "write_entry_capacity": 4096},
        "max_total_num_tokens": slots,
        "max_running_requests": 200,
        "context_len": 20_000,
        "available_gpu_mem_gb": printed(after - pool - tables - canary - (900 << 20)),
        **changes,
    }


def rows(result: Reconciliation) -> dict[str, Row]:
    return {row.name: row for row in result.rows}


def compare(settings: dict[str, Any] | None = None, **log: Any) -> dict[str, Row]:
    return rows(reconcile(memory_plan(server(**FREE, **(settings or {}))), log_of(**log)))


def test_a_log_of_the_planned_server_agrees_in_every_line() -> None:
    found = compare({"mem_fraction_static": None})
    assert {name: row.status for name, row in found.items() if row.status is not Status.AGREES} == {}
    assert {"load_weight_mem_gb", "target_k_bytes_per_token", "available_gpu_mem_gb", "canary_verify_capacity", "context_len"} <= set(found)


def test_missing_values_give_no_row() -> None:
    assert reconcile(memory_plan(server()), {}).rows == ()
    assert reconcile(memory_plan(server()), {"kv_tokens": None, "canary": None}).rows == ()
    assert "nothing" in reconcile(memory_plan(server()), {}).text


def test_values_the_plan_does_not_have() -> None:
    plan = memory_plan(server(weight_bytes=None))
    row = rows(reconcile(plan, {"load_weight_mem_gb": 3.0}))["load_weight_mem_gb"]
    assert row.status is Status.NOT_PLANNED
    assert row.difference is None


def test_a_wrong_head_count_is_unexplained() -> None:
    found = compare({"num_kv_heads": 3})
    assert found["target_k_bytes_per_token"].status is Status.UNEXPLAINED
    result = reconcile(memory_plan(server(**FREE, num_kv_heads=3)), log_of())
    assert "K bytes per token" in result.text
    assert {row.name for row in result.unexplained} >= {"target_k_bytes_per_token", "target_v_bytes_per_token"}


def test_half_a_percent_is_told_apart() -> None:
    size = printed((150_001) * HALF * 1.006)
    assert compare(k_size_gb=size)["target_k_bytes_per_token"].status is Status.UNEXPLAINED
    assert compare(k_size_gb=printed(150_001 * HALF * 1.003))["target_k_bytes_per_token"].status is Status.AGREES


def test_resize_after_capture_explains_the_pool_and_the_canary() -> None:
    found = compare({"pool_slot_count": 120_000}, max_total_num_tokens=120_000)
    assert found["kv_tokens"].status is Status.EXPLAINED
    assert "resized from 150000 to 120000" in found["kv_tokens"].why
    assert found["canary_verify_capacity"].status is Status.EXPLAINED
    assert "installed for 150000 slots" in found["canary_verify_capacity"].why
    assert found["max_total_num_tokens"].status is Status.AGREES


def test_page_rounding_and_cap_are_explained() -> None:
    found = compare({"pool_slot_count": 150_030, "page_size": 64}, kv_tokens=149_976, max_total_num_tokens=149_976)
    assert "page of 64" in found["kv_tokens"].why
    capped = compare(kv_tokens=99_000, max_total_num_tokens=99_000, server_args={"max_total_tokens": 99_000})
    assert "--max-total-tokens 99000" in capped["kv_tokens"].why
    assert compare(kv_tokens=99_000, max_total_num_tokens=99_000)["kv_tokens"].status is Status.UNEXPLAINED


def test_request_limit_is_explained_by_the_engine_s_rule() -> None:
    found = compare(max_running_requests=3840)
    # int(150 000 / 20 000 * 512) = 3840.
    assert found["max_running_requests"].status is Status.EXPLAINED
    assert "150000 / 20000 x 512" in found["max_running_requests"].why
    assert compare(max_running_requests=77)["max_running_requests"].status is Status.UNEXPLAINED
    assert "state cache" in compare(max_running_requests=50, mamba_cache_size=150)["max_running_requests"].why


def test_pool_from_the_free_memory() -> None:
    budget = 45.4 * GIB - 18 * GIB - 45.4 * GIB * (1 - 0.8)
    tokens = int(budget) // (2 * HALF)
    row = compare({"mem_fraction_static": 0.8, "pool_slot_count": tokens}, kv_tokens=tokens)["pool_from_budget"]
    assert row.status is Status.AGREES
    assert compare({"mem_fraction_static": 0.7}, kv_tokens=tokens)["pool_from_budget"].status is Status.UNEXPLAINED


def test_a_cap_explains_a_pool_below_the_free_memory() -> None:
    assert compare({"mem_fraction_static": 0.9}, server_args={"max_total_tokens": 150_000})["pool_from_budget"].why == (
        "--max-total-tokens 150000 caps the pool"
    )
    # A cap that lies far above what was taken explains nothing.
    assert compare({"mem_fraction_static": 0.9}, server_args={"max_total_tokens": 190_000})["pool_from_budget"].status is Status.UNEXPLAINED
    assert compare({"mem_fraction_static": 0.9}, server_args={"max_total_tokens": 149_000})["pool_from_budget"].status is Status.UNEXPLAINED


def test_ranks_that_differ_are_compared_by_the_one_that_decides() -> None:
    whole = log_of()
    free, end, graphs = (float(whole[name]) for name in ("load_weight_avail_gb", "memory_pool_end_avail_gb", "cuda_graph_mem_gb"))
    found = compare(
        {"mem_fraction_static": None},
        load_weight_mem_gb=None, load_weight_mem_gb_min=17.9, load_weight_mem_gb_by_rank={"TP0": 18.0, "TP1": 17.9},
        load_weight_avail_gb=None, load_weight_avail_gb_min=free, load_weight_avail_gb_by_rank={"TP0": free, "TP1": free + 0.1},
        memory_pool_end_avail_gb=None, memory_pool_end_avail_gb_min=end,
        cuda_graph_mem_gb=None, cuda_graph_mem_gb_by_rank={"TP0": graphs, "TP1": graphs - 0.1},
    )  # fmt: skip
    names = ("load_weight_mem_gb", "memory_pool_end_avail_gb", "cuda_graph_mem_gb")
    assert {name: found[name].status for name in names} == dict.fromkeys(names, Status.AGREES)


def test_cell_size_is_compared_to_the_byte() -> None:
    assert compare(kv_pool_sizing={"cell_size": 2 * HALF})["cell_size"].status is Status.AGREES
    assert compare(kv_pool_sizing={"cell_size": 2 * HALF + 1})["cell_size"].status is Status.UNEXPLAINED


def test_two_pools_are_compared_each_with_its_own() -> None:
    plan = memory_plan(server(**WINDOW))
    full, small = 6 * 6 * 96 * 2, 18 * 3 * 96 * 2
    log = {
        "kv_pools": [
            {"kind": "swa", "tokens": 45_000, "k_size_gb": printed(45_001 * small), "v_size_gb": printed(45_001 * small)},
            {"kind": "full", "tokens": 150_000, "k_size_gb": printed(150_001 * full), "v_size_gb": printed(150_001 * full)},
        ],
        "full_layer_tokens": 150_000,
        "swa_layer_tokens": 45_000,
    }
    found = rows(reconcile(plan, log))
    assert {row.status for row in found.values()} == {Status.AGREES}
    assert {"swa_k_bytes_per_token", "full_v_bytes_per_token", "swa_layer_tokens"} == set(found) - {
        "swa_v_bytes_per_token",
        "full_k_bytes_per_token",
    }
    log["swa_layer_tokens"] = 30_000
    assert "0.200 of the full one" in rows(reconcile(plan, log))["swa_layer_tokens"].why


def test_one_kv_size_of_a_latent_model() -> None:
    latent = {"kv_lora_rank": 384, "qk_rope_head_dim": 48, "pool_class": "MLATokenToKVPool", "num_kv_heads": None, "head_dim": None}
    plan = memory_plan(server(**latent))
    log = {"kv_tokens": 150_000, "kv_size_gb": printed(150_001 * 24 * 432 * 2)}
    assert rows(reconcile(plan, log))["target_kv_bytes_per_token"].status is Status.AGREES


def test_reserved_address_space_explains_the_free_memory() -> None:
    row = compare(kv_tokens_upper_bound=200_000, memory_pool_end_avail_gb=27.4)["memory_pool_end_avail_gb"]
    assert row.status is Status.EXPLAINED
    assert "reserves addresses" in row.why


def test_reserved_workspace_is_that_of_the_installed_capacities() -> None:
    installed = {"verify_capacity": 60_000_000, "write_req_capacity": 200, "write_entry_capacity": 4096}
    found = compare(canary=installed, kv_tokens_upper_bound=20_000_000, post_capture={"canary_workspace_gb": 1.79})
    assert found["canary_workspace_gb"].status is Status.AGREES
    assert found["canary_verify_capacity"].status is Status.EXPLAINED


def test_addresses_that_were_only_reserved_explain_the_pool() -> None:
    found = compare({"pool_slot_count": 170_000}, kv_tokens_upper_bound=170_000)
    for name in ("kv_tokens", "max_total_num_tokens"):
        assert "installed for 170000 slots of reserved addresses; 150000 were backed" in found[name].why


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ({"post_capture": {"max_running_requests_before": 260}}, "installed for 260 requests"),
        ({}, "the larger of 200 request rows and the decode graphs, so those go up to 260"),
        ({"cuda_graph_bs_max": 32}, ""),
    ],
)
def test_request_capacity_of_the_install_line(log: dict[str, Any], reason: str) -> None:
    installed = {"verify_capacity": 450_000, "write_req_capacity": 260, "write_entry_capacity": 4096}
    row = compare(canary=installed, **log)["canary_write_req_capacity"]
    assert row.status is (Status.EXPLAINED if reason else Status.UNEXPLAINED)
    assert reason in row.why


def test_a_log_is_laid_beside_layers_and_heads_and_not_beside_itself() -> None:
    wrong = server(kv_bytes_per_token=4 * HALF)
    assert plan_to_compare(wrong).geometry.stated_bytes_per_token is None
    found = rows(reconcile(plan_to_compare(wrong), log_of()))
    assert found["target_k_bytes_per_token"].status is Status.AGREES
    only_stated = server(kv_bytes_per_token=2 * HALF, num_layers=None)
    assert plan_to_compare(only_stated).geometry.stated_bytes_per_token == 2 * HALF


def test_one_figure_for_k_and_v_is_compared_with_their_sum() -> None:
    settings = {"kv_bytes_per_token": 2 * HALF, "num_layers": None}
    found = compare(settings, kv_pool_sizing={"cell_size": 2 * HALF + 100})
    assert found["target_kv_bytes_per_token"].status is Status.AGREES
    assert "target_k_bytes_per_token" not in found
    # 100 of 55 296 bytes are 0.2 %, within what the printed sizes leave open.
    assert found["cell_size"].status is Status.AGREES
    assert compare({**settings, "kv_bytes_per_token": HALF})["target_kv_bytes_per_token"].status is Status.UNEXPLAINED


def test_what_is_missing_says_what_would_settle_it() -> None:
    assert "num_layers is not stated" in compare({"num_layers": None})["target_k_bytes_per_token"].why
    pools = [{"kind": "draft", "tokens": 150_000, "k_size_gb": 0.5, "v_size_gb": 0.5}]
    draft = compare({"speculative_num_draft_tokens": 3}, kv_pools=pools)["draft_k_bytes_per_token"]
    assert draft.status is Status.NOT_PLANNED
    assert "draft model's layers are not stated" in draft.why


@given(st.integers(1, 10**7), st.sampled_from([1, 16, 64, 256]), st.integers(16, 10**6))
def test_bytes_per_token_lie_in_the_range_that_rounding_leaves(tokens: int, page_size: int, per_token: int) -> None:
    measured = bytes_per_token(printed((tokens + page_size) * per_token), tokens, page_size)
    # round() may fall on the even side of an exact half, a hair outside.
    assert measured.low - 1e-6 * per_token <= per_token <= measured.high + 1e-6 * per_token


def test_a_pool_without_tokens_has_no_bytes_per_token() -> None:
    with pytest.raises(ConfigError, match="at least 1 token"):
        bytes_per_token(1.0, 0, 1)


def test_base_is_what_the_log_was_made_from() -> None:
    assert BASE["pool_slot_count"] == 150_000
    assert BASE["req_to_token_pool_size"] == 200


WORDS = st.sampled_from(["none", "auto", "", True, float("inf"), float("nan"), [], {}, ["1"], {"a": 1}, -1, 0, 10**30, 10**400, 2.5, None])
PRINTED = {
    "server_args": ("page_size", "max_total_tokens", "max_running_requests"),
    "kv_pool_sizing": ("cell_size",),
    "canary": ("verify_capacity", "write_req_capacity", "write_entry_capacity"),
    "post_capture": ("canary_workspace_gb", "max_running_requests_before"),
}


@given(
    st.dictionaries(st.sampled_from([*log_of(), *PRINTED, "mamba_cache_size", "kv_pools", "kv_tokens_upper_bound"]), WORDS, max_size=4),
    st.fixed_dictionaries(
        {}, optional={name: st.fixed_dictionaries({}, optional=dict.fromkeys(keys, WORDS)) for name, keys in PRINTED.items()}
    ),
)
@example({"kv_tokens": 10**400}, {})
@example({"max_running_requests": 8, "max_total_num_tokens": 64, "context_len": 0}, {})
@example({"max_total_num_tokens": True}, {})
def test_whatever_stands_where_a_number_is_printed_is_compared_or_left_out(top: dict[str, Any], inner: dict[str, Any]) -> None:
    for row in compare(**{**inner, **top}).values():
        assert isinstance(row.observed, int | float)
        assert not isinstance(row.observed, bool)
        assert row.status in Status
