"""Start-up logs of vLLM in the wordings of its releases."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary.importers.detect import read_text
from kvcanary.units import GIB
from tests.importers.samples import VLLM_LOG


def read(*lines: str, before: str = "INFO 02-03 04:05:06 [core.py:1] ") -> tuple[dict[str, Any], dict[str, Any]]:
    result = read_text("".join(f"{before}{line}\n" for line in lines))
    assert result.engine == "vllm"
    return dict(result.observed), {name: entry.value for name, entry in result.fields.items()}


def test_a_whole_start() -> None:
    result = read_text(VLLM_LOG)
    assert (result.engine, result.observed["engine_core"]) == ("vllm", "EngineCore_DP0 pid=311")
    assert result.observed["config"] == {
        "model": "/m/wren", "max_model_len": 16384, "tensor_parallel_size": 2, "pipeline_parallel_size": 1, "kv_cache_dtype": "auto",
        "enable_prefix_caching": True,
    }  # fmt: skip
    assert {name: entry.value for name, entry in result.fields.items()} == {
        "model": "/m/wren", "max_seq_len_per_req": 16384, "tp_size": 2, "pp_size": 1, "kv_dtype": "auto", "disable_radix_cache": False,
        "pool_slot_count": 276_864, "weight_bytes": round(17.5 * GIB),
    }  # fmt: skip
    assert result.observed["max_concurrency"] == 16.9


def test_blocks_give_tokens_by_the_concurrency_beside_them() -> None:
    seen, fields = read("# GPU blocks: 7000, # CPU blocks: 2048", "Maximum concurrency for 8192 tokens per request: 13.67x")
    assert (seen["gpu_blocks"], seen["cpu_blocks"], seen["block_size"], seen["kv_capacity_tokens"]) == (7000, 2048, 16, 112_000)
    assert (fields["pool_slot_count"], fields["page_size"]) == (112_000, 16)


def test_blocks_alone_are_no_tokens() -> None:
    seen, fields = read("# GPU blocks: 7000, # CPU blocks: 0")
    assert seen["cpu_blocks"] == 0
    assert "pool_slot_count" not in fields
    assert "block_size" not in seen


def test_blocks_and_tokens_that_say_the_same() -> None:
    seen, fields = read("# cuda blocks: 500", "GPU KV cache size: 8,000 tokens")
    assert (seen["block_size"], fields["pool_slot_count"], fields["page_size"]) == (16, 8000, 16)


def test_each_engine_core_has_a_cache() -> None:
    text = "".join(
        f"(EngineCore_DP{rank} pid={rank}) INFO 02-03 04:05:06 GPU KV cache size: {tokens} tokens, Maximum concurrency for 4,096 tokens per "
        f"request: 2.00x\n"
        for rank, tokens in enumerate(["9,000", "8,000"])
    )
    result = read_text(text)
    assert (result.observed["engines"], result.observed["gpu_kv_tokens"], result.observed["gpu_kv_tokens_sum"]) == (2, [9000, 8000], 17_000)
    assert (result.fields["pool_slot_count"].value, result.fields["dp_size"].value) == (8000, 2)


def test_workers_that_disagree_give_the_smallest() -> None:
    text = "".join(
        f"(Worker_TP{rank} pid={rank}) INFO 02-03 04:05:06 Available KV cache memory: {size} GiB\n" for rank, size in enumerate([-1.5, 2.0])
    )
    seen = read_text(text).observed
    assert (seen["available_kv_gib"], seen["available_kv_gib_min"]) == (None, -1.5)
    assert seen["workers"] == ["Worker_TP0 pid=0", "Worker_TP1 pid=1"]


def test_the_memory_profile_of_older_releases() -> None:
    seen, fields = read(
        "the current vLLM instance can use total_gpu_memory (40.00GiB) x gpu_memory_utilization (0.90) = 36.00GiB",
        "model weights take 10.00GiB; non_torch_memory takes 0.50GiB; PyTorch activation peak memory takes 1.25GiB; the rest of the memory "
        "reserved for KV Cache is 24.25GiB.",
    )
    assert (seen["total_gpu_gib"], seen["gpu_memory_utilization"], seen["usable_gib"]) == (40.0, 0.9, 36.0)
    assert (seen["weights_gib"], seen["non_torch_gib"], seen["activation_peak_gib"], seen["kv_cache_gib"]) == (10.0, 0.5, 1.25, 24.25)
    assert (fields["mem_fraction_static"], fields["device_memory_bytes"]) == (0.9, 40 * GIB)


@pytest.mark.parametrize("line", ["Loading model weights took 7.25 GB", "Model loading took 7.2500 GiB and 2.0 seconds"])
def test_weights_in_two_units_of_the_same_size(line: str) -> None:
    assert read(line)[1]["weight_bytes"] == round(7.25 * GIB)
    assert read(line, before="")[1]["weight_bytes"] == round(7.25 * GIB)


def test_memory_that_was_given_explicitly() -> None:
    seen, _ = read("Initial free memory: 30.00 GiB, reserved 12.00 GiB memory for KV Cache as specified by kv_cache_memory_bytes config")
    assert (seen["free_gib"], seen["available_kv_gib"], seen["kv_memory_source"]) == (30.0, 12.0, "kv_cache_memory_bytes")


REFUSED = (
    "The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in KV cache (1600). Try increasing "
    "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --max-model-len 4096 --block-size 16 --num-gpu-blocks-override 100",
        '{"block_size": 16, "num_gpu_blocks": 100, "max_model_len": 4096}',
        "INFO 02-03 04:05:06 # GPU blocks: 100\nINFO 02-03 04:05:06 Maximum concurrency for 4096 tokens per request: 0.39x\n",
    ],
)
def test_a_request_that_does_not_fit_is_found_before_the_engine_says_so(text: str) -> None:
    result = read_text(text)
    [finding] = [finding for finding in result.findings if finding.rule == "vllm_request_fits"]
    assert (finding.message, finding.severity) == (REFUSED, "error")
    assert finding.fields == ("max_seq_len_per_req", "pool_slot_count")
    assert [(fix.field, fix.value, fix.flag) for fix in finding.fixes] == [
        ("max_seq_len_per_req", 1600, "--max-model-len 1600"),
        ("mem_fraction_static", None, "--gpu-memory-utilization"),
    ]
    assert result.fields["pool_slot_count"].value == 1600


def test_a_request_that_fits_and_one_of_unknown_size_are_no_finding() -> None:
    assert not read_text("vllm serve m --max-model-len 1600 --block-size 16 --num-gpu-blocks-override 100").findings
    assert not read_text("vllm serve m --max-model-len 4096 --num-gpu-blocks-override 100").findings


def start(length: int, tokens: int, *, pid: int = 0, banner: bool = True, config: bool = True, end: str = "") -> str:
    """A start of vLLM up to its cache, with or without the lines that say whose it is."""
    who = f"(EngineCore_0 pid={pid}) " if pid else ""
    time = "INFO 02-03 04:05:06 [core.py:1] "
    lines = [
        f"{time}vLLM API server version 0.10.1" if banner else "",
        f"{who}{time}Initializing a V1 LLM engine (v0.10.1) with config: model='/m/w', max_seq_len={length}" if config else "",
        f"{who}{time}Model loading took {tokens / 1000} GiB and 3.2 seconds",
        f"{who}{time}Available KV cache memory: 12.25 GiB",
        f"{who}{time}GPU KV cache size: {tokens:,} tokens" if not end else "",
        f"{who}{time}Maximum concurrency for {length:,} tokens per request: 2.00x" if not end else "",
        f"{who}{end}" if end else "(APIServer pid=9) INFO:     Application startup complete.",
    ]
    return "".join(f"{line}\n" for line in lines if line)


LACKS = (
    "ERROR 02-03 04:05:19 [core.py:700] ValueError: To serve at least one request with the models's max seq len (9000), (16.00 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (5.25 GiB). Based on the available memory, the estimated maximum model length "
    "is 3000."
)
OUT = "ERROR 02-03 04:05:19 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
SHAPES: list[dict[str, bool | int]] = [
    {"pid": 311}, {"pid": 0}, {"banner": False, "pid": 311}, {"banner": False}, {"config": False}, {"banner": False, "config": False, "pid": 311},
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("end", [LACKS, f"{OUT}40.00 GiB of which 1.00 GiB is free."])
def test_a_failed_start_before_the_last_one_is_a_remark(shape: dict[str, Any], end: str) -> None:
    again = {**shape, "pid": shape.get("pid") and 412}
    result = read_text(start(9000, 8000, end=end, **shape) + start(2000, 6000, **again))
    assert result.explanations == ()
    assert not {"oom", "error", "kv_needed_gib", "engines"} & set(result.observed)
    fields = {name: result.fields[name].value for name in ("pool_slot_count", "max_seq_len_per_req", "weight_bytes")}
    assert fields == {"pool_slot_count": 6000, "max_seq_len_per_req": 2000, "weight_bytes": 6 * GIB}
    assert not result.conflicts
    assert "dp_size" not in result.fields
    [finding] = result.findings
    assert (finding.rule, finding.message) == ("earlier-start", "an earlier start in the text failed")
    assert "max seq len (9000)" in finding.why or "Tried to allocate 2.00 GiB" in finding.why


@pytest.mark.parametrize("shape", SHAPES)
def test_the_last_start_counts_where_the_one_before_it_served(shape: dict[str, Any]) -> None:
    again = {**shape, "pid": shape.get("pid") and 412}
    result = read_text(start(2000, 6000, **shape) + start(9000, 8000, end=LACKS, **again))
    assert [entry.label for entry in result.explanations] == ["kv_memory_insufficient"]
    assert result.explanations[0].message.startswith("To serve at least one request")
    assert (result.fields["max_seq_len_per_req"].value, result.fields["weight_bytes"].value) == (9000, 8 * GIB)
    assert "pool_slot_count" not in result.fields
    assert [(finding.rule, finding.severity) for finding in result.findings] == [("earlier-start", "note")]


def test_what_stands_before_a_first_start_is_no_start() -> None:
    result = read_text("pulling the image\n" + start(2000, 6000))
    assert result.fields["pool_slot_count"].value == 6000
    assert not result.findings


def test_engine_cores_that_speak_in_turns_are_one_start() -> None:
    cores = [
        start(2000, 6000 + rank, banner=False).replace("INFO 02", f"(EngineCore_DP{rank} pid={rank + 5}) INFO 02") for rank in range(2)
    ]
    lines = [line for pair in zip(*(core.splitlines() for core in cores), strict=True) for line in pair]
    result = read_text("\n".join(lines) + "\n")
    assert (result.observed["engines"], result.fields["pool_slot_count"].value) == (2, 6000)
    assert not result.findings


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (start(2000, 6000), "Maximum concurrency, line 6"),
        (start(9000, 8000, end=LACKS), "max_model_len in config, line 2"),
        (start(9000, 8000, config=False, end=LACKS), "error message"),
    ],
)
def test_the_context_names_the_line_that_states_it(text: str, source: str) -> None:
    assert read_text(text).fields["max_seq_len_per_req"].source == source
