"""Running out of device memory: wordings, engines, ranks, restarts, and the figures that count."""

from __future__ import annotations

import pytest

from kvcanary.importers.amounts import missing_fraction
from kvcanary.importers.detect import read_text
from kvcanary.importers.result import ErrorExplanation, ImportResult

ARGUMENTS = "[2031-02-03 04:05:00] server_args=ServerArgs(model_path='/m/wren', tp_size=2, page_size=16, mem_fraction_static=0.85)\n"
SERVING = "[2031-02-03 04:06:00] The server is fired up and ready to roll!\n"


def loaded(rank: str = "TP0", free: float = 20.0, weights: float = 12.0) -> str:
    return (
        f"[2031-02-03 04:05:02 {rank}] Load weight end. elapsed=3.00 s, type=Wren, avail mem={free:.2f} GB, mem usage={weights:.2f} GB.\n"
    )


def pool(rank: str = "TP0") -> str:
    return f"[2031-02-03 04:05:03 {rank}] Memory pool end. avail mem=3.00 GB\n"


def died(rank: str = "TP0", tried: str = "2.00 GiB", free: str = "1.00 GiB") -> str:
    return (
        f"[2031-02-03 04:05:09 {rank}] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/m/engine.py", line 7, in run\n'
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 1 has a total capacity of 40.00 GiB of which {free} is free. "
        "Process 4711 has 38.00 GiB memory in use.\n"
    )


def read(text: str) -> tuple[ImportResult, ErrorExplanation]:
    result = read_text(text)
    return result, result.explanations[-1]


def flags(entry: ErrorExplanation) -> list[str]:
    return [fix.flag if fix.amount_known else fix.text for fix in entry.fixes]


@pytest.mark.parametrize(
    "message",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total "
        "capacity of 48.00 GiB of which 512.00 MiB is free.",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total "
        "capacty of 48.00 GiB of which 512.00 MiB is free.",
        "RuntimeError: CUDA out of memory. Tried to allocate 1536.00 MiB (GPU 3; 48.00 GiB total capacity; 45.00 GiB already allocated; "
        "512.00 MiB free; 46.00 GiB reserved in total by PyTorch)",
        "RuntimeError: NPU out of memory. Tried to allocate 1.50 GiB (NPU 3; 48.00 GiB total capacity; 45.00 GiB already allocated; "
        "45.00 GiB current active; 512.00 MiB free; 46.00 GiB reserved in total by PyTorch)",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 48.00 GiB of which 0.50 GiB is free.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total "
        "capacity of 48.00 GiB of which 524288.00 KiB is\nfree.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.5\n0 GiB. GPU 3 has a total "
        "capacity of 48.00 GiB of which 512.00 MiB is free.",
    ],
)
def test_the_figures_of_each_wording(message: str) -> None:
    result, entry = read(message)
    assert result.observed["oom"] == {"tried_gib": 1.5, "total_gib": 48.0, "free_mib": 512.0, "phase": None}
    assert missing_fraction(result.observed) == pytest.approx(1 / 48)
    assert entry.message.startswith(message.split(": ")[1][:30])


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA driver error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "Last error:\nCuda failure 2 'out of memory'",
    ],
)
def test_a_message_without_figures_is_one_too(message: str) -> None:
    result, entry = read(loaded() + pool() + message)
    assert (entry.label, result.observed["oom"]) == ("oom_graph_capture", {"phase": "graph_capture"})
    assert missing_fraction(result.observed) is None


def test_advice_about_memory_is_no_message() -> None:
    text = loaded() + "[2031-02-03 04:05:03 TP0] If you see CUDA out of memory errors, use a smaller batch.\n"
    assert read_text(text).explanations == ()


def test_a_message_alone_does_not_say_when() -> None:
    _, entry = read(died())
    assert "does not show how far" in entry.explanation
    assert flags(entry) == ["lower --mem-fraction-static", "raise --tp-size"]


def test_a_rank_that_still_loads_while_another_is_done() -> None:
    result, entry = read(ARGUMENTS + loaded("TP0") + died("TP1"))
    assert result.observed["oom"]["phase"] == "load_weights"
    assert flags(entry) == ["raise --tp-size"]
    # Behind the pool every rank is done with its weights.
    result, _ = read(ARGUMENTS + loaded("TP0") + pool("TP0") + died("TP1"))
    assert result.observed["oom"]["phase"] == "graph_capture"


def test_a_progress_bar_behind_a_line_is_not_the_line() -> None:
    """It has no prefix, so it reads as the rest of the line before it."""
    bar = "Loading safetensors checkpoint shards: 100% Completed | 4/4\n"
    result, entry = read(ARGUMENTS + loaded("TP1") + bar + loaded("TP0") + died("TP1"))
    assert result.observed["oom"]["phase"] == "kv_pool"
    assert flags(entry)[0].startswith("--mem-fraction-static") or flags(entry)[0] == "lower --mem-fraction-static"


