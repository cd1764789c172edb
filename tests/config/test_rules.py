"""Each rule: its sentence, its severity, the way out, and that the way out is one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary.config.defaults import mem_fraction_static
from kvcanary.config.findings import Finding, Severity
from kvcanary.config.plan_report import plan_report
from kvcanary.config.rules import RULES, validate
from kvcanary.config.rules_canary import health_trip_step
from kvcanary.config.settings import FIELDS, Settings
from kvcanary.errors import ConfigError

QUIET: dict[str, Any] = {
    "req_to_token_pool_size": 96,
    "cuda_graph_max_bs": 96,
    "max_seq_len_per_req": 20004,
    "pool_slot_count": 210_000,
    "max_prefill_tokens": 8192,
    "chunked_prefill_size": 4096,
    "real_data": "all",
    "verify_v_half": True,
    "num_kv_heads": 4,
    "head_dim": 64,
    "kv_dtype": "bfloat16",
}


def findings(**changes: Any) -> list[Finding]:
    return validate(Settings.from_flat({**QUIET, **changes}))


def only(rule: str, **changes: Any) -> Finding:
    found = [finding for finding in findings(**changes) if finding.rule == rule]
    assert len(found) == 1, [finding.rule for finding in findings(**changes)]
    return found[0]


def test_quiet_settings_have_only_the_note_about_coverage() -> None:
    assert [finding.rule for finding in findings()] == ["real_data_coverage"]


@pytest.mark.parametrize(
    ("field", "value", "message", "nearest"),
    [
        ("req_to_token_pool_size", 0, "kv-canary: req_to_token_pool_size must be positive, got 0", 1),
        ("max_seq_len_per_req", -7, "kv-canary: max_seq_len_per_req must be positive, got -7", 1),
        ("pool_slot_count", -2, "kv-canary: pool_slot_count must be positive, got -2", 1),
        ("cuda_graph_max_bs", -1, "kv-canary: cuda_graph_max_bs must be non-negative, got -1", 0),
        ("speculative_num_draft_tokens", -5, "kv-canary: speculative_num_draft_tokens must be non-negative, got -5", 0),
        ("max_prefill_tokens", 0, "kv-canary: max_prefill_tokens must be positive, got 0", 1),
    ],
)
def test_inputs_that_installing_the_canary_refuses(field: str, value: int, message: str, nearest: int) -> None:
    finding = only(f"{field}_positive", **{field: value})
    assert (finding.severity, finding.message, finding.exact) == (Severity.ERROR, message, True)
    assert (field, nearest) in [(fix.field, fix.value) for fix in finding.fixes]


def test_all_errors_are_shown_at_once_in_the_engines_order() -> None:
    found = findings(pool_slot_count=0, max_prefill_tokens=-1, speculative_num_draft_tokens=-3, req_to_token_pool_size=0)
    errors = [finding.fields[0] for finding in found if finding.severity is Severity.ERROR]
    assert errors == ["req_to_token_pool_size", "pool_slot_count", "speculative_num_draft_tokens", "max_prefill_tokens"]


def test_an_empty_pool_is_answered_with_the_largest_that_fits_the_memory() -> None:
    known = {"num_layers": 24, "device_memory_bytes": 24 << 30, "weight_bytes": 6 << 30, "mem_fraction_static": 0.8}
    fix = only("pool_slot_count_positive", pool_slot_count=0, **known).fixes[0]
    assert fix.field == "pool_slot_count"
    assert isinstance(fix.value, int)
    assert fix.value > 20004
    assert fix.flag == f"--max-total-tokens {fix.value}"


def test_weights_beyond_the_static_share_are_answered_with_a_larger_share() -> None:
    finding = only(
        "pool_slot_count_positive", pool_slot_count=-900, device_memory_bytes=10_000, weight_bytes=8_700, mem_fraction_static=0.8
    )
    assert ("mem_fraction_static", 0.871) in [(fix.field, fix.value) for fix in finding.fixes]


@pytest.mark.parametrize(
    ("interval", "step"), [(1, None), (99, None), (100, None), (101, 10101), (110, 1101), (120, 601), (150, 301), (200, 201), (777, 201)]
)
def test_the_step_at_which_the_health_check_trips(interval: int, step: int | None) -> None:
    assert health_trip_step(interval) == step


@given(st.integers(101, 3000))
def test_the_tripping_step_is_the_first_sample_without_a_sweep(interval: int) -> None:
    """Walk the steps one by one: count sweeps, sample the counter after every hundredth step."""
    sweeps, last, step = 0, None, 0
    while True:
        if step % interval == 0:
            sweeps += 1
        if step >= 100 and step % 100 == 0:
            counted = sweeps - (1 if step % interval == 0 else 0)
            if last is not None and counted == last:
                break
            last = counted
        step += 1
    assert health_trip_step(interval) == step + 1


def test_sweep_tags_follow_the_pool_and_the_v_half() -> None:
    window = {"pool_class": "SWAKVPool", "sliding_window": 512, "sweep_interval": 300}
    text = only("sweep_health", **window).message
    assert "tags=[SWEEP_K_FULL, SWEEP_V_FULL, SWEEP_K_SWA, SWEEP_V_SWA] at step=201" in text
    assert "tags=[SWEEP_K_SWA]" in only("sweep_health", pool_class="DeepSeekV4TokenToKVPool", sweep_interval=300).message


@pytest.mark.parametrize(
    ("rule", "severity", "fragment", "changes"),
    [
        ("sweep_without_mode", "error", "--kv-canary-sweep-interval requires --kv-canary in {log, raise}", {"mode": "none", "sweep_interval": 5}),
        ("model_sizes", "warning", "num_layers must be at least 1, got 0", {"num_layers": 0}),
        ("model_sizes", "warning", "num_layers must be in 0..4096, got 5000", {"num_layers": 5000}),
        ("model_sizes", "warning", "draft_num_layers must be in 1..4096, got 1000000000",
         {"num_layers": 8, "draft_num_layers": 10**9, "speculative_num_draft_tokens": 4}),
        ("prefill_graphs", "error", "piecewise cuda graph is not supported", {"cuda_graph_backend_prefill": "tc_piecewise"}),
        ("decode_graphs", "error", "xpu has no canary CUDA kernels", {"device": "xpu"}),
        ("pool_class", "error", "no attacher registered for pool class MLATokenToKVPool", {"pool_class": "MLATokenToKVPool"}),
        ("ring_rows", "error", "ViolationLog ring_capacity must be positive, got 0", {"ring_capacity": 0}),
        ("row_bytes", "error", "num_bytes_per_token must be a positive multiple of 16, got 40", {"num_kv_heads": 1, "head_dim": 20}),
        ("page_size_positive", "error", "page_size must be positive, got 0", {"page_size": 0}),
        ("page_rounds_to_zero", "error", "Not enough memory", {"page_size": 64, "max_total_tokens": 40, "pool_slot_count": 0}),
        ("page_rounds_to_zero", "error", "Not enough memory", {"max_total_tokens": 0}),
        ("page_rounds_to_zero", "error", "Not enough memory", {"page_size": 64, "pool_slot_count": 40}),
        ("cap_below_pool", "note", "the engine uses the cap", {"max_total_tokens": 100_000}),
        ("window_pool_too_small", "error", "SWA pool (128 tokens) cannot hold even one request",
         {"pool_class": "SWAKVPool", "sliding_window": 200, "page_size": 64, "pool_slot_count": 1280, "swa_full_tokens_ratio": 0.1}),
        ("mem_fraction_range", "error", "mem_fraction_static must be between 0 and 1, got 1.5", {"mem_fraction_static": 1.5}),
        ("tp_size_positive", "error", "tp_size must be at least 1, got 0", {"tp_size": 0}),
        ("dp_divides_tp", "error", "multiple of dp_size", {"tp_size": 4, "dp_size": 3, "enable_dp_attention": True}),
        ("sweep_interval_negative", "warning", "a sweep interval of -3 is not off", {"sweep_interval": -3}),
        ("chunk_in_pages", "error", "chunked_prefill_size must be divisible by page_size", {"page_size": 128, "chunked_prefill_size": 1000}),
        ("swa_ratio_range", "error", "--swa-full-tokens-ratio should be in range (0, 1.0].", {"swa_full_tokens_ratio": 1.25}),
        ("plan_requests", "warning", "at most bs=4096 reqs per launch, got bs=4097", {"req_to_token_pool_size": 5000}),
        ("chunk_of_zero", "warning", "exceeds pre-allocated write_entry_capacity=96", {"chunked_prefill_size": 0}),
        ("chunk_above_budget", "warning", "token count=8000 exceeds pre-allocated write_entry_capacity=2048",
         {"max_prefill_tokens": 2048, "chunked_prefill_size": 8000}),
        ("long_prompt", "warning", "exceeds pre-allocated write_entry_capacity=8192", {"chunked_prefill_size": None}),
        ("request_does_not_fit", "warning", "a request can hold at most 9000 tokens although the context is 20000", {"pool_slot_count": 9000}),
        ("draft_tree", "warning", "topk 8", {"speculative_eagle_topk": 8}),
        ("host_tier", "warning", "do not move with KV to host memory", {"enable_hierarchical_cache": True}),
        ("sweep_without_tree", "warning", "does not support ChunkCache", {"disable_radix_cache": True, "sweep_interval": 10}),
        ("ring_fills", "warning", "fills it in 8 steps", {"ring_capacity": 256, "page_size": 32, "sweep_interval": 1, "pool_slot_count": 210_048}),
        ("canary_beside_static", "warning", "come out of the memory beside mem_fraction_static",
         {"device_memory_bytes": 8 << 30, "mem_fraction_static": 0.97}),
        ("graph_gap", "warning", "decode graphs end at 96 while 3000 requests may run", {"req_to_token_pool_size": 3000}),
        ("graph_gap", "note", "batches of 97 to 128 run without a decode graph", {"req_to_token_pool_size": 128}),
        ("graphs_unused", "note", "graphs reach 200 but a rank never runs more than 96", {"cuda_graph_max_bs": 200}),
        ("no_decode_graph", "note", "no decode graph is captured", {"cuda_graph_max_bs": None}),
        ("mixed_chunk", "note", "(4096 - running)", {"enable_mixed_chunk": True}),
        ("single_row", "note", "row 0 of the request table is reserved", {"req_to_token_pool_size": 1, "cuda_graph_max_bs": 1}),
        ("requests_per_rank", "note", "50 // 4 = 12 requests per rank, 2 are lost",
         {"enable_dp_attention": True, "dp_size": 4, "max_running_requests": 50}),
        ("chunk_per_rank", "note", "a chunk of 6000 is 1500 tokens per rank",
         {"enable_dp_attention": True, "dp_size": 4, "global_chunked_prefill_size": 6000}),
        ("page_remainder", "note", "the engine uses 209920", {"page_size": 512}),
        ("real_data_coverage", "note", "first 16 of 512 bytes", {"real_data": "partial"}),
        ("real_data_coverage", "note", "no KV byte is hashed", {"real_data": "none"}),
        ("v_half_off", "note", "the V half is off", {"verify_v_half": False}),
        ("real_data_without_mode", "note", "no effect", {"mode": "none"}),
        ("input_assert", "warning", "kv-canary: enable_write_input_assert=True requires a TokenOracleManager", {"write_input_assert": True}),
        ("ring_fills", "warning", "reports one damaged slot once per step and fills it in 300 steps", {"ring_capacity": 300, "sweep_interval": 1}),
    ],
)  # fmt: skip
def test_each_rule_speaks_and_its_fix_settles_it(rule: str, severity: str, fragment: str, changes: dict[str, Any]) -> None:
    finding = only(rule, **changes)
    assert finding.severity == severity
    assert fragment in finding.message
    assert finding.why
    assert finding.source
    for fix in finding.fixes:
        after = findings(**{**changes, fix.field: fix.value})
        assert not [again for again in after if again.rule == rule and again.message == finding.message], fix


WINDOW = {"pool_class": "SWAKVPool", "sliding_window": 192, "page_size": 64, "pool_slot_count": 6400}


@pytest.mark.parametrize(("share", "slots"), [(0.04, 256), (0.05, 320)])
def test_the_window_pool_has_to_be_larger_than_a_window_and_a_page(share: float, slots: int) -> None:
    """The engine refuses a pool that equals window + page, too: 192 + 64 = 256."""
    refused = [finding for finding in findings(**WINDOW, swa_full_tokens_ratio=share) if finding.rule == "window_pool_too_small"]
    assert [f"SWA pool ({slots} tokens)" in finding.message for finding in refused] == ([True] if slots == 256 else [])
    for fix in (fix for finding in refused for fix in finding.fixes):
        settled = findings(**{**WINDOW, "swa_full_tokens_ratio": share, fix.field: fix.value})
        assert "window_pool_too_small" not in [finding.rule for finding in settled]


@given(st.integers(1, 5000), st.sampled_from([1, 16, 64, 256]), st.integers(1, 400), st.floats(0.01, 1.0))
def test_every_fix_of_a_small_window_pool_settles_it(window: int, page: int, pages: int, share: float) -> None:
    small = {**WINDOW, "sliding_window": window, "page_size": page, "pool_slot_count": page * pages, "swa_full_tokens_ratio": share}
    for finding in findings(**small):
        for fix in finding.fixes if finding.rule == "window_pool_too_small" else ():
            assert "window_pool_too_small" not in [again.rule for again in findings(**{**small, fix.field: fix.value})], fix


@pytest.mark.parametrize(
    ("changes", "fields", "row"),
    [
        # Two numbers of 4 bits share a byte, and a byte that is half full is not counted.
        ({"kv_dtype": "fp4_e2m1", "num_kv_heads": 1, "head_dim": 101}, ("real_data", "num_kv_heads", "head_dim", "kv_dtype"), 50),
        ({"v_head_dim": 33}, ("real_data", "num_kv_heads", "v_head_dim", "kv_dtype"), 264),
        ({"tp_size": 4, "head_dim": 12}, ("real_data", "num_kv_heads", "head_dim", "kv_dtype"), 24),
        ({"tp_size": 4, "dp_size": 4, "enable_dp_attention": True, "head_dim": 3}, ("real_data", "num_kv_heads", "head_dim", "kv_dtype"), 24),
        ({**WINDOW, "swa_head_dim": 21}, ("real_data", "num_kv_heads", "swa_head_dim", "kv_dtype"), 168),
        ({**WINDOW, "swa_head_dim": 20, "swa_num_kv_heads": 3}, ("real_data", "swa_num_kv_heads", "swa_head_dim", "kv_dtype"), 120),
        ({"kv_dtype": "auto", "model_dtype": "float32", "head_dim": 11, "num_kv_heads": 1},
         ("real_data", "num_kv_heads", "head_dim", "kv_dtype"), 44),
    ],
)  # fmt: skip
def test_every_hashed_row_is_a_multiple_of_16_bytes(changes: dict[str, Any], fields: tuple[str, ...], row: int) -> None:
    finding = only("row_bytes", **changes)
    assert finding.message == f"kv-canary: num_bytes_per_token must be a positive multiple of 16, got {row}"
    assert finding.fields == fields
    for fix in finding.fixes:
        assert "row_bytes" not in [again.rule for again in findings(**{**changes, fix.field: fix.value})], fix


@given(st.sampled_from(["bfloat16", "float32", "fp8_e5m2", "fp4_e2m1", "mxfp8"]), st.integers(1, 9), st.integers(1, 5000))
def test_another_head_size_settles_any_row(kv_dtype: str, heads: int, size: int) -> None:
    changes = {"kv_dtype": kv_dtype, "num_kv_heads": heads, "head_dim": size}
    for finding in findings(**changes):
        for fix in finding.fixes if finding.rule == "row_bytes" else ():
            assert "row_bytes" not in [again.rule for again in findings(**{**changes, fix.field: fix.value})], fix


@pytest.mark.parametrize(
    "changes",
    [{"pool_class": "DeepSeekV4TokenToKVPool", "head_dim": 9}, {"real_data": "none", "head_dim": 9}, {"kv_dtype": "auto", "head_dim": 9}],
)
def test_rows_that_are_not_hashed_or_not_known_are_not_refused(changes: dict[str, Any]) -> None:
    assert "row_bytes" not in [finding.rule for finding in findings(**changes)]


def test_draft_tokens_widen_a_row_and_not_the_context() -> None:
    finding = only("request_does_not_fit", speculative_num_draft_tokens=6, max_seq_len_per_req=30_010, pool_slot_count=9_000, page_size=32)
    assert "at most 9000 tokens although the context is 30000" in finding.message
    assert [(fix.value, fix.flag) for fix in finding.fixes] == [(30_016, "--max-total-tokens 30016"), (9_010, "--context-length 9000")]


@pytest.mark.parametrize(("chunk", "budget", "fails"), [(0, 64, True), (8192, 8192, False), (8193, 8192, True), (None, 20_000, False)])
def test_prompts_and_chunks_against_the_room_for_written_tokens(chunk: int | None, budget: int, fails: bool) -> None:
    found = [finding.message for finding in findings(chunked_prefill_size=chunk, max_prefill_tokens=budget)]
    assert any("exceeds pre-allocated write_entry_capacity" in message for message in found) is fails


def test_post_capture_sizing_accounts_for_the_canary_itself() -> None:
    tight = {"device_memory_bytes": 8 << 30, "mem_fraction_static": 0.97}
    before, after = (findings(**tight, post_capture_kv_sizing=post) for post in (False, True))
    assert "canary_beside_static" in [finding.rule for finding in before]
    assert "canary_beside_static" not in [finding.rule for finding in after]


def test_errors_come_in_the_order_of_a_start() -> None:
    found = findings(
        page_size=0, swa_full_tokens_ratio=2.0, cuda_graph_backend_prefill="tc_piecewise", device="cpu:0", head_dim=9, req_to_token_pool_size=0,
        ring_capacity=-4,
    )  # fmt: skip
    errors = [finding.rule for finding in found if finding.severity is Severity.ERROR]
    assert errors == [
        "page_size_positive", "swa_ratio_range", "prefill_graphs", "decode_graphs", "row_bytes", "req_to_token_pool_size_positive", "ring_rows",
    ]  # fmt: skip


def test_an_empty_pool_without_a_canary_is_the_engines_own_error() -> None:
    finding = only("pool_slot_count_positive", mode="none", pool_slot_count=0)
    assert finding.message == "Not enough memory. Please try to increase --mem-fraction-static."
    assert only("max_prefill_tokens_positive", mode="none", max_prefill_tokens=0).message == "max_prefill_tokens must be positive, got 0"


def test_a_canary_that_is_off_stops_no_start() -> None:
    found = findings(mode="none", pool_class="MLATokenToKVPool", ring_capacity=0, device="xpu", cuda_graph_backend_prefill="tc_piecewise")
    assert not [finding for finding in found if finding.severity is Severity.ERROR]


FLAT = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.sampled_from(spec.choices) for name, spec in FIELDS.items() if spec.kind == "choice"},
        **{name: st.booleans() for name, spec in FIELDS.items() if spec.kind == "switch"},
        **{
            name: st.sampled_from([-9, -1, 0, 1, 2, 16, 64, 100, 4096, 5000, 10**6, 2**40])
            for name, spec in FIELDS.items()
            if spec.kind == "count"
        },
        "pool_class": st.sampled_from(["MHATokenToKVPool", "SWAKVPool", "DeepSeekV4TokenToKVPool", "MLATokenToKVPool", "other"]),
        "swa_full_tokens_ratio": st.sampled_from([-1.0, 0.0, 0.01, 0.5, 1.0, 7.0]),
        "mem_fraction_static": st.none() | st.sampled_from([-1.0, 0.0, 0.5, 0.99, 1.0, 3.0]),
        "device_memory_bytes": st.none() | st.sampled_from([0, 1, 16 << 30]),
        "weight_bytes": st.none() | st.sampled_from([0, 1 << 30, 90 << 30]),
        "device": st.sampled_from(["cuda", "xpu", "cpu", ""]),
    },
)


@given(FLAT)
def test_no_settings_break_a_rule_and_every_fix_is_a_legal_value(values: dict[str, Any]) -> None:
    settings = Settings.from_flat(values)
    for finding in validate(settings):
        assert finding.message
        assert set(finding.fields) <= set(FIELDS)
        for fix in finding.fixes:
            assert Settings.from_flat({**values, fix.field: fix.value}).to_flat()[fix.field] == fix.value


def test_rules_have_distinct_names() -> None:
    assert len({rule.__name__ for rule in RULES}) == len(RULES)


def test_a_device_without_memory_is_planned_and_chosen_for() -> None:
    assert "canary_beside_static" not in [finding.rule for finding in findings(device_memory_bytes=0, mem_fraction_static=0.9)]
    with pytest.raises(ConfigError, match="device_memory_bytes must exceed"):
        mem_fraction_static(Settings.from_flat({**QUIET, "device_memory_bytes": 0}))


def test_what_keeps_a_plan_from_being_made_is_among_the_findings() -> None:
    for changes in (
        {"num_layers": 0},
        {"num_layers": 4, "v_head_dim": -1},
        {"kv_bytes_per_token": 0},
        {"num_layers": 4, "swa_num_layers": 5},
    ):
        report = plan_report(Settings.from_flat({**QUIET, **changes}))
        assert report.plan is None
        assert "model_sizes" in [finding.rule for finding in report.findings]
        [fix] = next(finding for finding in report.findings if finding.rule == "model_sizes").fixes
        assert plan_report(Settings.from_flat({**QUIET, **changes, fix.field: fix.value})).plan is not None
