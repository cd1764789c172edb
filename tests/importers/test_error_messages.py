"""Each message of the engines about KV memory or the canary: known, explained, with what to change."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary.importers.canary_errors import CANARY
from kvcanary.importers.detect import read_text
from kvcanary.importers.log_records import Record
from kvcanary.importers.memory_errors import MEMORY, NEGATIVE
from kvcanary.importers.refused_arguments import REFUSED
from kvcanary.importers.result import ErrorExplanation, ImportKind
from kvcanary.importers.sizing_errors import SIZING
from kvcanary.importers.start_progress import StartProgress

# Text, label, and what to change: field and value, or field and 'raise' or 'lower' where the text does not say to what.
CASES: list[tuple[str, str, list[tuple[str, Any]]]] = [
    ("launch_server.py: error: unrecognized arguments: --kv-canry log --page_size 64", "arguments_not_recognized", []),
    ("launch_server.py: error: argument --kv-canary: invalid choice: 'on' (choose from none, log, raise)", "argument_refused", []),
    (
        "ValueError: kv-canary: req_to_token_pool_size must be positive, got -3",
        "canary_input_not_positive",
        [("req_to_token_pool_size", 1)],
    ),
    ("ValueError: kv-canary: max_seq_len_per_req must be positive, got 0", "canary_input_not_positive", [("max_seq_len_per_req", 1)]),
    ("ValueError: kv-canary: pool_slot_count must be positive, got 0", "canary_pool_empty", [("mem_fraction_static", "raise")]),
    ("ValueError: kv-canary: cuda_graph_max_bs must be non-negative, got -8", "canary_input_not_positive", [("cuda_graph_max_bs", 0)]),
    (
        "ValueError: kv-canary: speculative_num_draft_tokens must be non-negative, got -1",
        "canary_input_not_positive",
        [("speculative_num_draft_tokens", None)],
    ),
    ("ValueError: kv-canary: max_prefill_tokens must be positive, got 0", "canary_input_not_positive", [("max_prefill_tokens", 16384)]),
    ("ValueError: kv-canary: per_forward_verify_capacity must be positive, got 0", "canary_input_not_positive", []),
    ("ValueError: kv-canary: per_forward_write_req_capacity must be positive, got 0", "canary_input_not_positive", []),
    (
        "ValueError: kv-canary: per_forward_write_entry_capacity must be positive, got 0",
        "canary_input_not_positive",
        [("chunked_prefill_size", 8192)],
    ),
    ("ValueError: kv-canary: ViolationLog ring_capacity must be positive, got 0", "canary_input_not_positive", [("ring_capacity", 1024)]),
    ("ValueError: kv-canary: VerifyPlan verify_capacity must be positive, got 0", "canary_input_not_positive", []),
    (
        "RuntimeError: kv-canary: forward_batch.batch_size=72 exceeds pre-allocated write_req_capacity=64; raise --cuda-graph-max-bs or "
        "check CanaryLaunchCapacities.from_args",
        "canary_batch_exceeds_capacity",
        [("cuda_graph_max_bs", 72)],
    ),
    (
        "RuntimeError: kv-canary: forward_batch token count=9100 exceeds pre-allocated write_entry_capacity=8192; raise "
        "--chunked-prefill-size / --max-prefill-tokens or check CanaryLaunchCapacities.from_args",
        "canary_tokens_exceed_capacity",
        [("max_prefill_tokens", 9100), ("chunked_prefill_size", 8192)],
    ),
    (
        "RuntimeError: kv-canary: per-forward batch size 90 exceeds static capacity 80; raise the limit",
        "canary_batch_exceeds_static_capacity",
        [("cuda_graph_max_bs", 90)],
    ),
    (
        "ValueError: launch_canary_plan_kernels supports at most bs=4096 reqs per launch, got bs=5000",
        "canary_plan_batch_limit",
        [("max_running_requests", 4096)],
    ),
    (
        "ValueError: launch_canary_plan_kernels requires full_to_swa_index_mapping when swa_window_size > 0",
        "canary_window_map_missing",
        [("mode", "none")],
    ),
    (
        "ValueError: kv-canary: launch_canary_plan_kernels verify_capacity=900 does not match verify_slot_indices",
        "canary_verify_capacity_mismatch",
        [],
    ),
    ("NotImplementedError: Unsupported forward mode for kv-canary: ForwardMode.MIXED", "canary_forward_mode", [("mode", "none")]),
    ("NotImplementedError: walk_radix_cache_for_canary does not support ChunkCache", "canary_sweep_tree", [("sweep_interval", 0)]),
    (
        "ValueError: --kv-canary-sweep-interval requires --kv-canary in {log, raise}",
        "canary_sweep_without_mode",
        [("mode", "log"), ("sweep_interval", 0)],
    ),
    (
        "ValueError: kv-canary: kv_canary must be one of none/log/raise, got 'on'",
        "canary_mode",
        [("mode", "log"), ("mode", "none")],
    ),
    (
        "AssertionError: kv-canary: piecewise cuda graph is not supported",
        "canary_piecewise_graph",
        [("cuda_graph_backend_prefill", "breakable"), ("cuda_graph_backend_prefill", "disabled")],
    ),
    (
        "RuntimeError: kv-canary: xpu has no canary CUDA kernels",
        "canary_reference_in_graph",
        [("cuda_graph_backend_decode", "disabled"), ("mode", "none")],
    ),
    (
        "NotImplementedError: kv-canary: no attacher registered for pool class WrenKVPool; supported: ['MHATokenToKVPool', 'SWAKVPool']",
        "pool_class_not_supported",
        [("mode", "none")],
    ),
    (
        "ValueError: kv-canary: RealKvSource.num_bytes_per_token must be a positive multiple of 16, got 584",
        "canary_row_bytes",
        [("real_data", "none")],
    ),
    (
        "RuntimeError: kv-canary: kernel_run_counter did not increase since previous check for tags=[SWEEP_K_FULL] at step=201; canary path is "
        "not executing",
        "canary_health",
        [("sweep_interval", 100)],
    ),
    (
        "RuntimeError: kv-canary: kernel_run_counter did not increase since previous check for tags=[HEAD_K_FULL, TAIL_K_FULL] at step=101; x",
        "canary_health",
        [],
    ),
    (
        "[2031-02-03 04:05:06 TP0] kv-canary: per-forward verify skipped this step due to overflow (total=3, capacity=24576); check ServerArgs",
        "canary_verify_overflow",
        [],
    ),
    (
        "RuntimeError: kv_canary violation: launch_tag=TAIL_K_FULL fail_reason=verify_real_kv_hash slot_idx=31 position=30",
        "canary_violation",
        [],
    ),
    (
        "RuntimeError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.7. Raise --mem-fraction-static above "
        "0.86 (minimum viable = 1 - available/pre = 0.853)",
        "no_kv_memory",
        [("mem_fraction_static", 0.86)],
    ),
    (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.5",
        "no_kv_memory",
        [("mem_fraction_static", "raise")],
    ),
    (
        "[2031-02-03 04:05:06] max_total_tokens=90000 is larger than the profiled value -1200. Use the profiled value instead.",
        "negative_pool",
        [("mem_fraction_static", "raise")],
    ),
    (
        "RuntimeError: SWA pool (900 tokens) cannot hold even one request: the prefill admission floor is sliding_window_size (1024) + "
        "page_size (16)",
        "swa_pool_too_small",
        [("swa_full_tokens_ratio", 1.0)],
    ),
    (
        "[2031-02-03 04:05:06] Input length (9000 tokens) exceeds the maximum allowed length (8192 tokens). Use a shorter input.",
        "input_exceeds_pool",
        # 9000 < min(context, pool) - 6; a row has 4 more than the context.
        [("pool_slot_count", 9007), ("max_seq_len_per_req", 9011)],
    ),
    (
        "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`. "
        "req_to_token_pool.available_size()=2, num_reqs=3",
        "alloc_req_slots_oom",
        [("req_to_token_pool_size", "raise")],
    ),
    (
        "RuntimeError: Decode out of memory. Try to lower your batch size. Try to allocate 16 tokens.",
        "kv_pool_exhausted",
        [("max_running_requests", "lower"), ("mem_fraction_static", "raise")],
    ),
    (
        "ValueError: SWA Pool Mem Leak Detected! total=1000, available=600, evictable=300, protected=164, uncached=3",
        "swa_pool_leak",
        [],
    ),
    ("ValueError: token_to_kv_pool_allocator memory leak detected! x", "pool_leak", []),
    ("AssertionError: Committed KV cache already freed (self.kv_committed_len=77)", "committed_kv_already_freed", []),
    (
        "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=-4 "
        "(total_rest_memory=-0.75 GB, mamba_cache_per_req=36.00 MB). Try: (1) reduce --max-running-requests",
        "state_cache_empty",
        [("mem_fraction_static", "raise"), ("max_running_requests", "lower")],
    ),
    (
        "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. max_mamba_cache_size=2, mamba_ratio=5, "
        "resulting max_num_reqs=0. Try: (1) reduce --max-running-requests",
        "state_cache_too_small",
        [("mem_fraction_static", "raise"), ("max_running_requests", "lower")],
    ),
    (
        "RuntimeError: SWA pool cap (49152 tokens, 9.00 GiB) leaves no room for the full KV pool within the available 7.25 GiB. Reduce "
        "--max-running-requests, lower SGLANG_SWA_EVICTION_INTERVAL, or increase --mem-fraction-static.",
        "window_pool_takes_all",
        [("max_running_requests", "lower"), ("mem_fraction_static", "raise")],
    ),
    (
        "RuntimeError: The DSV4 SWA pool cap (49152 tokens, 9.00 GB) leaves no room for the full KV pool within the available 7.25 GB. Reduce x",
        "window_pool_takes_all",
        [("max_running_requests", "lower"), ("mem_fraction_static", "raise")],
    ),
    (
        "RuntimeError: [unified-memory-pool] swa: byte budget 700000 cannot fit ONE worst-case request (bs=1 floor 900000 = full=600000 + "
        "swa=300000). A pool this size retract-livelocks at runtime. Raise --mem-fraction-static, lower the model context length",
        "unified_pool_below_one_request",
        [("mem_fraction_static", "raise"), ("max_seq_len_per_req", "lower")],
    ),
    (
        "RuntimeError: DSV4 c4 kv pool exhausted: need 12 new slots, available=3. Raise --mem-fraction-static",
        "compressed_pool_exhausted",
        [("max_running_requests", "lower"), ("mem_fraction_static", "raise")],
    ),
    (
        "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=21.5, "
        "local_gpu_memory=39.25, local_gpu_memory * 0.9=35.325",
        "memory_unbalanced",
        [],
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (16384), (5.00 GiB KV cache is needed, which is larger than "
        "the available KV cache memory (3.25 GiB). Based on the available memory, the estimated maximum model length is 10640.",
        "kv_memory_insufficient",
        [("max_seq_len_per_req", 10640), ("mem_fraction_static", "raise")],
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (16384), (5.00 GiB KV cache is needed, which is larger than "
        "the available KV cache memory (0.01 GiB). Based on the available memory, the estimated maximum model length is 0.",
        "kv_memory_insufficient",
        [("max_seq_len_per_req", "lower"), ("mem_fraction_static", "raise")],
    ),
    (
        "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV cache (5120).",
        "max_model_len_exceeds_kv",
        [("max_seq_len_per_req", 5120), ("mem_fraction_static", "raise")],
    ),
    (
        "ValueError: Free memory on device (30.00/40.00 GiB) on startup is less than desired GPU memory utilization (0.9, 36.00 GiB). x",
        "free_memory_below_target",
        [("mem_fraction_static", 0.75)],
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        "no_kv_memory",
        [("mem_fraction_static", "raise"), ("tp_size", "raise")],
    ),
]


def explained(text: str) -> ErrorExplanation:
    result = read_text(text)
    [entry] = result.explanations
    assert result.observed["error"] == entry.label
    return entry


def changes(entry: ErrorExplanation) -> list[tuple[str, Any]]:
    return [(fix.field, fix.value if fix.amount_known else fix.text.split()[0]) for fix in entry.fixes]


@pytest.mark.parametrize(("text", "label", "wanted"), CASES, ids=[f"{label}-{number}" for number, (_, label, _) in enumerate(CASES)])
def test_each_message(text: str, label: str, wanted: list[tuple[str, Any]]) -> None:
    entry = explained(text)
    assert entry.label == label
    assert changes(entry) == wanted
    assert entry.causes
    assert entry.line == 1
    assert entry.message in text
    assert "{" not in entry.explanation
    assert all(fix.text and (fix.flag or fix.amount_known) for fix in entry.fixes)


def test_no_pattern_takes_a_name_that_the_log_around_a_message_gives() -> None:
    start = StartProgress()
    for line in (
        "server_args=ServerArgs(model_path='m', mem_fraction_static=0.8)",
        "Load weight end. avail mem=4.00 GB, mem usage=6.00 GB",
    ):
        start.see(Record(text=line, spaced=line, line=1, rank="TP0"))
    assert set(start.known()) == {"least", "printed"}
    for entry in (*CANARY, *MEMORY, *SIZING, *REFUSED, NEGATIVE):
        assert not set(start.known()) & set(entry.pattern.groupindex), entry.label


def test_no_kind_of_message_is_without_a_case() -> None:
    assert {entry.label for entry in (*CANARY, *MEMORY, *SIZING, *REFUSED)} <= {label for _, label, _ in CASES}


@pytest.mark.parametrize(("text", "label"), [(text, label) for text, label, _ in CASES if len(text) > 90 and not text.startswith("[")])
def test_a_terminal_that_breaks_the_line_changes_nothing(text: str, label: str) -> None:
    at = text.index(" ", len(text) // 2)
    whole, broken = explained(text), explained(f"{text[:at]}\n{text[at + 1 :]}")
    assert (broken.label, broken.fixes) == (label, whole.fixes)


def test_an_error_alone_is_an_error_and_values_of_the_message_are_kept() -> None:
    result = read_text("ValueError: kv-canary: pool_slot_count must be positive, got 0")
    assert result.kind is ImportKind.ERROR
    [document] = result.to_dict()["explanations"][0]["fixes"]
    assert document.pop("text").startswith("raise --mem-fraction-static: weight_bytes would tell to what")
    assert document == {
        "field": "mem_fraction_static", "value": None, "flag": "--mem-fraction-static", "amount_known": False, "amounts": {},
    }  # fmt: skip
    leak = read_text("ValueError: SWA Pool Mem Leak Detected! total=1000, available=600, evictable=300, protected=164")
    assert (leak.observed["sum"], leak.observed["overcount"]) == (1064, 64)
    weights = read_text(
        "RuntimeError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.7. Raise --mem-fraction-static above "
        "0.86 (minimum viable = 1 - available/pre = 0.853)"
    )
    assert weights.observed["minimum_mem_fraction_static"] == 0.853
    assert weights.fields["mem_fraction_static"].value == 0.7


def test_the_weights_of_the_log_give_the_least_fraction() -> None:
    text = (
        "[2031-02-03 04:05:01 TP0] Load weight end. elapsed=3.00 s, type=Wren, avail mem=10.00 GB, mem usage=30.00 GB.\n"
        "ValueError: kv-canary: pool_slot_count must be positive, got 0\n"
    )
    [entry] = read_text(text).explanations
    assert changes(entry) == [("mem_fraction_static", 0.751)]
    assert entry.fixes[0].flag == "--mem-fraction-static 0.751"


@pytest.mark.parametrize(("text", "label", "wanted"), CASES, ids=[f"{label}-{number}" for number, (_, label, _) in enumerate(CASES)])
def test_each_message_behind_a_start_says_the_same(text: str, label: str, wanted: list[tuple[str, Any]]) -> None:
    # The weights need less than the fraction that failed, so they are no way up.
    start = (
        "[2031-02-03 04:05:00] server_args=ServerArgs(model_path='m', tp_size=2, mem_fraction_static=0.55)\n"
        "[2031-02-03 04:05:01 TP0] Load weight end. elapsed=3.00 s, type=Wren, avail mem=30.00 GB, mem usage=10.00 GB.\n"
    )
    alone, behind = read_text(text), read_text(start + text)
    [entry] = behind.explanations
    assert (entry.label, changes(entry)) == (label, wanted)
    assert (entry.message, entry.explanation) == (alone.explanations[0].message, alone.explanations[0].explanation)
    stated = {name: value for name, value in alone.observed.items() if value is not None and name not in ("ranks", "ready")}
    assert stated.items() <= behind.observed.items()


def test_a_number_that_no_field_takes_gives_no_value() -> None:
    text = (
        "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV cache ("
        + "9" * 19
        + ")."
    )
    assert read_text(text + "\nValueError: kv-canary: pool_slot_count must be positive, got 0").explanations[0].label == "canary_pool_empty"


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 40.00 GiB of which 128.00 MiB is free."
LOADED = "[2031-02-03 04:05:01 TP0] Load weight end. elapsed=3.00 s, type=Wren, avail mem=30.00 GB, mem usage=10.00 GB.\n"


@pytest.mark.parametrize(
    ("before", "label", "phase", "wanted"),
    [
        ("", "oom", None, [("mem_fraction_static", "lower"), ("tp_size", "raise")]),
        ("[2031-02-03 04:05:01 TP0] Load weight begin. avail mem=39.50 GB\n", "oom", "load_weights", [("tp_size", "raise")]),
        (LOADED, "oom", "kv_pool", [("mem_fraction_static", "lower")]),
        (
            LOADED + "[2031-02-03 04:05:02 TP0] Memory pool end. avail mem=4.00 GB\n",
            "oom_graph_capture",
            "graph_capture",
            [("mem_fraction_static", "lower"), ("cuda_graph_max_bs", "lower")],
        ),
        (
            "[2031-02-03 04:05:02 TP0] Capture cuda graph begin. avail mem=4.00 GB\nCapturing batches (bs=96 avail_mem=0.50 GB):  20%|\n",
            "oom_graph_capture",
            "graph_capture",
            [("cuda_graph_max_bs", 48), ("mem_fraction_static", "lower")],
        ),
        (
            "[2031-02-03 04:05:02] The server is fired up and ready to roll!\n",
            "oom",
            "serving",
            [("chunked_prefill_size", "lower"), ("mem_fraction_static", "lower")],
        ),
    ],
)
def test_out_of_device_memory_by_how_far_the_start_had_come(
    before: str, label: str, phase: str | None, wanted: list[tuple[str, Any]]
) -> None:
    result = read_text(before + OOM)
    [entry] = result.explanations
    assert (entry.label, result.observed["oom"]["phase"]) == (label, phase)
    assert changes(entry) == wanted
    assert result.observed["oom"]["tried_gib"] == 0.5
    assert result.observed["oom"]["free_mib"] == 128.0
    assert result.fields["device_memory_bytes"].value == 40 << 30


def test_each_kind_is_explained_once_and_in_order() -> None:
    text = "\n".join(
        [
            "ValueError: kv-canary: pool_slot_count must be positive, got 0",
            "NotImplementedError: walk_radix_cache_for_canary does not support ChunkCache",
            "ValueError: kv-canary: pool_slot_count must be positive, got 0",
        ]
    )
    assert [(entry.label, entry.line) for entry in read_text(text).explanations] == [("canary_pool_empty", 1), ("canary_sweep_tree", 2)]


def test_the_engines_advice_behind_a_negative_pool_is_not_said_twice() -> None:
    text = (
        "[2031-02-03 04:05:06 TP0] max_total_tokens=4096 is larger than the profiled value -77. Use the profiled value instead.\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    )
    assert [entry.label for entry in read_text(text).explanations] == ["negative_pool"]