@pytest.mark.parametrize("again", [ARGUMENTS, ""])
def test_a_second_start_begins_anew(again: str) -> None:
    first = ARGUMENTS + loaded() + pool() + "Capturing batches (bs=96 avail_mem=0.50 GB):  20%|\n" + SERVING
    result, entry = read(first + again + "[2031-02-03 04:09:00 TP0] Load weight begin. avail mem=2.00 GB\n" + died())
    assert result.observed["oom"]["phase"] == "load_weights"
    assert entry.explanation == "Memory ran out while the weights were loaded."


def test_a_replica_that_loads_while_another_serves_is_no_second_start() -> None:
    ready = "[2031-02-03 04:05:30 DP0 TP0] max_total_num_tokens=5000, chunked_prefill_size=2048, max_running_requests=9\n"
    result, entry = read(ARGUMENTS + loaded("DP0 TP0", 20.0, 20.0) + ready + loaded("DP1 TP0", 18.0, 22.0) + NOT_ENOUGH)
    # 0.551 would hold the weights, and 0.85 had been asked for.
    assert flags(entry) == ["raise --mem-fraction-static"]
    result, _ = read(ARGUMENTS + loaded("DP0 TP0") + ready + loaded("DP1 TP0") + died("DP1 TP0"))
    assert result.observed["oom"]["phase"] == "kv_pool"


def test_of_two_starts_the_last_is_explained() -> None:
    text = ARGUMENTS + loaded() + died() + ARGUMENTS.replace("0.85", "0.7") + loaded() + pool() + SERVING + died(tried="3.00 GiB")
    result, entry = read(text)
    assert [(known.label, known.line) for known in result.explanations] == [("oom", 12)]
    assert "while serving" in entry.explanation
    assert result.observed["oom"]["tried_gib"] == 3.0
    assert result.fields["mem_fraction_static"].value == 0.7


def test_the_rank_that_lacked_most_decides_and_figures_are_never_mixed() -> None:
    both = loaded("TP0") + loaded("TP1")
    short = died("TP0").replace(" GPU 1 has a total capacity of 40.00 GiB of which 1.00 GiB is free.", "").replace("2.00 GiB", "30.00 GiB")
    result, _ = read(both + short + died("TP1", "2.00 GiB", "0.50 GiB") + died("TP0", "2.00 GiB", "1.50 GiB"))
    assert {"tried_gib": 2.0, "free_mib": 512.0}.items() <= result.observed["oom"].items()


def test_the_share_is_one_of_what_was_free_before_the_weights() -> None:
    result, _ = read(loaded(free=20.0, weights=12.0) + pool() + died())
    assert missing_fraction(result.observed) == pytest.approx(1 / 32)  # and not of the 40 GiB of the device
    begun = "[2031-02-03 04:05:01 TP0] Load weight begin. avail mem=25.00 GB\n"
    result, _ = read(begun + loaded(free=12.0, weights=12.0) + pool() + died())
    assert missing_fraction(result.observed) == pytest.approx(1 / 25)


def test_a_share_of_less_than_nothing_is_none() -> None:
    result, _ = read(loaded(free=-20.0, weights=12.0) + pool() + died())
    assert missing_fraction(result.observed) == pytest.approx(1 / 40)
    result, _ = read(pool() + died().replace("40.00 GiB", "-40.00 GiB"))
    assert missing_fraction(result.observed) is None


def test_prefill_graphs_are_not_made_smaller_by_a_decode_batch() -> None:
    decode = "[2031-02-03 04:05:04 TP0] Capture target decode CUDA graph begin. backend=full, bs=[1, 2], avail mem=3.00 GB\n"
    prefill = "[2031-02-03 04:05:06 TP0] Capture target prefill CUDA graph begin. backend=breakable, num_tokens=[4, 8], avail mem=2.00 GB\n"
    progress = "Capturing batches (bs=2 avail_mem=2.50 GB):  50%|\n"
    result, entry = read(loaded() + pool() + decode + progress + prefill + died())
    assert (entry.label, result.observed["oom"]["phase"]) == ("oom_graph_capture", "prefill_graph_capture")
    assert flags(entry) == ["lower --mem-fraction-static", "--cuda-graph-backend-prefill disabled"]
    assert "last_bs" not in result.observed["oom"]


def test_a_draft_model_behind_the_pool() -> None:
    result, entry = read(loaded() + pool() + "[2031-02-03 04:05:05 TP0] Load weight begin. avail mem=3.00 GB\n" + died())
    assert result.observed["oom"]["phase"] == "draft_weights"
    assert flags(entry) == ["lower --mem-fraction-static"]


VLLM = "(EngineCore_DP0 pid=311) INFO 02-03 04:05:06 [core.py:93] "
CONFIG = f"{VLLM}Initializing a V1 LLM engine (v0.18.0) with config: model='/m/wren', max_seq_len=16384, tensor_parallel_size=2\n"
TOOK = f"{VLLM}Model loading took 17.5000 GiB and 3.2 seconds\n"
AVAILABLE = f"{VLLM}Available KV cache memory: 12.25 GiB\n"
CAPTURING = "Capturing CUDA graphs (decode, FULL):  40%|####      | 2/5\n"
STARTED = "(APIServer pid=9) INFO:     Application startup complete.\n"


