"""Start-up logs of SGLang in the shapes of its releases, with what stands around them; what a text does not state is null."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import Any

import pytest

from kvcanary.importers.detect import read_text
from kvcanary.importers.result import ImportKind, ImportResult
from kvcanary.units import GIB
from tests.importers.samples import SGLANG_LOG

T = "2031-02-03 04:05:06"


def log(*lines: str, rank: str = "TP0") -> str:
    return "".join(f"[{T} {rank}] {line}\n" if rank else f"[{T}] {line}\n" for line in lines)


def observed(text: str) -> dict[str, Any]:
    result = read_text(text)
    assert ImportKind.LOG in (result.parts or (result.kind,))
    return dict(result.observed)


def values(result: ImportResult) -> dict[str, Any]:
    return {name: entry.value for name, entry in result.fields.items()}


def test_a_whole_start() -> None:
    result = read_text(SGLANG_LOG)
    seen = result.observed
    assert (seen["ready"], seen["max_total_num_tokens"], seen["kv_tokens"], seen["context_len"]) == (True, 250_000, 250_000, 32_768)
    assert (seen["cuda_graph_bs_count"], seen["cuda_graph_bs_max"], seen["cuda_graph_mem_gb"]) == (6, 24, 0.34)
    assert seen["server_args"]["cuda_graph_decode_max_bs"] == 24
    assert seen["server_args"]["max_running_requests"] is None
    assert seen["canary"] == {
        "pool_class": "MHATokenToKVPool", "real_data": "partial", "group_kinds": ["FULL"], "mode": "log", "ring_capacity": 4096,
        "sweep_interval": 50, "verify_capacity": 750_000, "write_req_capacity": 2048, "write_entry_capacity": 8192, "swa_window_size": 0,
        "speculative_num_steps": 3,
    }  # fmt: skip
    assert values(result) == {
        "model": "/m/wren", "page_size": 16, "speculative_num_draft_tokens": 4, "tp_size": 2, "kv_dtype": "bfloat16", "mode": "log",
        "real_data": "partial", "sweep_interval": 50, "chunked_prefill_size": 4096, "cuda_graph_max_bs": 24, "cuda_graph_backend_decode": "full",
        "cuda_graph_backend_prefill": "disabled", "ring_capacity": 4096, "pool_class": "MHATokenToKVPool", "pool_slot_count": 250_000,
        "req_to_token_pool_size": 2048, "max_prefill_tokens": 16_384, "max_seq_len_per_req": 32_776, "weight_bytes": round(17.5 * GIB),
        "free_before_load_bytes": round(78.5 * GIB), "graph_bytes": round(0.34 * GIB), "kv_bytes_per_token": round(15.26 * GIB / 250_016),
    }  # fmt: skip
    assert result.fields["pool_slot_count"].source == "install line, line 7"
    assert not result.conflicts


def test_a_log_states_no_more_than_it_says() -> None:
    seen = observed(log("KV Cache is allocated. #tokens: 5000, K size: 0.50 GB, V size: 0.50 GB"))
    assert (seen["kv_tokens"], seen["ready"]) == (5000, False)
    for name in (
        "max_total_num_tokens",
        "kv_cache_dtype",
        "chunked_prefill_size",
        "max_running_requests",
        "context_len",
        "available_gpu_mem_gb",
    ):
        assert seen[name] is None
    assert "canary" not in seen
    assert "server_args" not in seen


def test_zero_is_a_value_and_missing_is_none() -> None:
    seen = observed(log("max_total_num_tokens=0, chunked_prefill_size=0, max_running_requests=0, context_len=512", rank=""))
    assert (seen["max_total_num_tokens"], seen["chunked_prefill_size"], seen["max_running_requests"]) == (0, 0, 0)
    assert seen["max_prefill_tokens"] is None
    fields = values(read_text(log("max_total_num_tokens=0, chunked_prefill_size=0, max_running_requests=0, context_len=512", rank="")))
    assert (fields["pool_slot_count"], fields["chunked_prefill_size"]) == (0, 0)
    assert "max_prefill_tokens" not in fields


def test_tensor_parallel_ranks_are_one_pool() -> None:
    text = "".join(log("KV Cache is allocated. #tokens: 8000, K size: 1.00 GB, V size: 1.00 GB", rank=f"TP{rank}") for rank in range(4))
    result = read_text(text)
    assert result.observed["ranks"] == ["TP0", "TP1", "TP2", "TP3"]
    assert (result.observed["kv_tokens"], result.observed["k_size_gb"]) == (8000, 1.0)
    assert result.fields["pool_slot_count"].value == 8000


def test_tensor_parallel_ranks_that_differ_give_the_smallest_and_all() -> None:
    text = log("Memory pool end. avail mem=5.00 GB", rank="TP10") + log("Memory pool end. avail mem=4.00 GB", rank="TP2")
    seen = observed(text)
    assert seen["memory_pool_end_avail_gb"] is None
    assert seen["memory_pool_end_avail_gb_min"] == 4.0
    assert list(seen["memory_pool_end_avail_gb_by_rank"].items()) == [("TP2", 4.0), ("TP10", 5.0)]


def test_data_parallel_ranks_have_pools_of_their_own() -> None:
    text = log("max_total_num_tokens=9000, max_running_requests=40, context_len=512", rank="DP1 TP1")
    text += log("max_total_num_tokens=8000, max_running_requests=30, context_len=512", rank="DP0 TP0")
    result = read_text(text)
    seen = result.observed
    assert seen["max_total_num_tokens"] is None
    assert (seen["aggregate_tokens"], seen["aggregate_running_requests"]) == (17_000, 70)
    assert [(line["rank"], line["max_total_num_tokens"]) for line in seen["lines"]] == [("DP0 TP0", 8000), ("DP1 TP1", 9000)]
    assert result.fields["pool_slot_count"].value == 8000
    assert "smallest over ranks" in result.fields["pool_slot_count"].derived


def test_two_servers_in_one_paste_are_not_mixed() -> None:
    ready = "max_total_num_tokens={}, max_running_requests={}, context_len=512\n"
    text = "KV Cache is allocated. #tokens: 9000, K size: 0.50 GB, V size: 0.50 GB\n" + ready.format(9000, 40) + ready.format(7000, 30)
    result = read_text(text)
    assert result.observed["max_total_num_tokens_values"] == [9000, 7000]
    assert "pool_slot_count" not in result.fields
    assert [finding.message for finding in result.findings] == ["several pool sizes: 9000, 7000"]


def test_window_and_full_pools_are_told_apart() -> None:
    text = log(
        "SWAKVPool mem usage: 3.00 GB, swa size: 2000, full size: 6000",
        "KV Cache is allocated. #tokens: 2000, K size: 0.50 GB, V size: 0.50 GB",
        "KV Cache is allocated. #tokens: 6000, K size: 1.00 GB, V size: 0.75 GB",
    )
    seen = observed(text)
    assert [(pool["tokens"], pool["kind"]) for pool in seen["kv_pools"]] == [(2000, "swa"), (6000, "full")]
    assert (seen["kv_tokens"], seen["v_size_gb"]) == (6000, 0.75)
    assert "kv_bytes_per_token" not in read_text(text).fields


def test_the_draft_runners_pool_does_not_replace_the_targets() -> None:
    attach = "attach_canary_buffers: pool=MHATokenToKVPool attacher=attach_mha read_bytes=0 n_groups=1 kinds=['FULL'] kv_token_id_vs_position_offset="
    install = "install_canary: launch_capacities=CanaryLaunchCapacities(per_forward_verify_capacity={}, per_forward_write_req_capacity=8)"
    text = log(
        "KV Cache is allocated. #tokens: 6000, K size: 1.00 GB, V size: 1.00 GB",
        f"{attach}0",
        install.format(18_000),
        "Load weight end. elapsed=1.0 s, avail mem=9.00 GB, mem usage=0.50 GB.",
        "KV Cache is allocated. #tokens: 6000, K size: 0.10 GB, V size: 0.10 GB",
        f"{attach}1",
        install.format(18_000),
    )
    seen = observed(text)
    assert [pool["kind"] for pool in seen["kv_pools"]] == ["target", "draft"]
    assert (seen["k_size_gb"], seen["draft_weight_mem_gb"], seen["canary_installs"]) == (1.0, 0.5, 2)
    assert seen["canary_token_offsets"] == [0, 1]
    assert seen["load_weight_mem_gb"] is None
    assert seen["installed_pool_slot_count"] == 6000


def test_a_pool_that_was_resized_after_capture() -> None:
    text = log(
        "KV Cache VA upper bound #tokens: 90000, K size: 9.00 GB, V size: 9.00 GB",
        "install_canary: launch_capacities=CanaryLaunchCapacities(per_forward_verify_capacity=270000)",
        "Post-capture KV sizing: max_running_requests 4096 -> 1024",
        "Post-capture KV sizing: max_total_num_tokens=80000, free memory=6.10 GB",
        "max_total_num_tokens=80000, max_running_requests=1024, context_len=4096",
    )
    result = read_text(text)
    assert result.observed["kv_tokens_upper_bound"] == 90_000
    assert result.observed["kv_tokens"] is None
    assert result.observed["post_capture"]["max_running_requests_after"] == 1024
    assert result.fields["pool_slot_count"].value == 90_000
    [conflict] = [entry for entry in result.conflicts if entry.name == "pool_slot_count"]
    assert [candidate.value for candidate in conflict.candidates] == [90_000, 80_000]
    assert conflict.reason == "the canary was installed for the larger pool; it was resized after graph capture"
    assert result.fields["post_capture_kv_sizing"].value is True


def test_latent_attention_prints_one_size() -> None:
    seen = observed(log("KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 4000, KV size: 1.25 GB  # ours"))
    assert (seen["kv_size_gb"], seen["k_size_gb"], seen["v_size_gb"]) == (1.25, None, None)


def test_older_wordings() -> None:
    text = (
        "[04:05:06 TP0] Load weight end. type=Wren, dtype=torch.bfloat16, avail mem=10.25 GB\n"
        "[gpu=0] max_total_num_tokens=7777, max_prefill_tokens=4096, max_running_requests=97, context_len=2048\n"
        "[04:05:09 TP0] Capture cuda graph bs [1, 2, 4]\n[04:05:11 TP0] Capture cuda graph end. Time elapsed: 2.00 s. mem usage=0.50 GB. "
        "avail mem=9.00 GB.\n"
    )
    seen = observed(text)
    assert (seen["load_weight_avail_gb"], seen["load_weight_mem_gb"]) == (10.25, None)
    assert (seen["max_prefill_tokens"], seen["chunked_prefill_size"], seen["available_gpu_mem_gb"]) == (4096, None, None)
    assert (seen["cuda_graph_bs_max"], seen["cuda_graph_mem_gb"]) == (4, 0.5)


def test_state_cache_limits_the_requests() -> None:
    text = log(
        "Mamba Cache is allocated. max_mamba_cache_size: 150, conv_state size: 0.10GB, ssm_state size: 2.00GB ",
        "max_running_requests is capped to 37 by the mamba state cache (max_mamba_cache_size=150, 4 state slots per request).",
    )
    seen = observed(text)
    assert (seen["mamba_cache_size"], seen["mamba_ssm_gb"], seen["mamba_slots_per_request"]) == (150, 2.0, 4)
    assert seen["warning"] == "max_running_requests_capped_by_mamba"


def test_prefill_captures_and_draft_captures_are_no_batch_list() -> None:
    text = log(
        "Capture target prefill CUDA graph begin. backend=breakable, num_tokens=[4, 8, 4096], avail mem=12.59 GB",
        "Capture draft decode CUDA graph begin. bs=[1, 2, 4, 8, 512], avail mem=12.59 GB",
        "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2, 4], avail mem=10.88 GB",
    )
    assert observed(text)["cuda_graph_bs"] == [1, 2, 4]


def test_a_running_server_says_how_full_it_is() -> None:
    text = log(
        "Decode batch, #running-req: 3, #token: 900, token usage: 0.30, cuda graph: True, gen throughput (token/s): 9.0, #queue-req: 2",
        "Decode batch, #running-req: 4, #token: 950, token usage: 0.31, cuda graph: True, gen throughput (token/s): 9.0, #queue-req: 5",
    )
    seen = observed(text)
    assert (seen["running_req"], seen["token"], seen["token_usage"], seen["queue_req"]) == (4, 950, 0.31, 5)


def test_a_pool_dump_closes_its_books() -> None:
    seen = observed(
        "self.max_total_num_tokens=1000, self.available_size=400, self.evictable_size=300, self.protected_size=200\n".replace(
            "self.max", "max"
        )
    )
    assert (seen["max_total_num_tokens"], seen["held"]) == (1000, 100)


NESTED = (
    "server_args=ServerArgs(model_path='/m/w', tp_size=4, max_running_requests=None, kv_canary='log', hf_token='x', api_key='y', "
    "cuda_graph_config=CudaGraphConfig(decode=PhaseConfig(backend='full', max_bs=48, bs=[1, 2, 48]), "
    "prefill=PhaseConfig(backend='breakable', max_bs=4096, bs=[4, 8])), speculative_num_draft_tokens=3, page_size=8)"
)
FLAT = "server_args=ServerArgs(model_path='/m/w', tp_size=4, cuda_graph_max_bs=160, cuda_graph_bs=[1, 2, 32], page_size=8, mem_fraction_static=0.81)"
DICT = (
    "server_args={'model_path': '/m/w', 'tp_size': 4, 'page_size': 8, 'kv_canary': 'raise', 'enable_dp_attention': False, "
    "'cuda_graph_config': {'decode': {'backend': 'full', 'max_bs': 48, 'bs': None}, 'prefill': {'backend': 'disabled', 'max_bs': None}}}"
)


@pytest.mark.parametrize(("printed", "batch", "prefill"), [(NESTED, 48, "breakable"), (FLAT, 32, None), (DICT, 48, "disabled")])
def test_printed_arguments(printed: str, batch: int, prefill: str | None) -> None:
    result = read_text(log(printed, rank=""))
    fields = values(result)
    assert (fields["model"], fields["tp_size"], fields["page_size"], fields["cuda_graph_max_bs"]) == ("/m/w", 4, 8, batch)
    assert fields.get("cuda_graph_backend_prefill") == prefill
    assert fields["page_size"] == read_text(printed.removeprefix("server_args=")).fields["page_size"].value
    assert result.fields["page_size"].source == "page_size in server_args, line 1"
    assert not {"hf_token", "api_key"} & set(result.observed["server_args"])
    assert "'y'" not in json.dumps(result.to_dict())


def test_a_printed_argument_of_a_wrong_type_is_left_out() -> None:
    text = log("server_args=ServerArgs(model_path='/m', speculative_num_draft_tokens='x', page_size=8)", rank="")
    result = read_text(text + log("max_total_num_tokens=80, context_len=512", rank=""))
    assert (values(result)["page_size"], values(result)["max_seq_len_per_req"]) == (8, 516)
    assert "speculative_num_draft_tokens" not in result.fields
    assert any("speculative_num_draft_tokens" in finding.message for finding in result.findings)


@pytest.mark.parametrize("end", [60, 90, 120, 200, 260, 300])
def test_printed_arguments_that_are_cut_keep_what_is_whole(end: int) -> None:
    whole = read_text(log(NESTED, rank="")).observed["server_args"]
    cut = read_text(f"[{T}] {NESTED[:end]}").observed["server_args"]
    assert cut["model_path"] == "/m/w"
    assert all(whole[name] == value for name, value in cut.items())


def test_a_number_at_the_end_of_a_cut_log_is_not_read() -> None:
    result = read_text(f"[{T} TP0] KV Cache is allocated. #tokens: 8000, K size: 1.00 GB, V size: 1.00 GB\n[{T}] max_total_num_tokens=80")
    assert result.observed["max_total_num_tokens"] is None
    assert any(finding.rule == "cut" for finding in result.findings)


WRAPPED = log("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4321, K size: 1.00 GB, V size: 1.00 GB").rstrip("\n")


@pytest.mark.parametrize(
    "text",
    [
        f"wren-1  | {WRAPPED}\n",
        f"\x1b[36mwren-1  |\x1b[0m \x1b[32m{WRAPPED}\x1b[0m\n",
        json.dumps({"log": WRAPPED + "\n", "stream": "stderr", "time": "2031-02-03T04:05:06Z"}) + "\n",
        f"2031-02-03T04:05:06.7Z stderr F {WRAPPED}\n",
        f"2031-02-03T04:05:06.7Z stderr P {WRAPPED[:70]}\n2031-02-03T04:05:06.8Z stderr F {WRAPPED[70:]}\n",
        f"Feb  3 04:05:06 node7 wren[812]: {WRAPPED}\n",
        f"(SchedulerActor pid=77) {WRAPPED}\n",
        f"logs/wren.log:12:{WRAPPED}\n",
        f"Loading:  50%|#####     | 1/2\rLoading: 100%|##########| 2/2\r{WRAPPED}\n",
        f"{WRAPPED[:60]}\n{WRAPPED[60:]}\n",
        WRAPPED + "\r\n",
    ],
)
def test_what_stands_around_a_line(text: str) -> None:
    seen = observed(text)
    assert (seen["kv_tokens"], seen["kv_cache_dtype"], seen["ranks"]) == (4321, "torch.bfloat16", ["TP0"])


def test_lines_that_other_programs_print_are_nothing() -> None:
    with pytest.raises(ValueError, match="holds nothing that is known"):
        read_text(log("GET /metrics 200", "Request finished"))


def test_memory_of_ranks_that_differ_is_that_of_the_rank_that_decides() -> None:
    ranks = (("TP0", 78.0, 50.0, 28.0, 0.34), ("TP1", 77.5, 49.25, 28.25, 0.4))
    end = "".join(f"[2031-02-03 04:05:02 {rank}] Load weight end. type=W, avail mem={after:.2f} GB, mem usage={used:.2f} GB.\n"
                  for rank, _, after, used, _ in ranks)  # fmt: skip
    graphs = "".join(f"[2031-02-03 04:05:09 {rank}] Capture cuda graph end. Time elapsed: 2.00 s. mem usage={size:.2f} GB. avail mem=9.00 GB.\n"
                     for rank, _, _, _, size in ranks)  # fmt: skip
    begin = "".join(f"[2031-02-03 04:05:01 {rank}] Load weight begin. avail mem={before:.2f} GB\n" for rank, before, _, _, _ in ranks)
    for text in (end + graphs, begin + end + graphs):
        result = read_text(text)
        sizes = {name: result.fields[name].value for name in ("weight_bytes", "free_before_load_bytes", "graph_bytes")}
        assert sizes == {"weight_bytes": round(28.25 * GIB), "free_before_load_bytes": round(77.5 * GIB), "graph_bytes": round(0.4 * GIB)}
        assert result.fields["free_before_load_bytes"].derived == '"GB" in the log is GiB, smallest over ranks, which differ'
        assert result.fields["weight_bytes"].derived.endswith("largest over ranks, which differ")


def test_ranks_of_one_figure_do_not_differ() -> None:
    ranks = (("TP0", 50.0, 28.0), ("TP1", 49.25, 28.75))
    text = "".join(f"[2031-02-03 04:05:02 {rank}] Load weight end. type=W, avail mem={after:.2f} GB, mem usage={used:.2f} GB.\n"
                   for rank, after, used in ranks)  # fmt: skip
    fields = read_text(text).fields
    assert fields["free_before_load_bytes"].derived == '"GB" in the log is GiB'
    assert fields["weight_bytes"].derived.endswith("which differ")


def start(fraction: float, tokens: int, ranks: tuple[str, ...] = ("TP0",)) -> str:
    """A start up to its pools, which each rank allocates."""
    return f"[{T}] server_args=ServerArgs(model_path='/m/w', tp_size=2, mem_fraction_static={fraction})\n" + "".join(
        f"[{T} {rank}] Load weight end. type=W, avail mem=30.00 GB, mem usage=10.00 GB.\n"
        f"[{T} {rank}] KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, K size: 3.00 GB, V size: 3.00 GB\n"
        for rank in ranks
    )


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 40.00 GiB of which 1.00 GiB is free.\n"
READY = f"[{T} TP0] max_total_num_tokens=7000, chunked_prefill_size=2048, max_running_requests=9, context_len=512\n"


def test_a_start_that_failed_says_nothing_about_the_next_one() -> None:
    result = read_text(start(0.9, 9000) + OOM + start(0.8, 7000) + READY)
    assert (result.observed["kv_tokens"], result.observed["max_total_num_tokens"], result.observed["k_size_gb"]) == (7000, 7000, 3.0)
    assert "draft_weight_mem_gb" not in result.observed
    assert "kv_pools" not in result.observed
    assert "oom" not in result.observed
    assert (result.explanations, result.fields["mem_fraction_static"].value) == ((), 0.8)
    [finding] = [finding for finding in result.findings if finding.rule == "earlier-start"]
    assert "It said: CUDA out of memory. Tried to allocate 2.00 GiB." in finding.why


def test_the_last_of_several_failed_starts_is_explained() -> None:
    result = read_text(start(0.9, 9000) + OOM + start(0.85, 8000) + OOM.replace("2.00 GiB", "1.50 GiB"))
    assert result.observed["oom"]["tried_gib"] == 1.5
    assert result.fields["mem_fraction_static"].value == 0.85
    assert result.observed["kv_tokens"] == 8000


@pytest.mark.parametrize("end", ["", OOM, READY])
@pytest.mark.parametrize("before", ["", OOM])
def test_the_last_start_counts_also_behind_one_that_served(before: str, end: str) -> None:
    result = read_text(start(0.8, 6000) + READY.replace("7000", "6000") + before + start(0.95, 7000) + end)
    seen = result.observed
    assert (seen["kv_tokens"], seen["max_total_num_tokens"]) == (7000, 7000 if end == READY else None)
    assert {entry.label for entry in result.explanations} == ({"oom"} if end == OOM else set())
    assert (result.fields["mem_fraction_static"].value, result.fields["pool_slot_count"].value) == (0.95, 7000)
    assert not result.conflicts
    [finding] = [finding for finding in result.findings if finding.rule != "no-ready-line"]
    assert (finding.message, finding.severity) == (
        ("an earlier start in the text failed", "warning") if before else ("an earlier start in the text was left out", "note")
    )


def server(name: str, text: str) -> list[str]:
    return [f"{name}-1  | {line}" for line in text.splitlines()]


@pytest.mark.parametrize("end", ["", OOM])
def test_two_services_of_one_log_are_two_servers(end: str) -> None:
    pairs = zip_longest(server("wren", start(0.8, 6000) + READY), server("heron", start(0.7, 5000) + READY.replace("7", "5") + end))
    result = read_text("\n".join(line for pair in pairs for line in pair if line) + "\n")
    shown, other = ("heron-1", "wren-1") if end else ("wren-1", "heron-1")
    assert result.fields["mem_fraction_static"].value == (0.7 if end else 0.8)
    assert result.observed["kv_tokens"] == (5000 if end else 6000)
    [finding] = [finding for finding in result.findings if finding.rule == "several-servers"]
    assert finding.message == f"several servers in the text: {shown}, {other}"
    assert finding.why.startswith(f"Only {shown} is read.")
    assert not result.conflicts
    assert "max_total_num_tokens_values" not in result.observed


def test_two_hosts_with_ranks_of_their_own_are_one_server() -> None:
    lines = server("wren-a", start(0.8, 6000, ("TP0", "TP1"))) + server("wren-b", start(0.8, 6000, ("TP2", "TP3")))
    result = read_text("\n".join(lines) + "\n")
    assert result.observed["ranks"] == ["TP0", "TP1", "TP2", "TP3"]
    assert not any(finding.rule == "several-servers" for finding in result.findings)


def test_the_nodes_of_one_start_are_read_together() -> None:
    result = read_text(start(0.9, 9000, ("TP0", "TP1")) + start(0.9, 9000, ("TP2", "TP3")))
    assert result.observed["ranks"] == ["TP0", "TP1", "TP2", "TP3"]
    assert not any(finding.rule == "earlier-start" for finding in result.findings)
    draft = f"[{T} TP0] Load weight begin. avail mem=4.00 GB\n[{T} TP0] Load weight end. type=D, avail mem=3.00 GB, mem usage=1.00 GB.\n"
    assert read_text(start(0.9, 9000) + draft).observed["draft_weight_mem_gb"] == 1.0


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (
            f"[{T} TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File 'w.py', line 3, in f\nValueError: no such layer\n",
            True,
        ),
        (f"[{T}] RuntimeError: NCCL error in: w.cpp:7\n", True),
        (READY + "ValueError: a client went away\n", True),
        (READY + f"[{T}] The server is fired up and ready to roll!\nValueError: a client went away\n", False),
        (OOM, False),
        (READY, False),
    ],
)
def test_an_error_that_is_not_explained_is_told(end: str, told: bool) -> None:
    findings = [finding for finding in read_text(start(0.8, 7000) + end).findings if finding.rule == "unexplained-error"]
    assert len(findings) == told
    if told:
        line = (start(0.8, 7000) + end).count("\n")
        assert findings[0].message == f"the log holds an error on line {line}: " + end.splitlines()[-1].removeprefix(f"[{T}] ")