@pytest.mark.parametrize(
    ("lines", "phase", "wanted"),
    [
        (CONFIG + f"{VLLM}Starting to load model /m/wren...\n", "load_weights", ["raise --tensor-parallel-size"]),
        (
            CONFIG + TOOK,
            "profile",
            ["lower --max-num-batched-tokens", "lower --max-num-seqs", "raise --tensor-parallel-size"],
        ),
        (CONFIG + TOOK + AVAILABLE, "kv_pool", ["lower --gpu-memory-utilization", "lower --max-num-seqs"]),
        (CONFIG + TOOK + AVAILABLE + CAPTURING, "graph_capture", ["lower --gpu-memory-utilization", "lower --max-num-seqs"]),
        (
            CONFIG + TOOK + AVAILABLE + CAPTURING + STARTED,
            "serving",
            ["lower --gpu-memory-utilization", "lower --max-num-batched-tokens"],
        ),
    ],
)
def test_vllm_is_told_vllms_flags(lines: str, phase: str, wanted: list[str]) -> None:
    error = "(EngineCore_DP0 pid=311) ERROR 02-03 04:05:19 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    result, entry = read(lines + error + "GPU 0 has a total capacity of 40.00 GiB of which 1.00 GiB is free.\n")
    assert (result.engine, result.observed["oom"]["phase"], flags(entry)) == ("vllm", phase, wanted)
    assert missing_fraction(result.observed) == pytest.approx(1 / 40)


def test_of_two_starts_of_vllm_the_last_is_explained() -> None:
    error = (
        "(EngineCore_DP0 pid=311) ERROR 02-03 04:05:19 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. "
    )
    rest = "GPU 0 has a total capacity of 40.00 GiB of which 1.00 GiB is free.\n"
    first = CONFIG + TOOK + AVAILABLE + error.format("2.00") + rest
    result, _ = read(first + CONFIG + f"{VLLM}Starting to load model /m/wren...\n" + error.format("3.00") + rest)
    assert (result.observed["oom"]["tried_gib"], result.observed["oom"]["phase"]) == (3.0, "load_weights")


def test_vllms_own_sentence_of_a_warm_up() -> None:
    text = CONFIG + TOOK + AVAILABLE + f"{VLLM}RuntimeError: CUDA out of memory occurred when warming up sampler with 64 dummy requests.\n"
    assert flags(read(text)[1]) == ["lower --gpu-memory-utilization", "lower --max-num-seqs"]


NOT_ENOUGH = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # The draft model's weights count: 1 - 8 / 40.
        (loaded(free=20.0, weights=20.0) + loaded(free=8.0, weights=12.0) + NOT_ENOUGH, "--mem-fraction-static 0.801"),
        (
            ARGUMENTS.replace("0.85", "0.7") + loaded(free=20.0, weights=20.0)
            + "[2031-02-03 04:05:03 TP0] Load weight begin. avail mem=20.00 GB\n" + loaded(free=8.0, weights=12.0) + NOT_ENOUGH,
            "--mem-fraction-static 0.801",
        ),
        # Weights that take 0.9995 leave no share for a pool.
        (loaded(free=0.02, weights=39.98) + NOT_ENOUGH, "raise --tp-size"),
        # The fullest rank decides: 1 - 18 / 40.
        (loaded("TP0", 20.0, 20.0) + loaded("TP1", 18.0, 22.0) + NOT_ENOUGH, "--mem-fraction-static 0.551"),
        # What failed is higher than what the weights take, so that is no way up; said in the message or printed with the arguments.
        (loaded(free=20.0, weights=20.0) + NOT_ENOUGH + " Current value: mem_fraction_static=0.6", "raise --mem-fraction-static"),
        (ARGUMENTS + loaded(free=20.0, weights=20.0) + NOT_ENOUGH, "raise --mem-fraction-static"),
        ("ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.9. Raise --mem-fraction-static above 0.881",
         "raise --mem-fraction-static"),
        (loaded(free=4.0, weights=36.0) + "[2031-02-03 04:05:06 TP0] max_total_tokens=9000 is larger than the profiled value -77. Use it.",
         "--mem-fraction-static 0.901"),
        ("ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.9. Raise --mem-fraction-static above 1.000",
         "raise --tp-size"),
        # A draft model loaded behind the pool takes what is left beside it.
        (loaded(free=20.0, weights=20.0) + pool() + loaded(free=1.0, weights=2.0) + NOT_ENOUGH, "--mem-fraction-static 0.501"),
    ],
)  # fmt: skip
def test_the_way_up_is_above_what_failed(text: str, wanted: str) -> None:
    assert flags(read(text)[1])[0] == wanted


def test_a_log_without_end_keeps_its_ranks() -> None:
    noise = "".join(f"[2031-02-03 04:05:03 TP0] request {number} of somebody\n" for number in range(20_000))
    result = read_text(ARGUMENTS + loaded("TP0") + noise + died("TP1"))
    assert result.observed["oom"]["phase"] == "load_weights"
