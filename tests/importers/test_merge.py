"""Several pieces at once: which source a field is taken from, and what is shown where they differ."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kvcanary.errors import ImportTextError
from kvcanary.importers.detect import merge, read_text
from kvcanary.importers.result import Conflict, ImportKind, ImportResult
from tests.importers.samples import COMPOSE, EMPTY_POOL, HF_CONFIG, SGLANG_LOG

T = "2031-02-03 04:05:06"
COMMAND = (
    "SGLANG_KV_CANARY_RING_CAPACITY=64 python -m sglang.launch_server --model-path m --max-total-tokens 1000 --page-size 2 --kv-canary log "
    "--kv-canary-sweep-interval 5 --max-running-requests 90 --chunked-prefill-size 512"
)
ARGUMENTS = (
    f"[{T}] server_args=ServerArgs(model_path='m', page_size=4, max_running_requests=80, kv_canary='raise', kv_canary_sweep_interval=6, "
    f"chunked_prefill_size=256)\n"
)
READY = f"[{T}] max_total_num_tokens=800, chunked_prefill_size=256, max_prefill_tokens=4096, max_running_requests=70, context_len=512\n"
INSTALL = (
    f"[{T} TP0] install_canary: config=CanaryConfig(mode=<CanaryMode.LOG: 'log'>, ring_capacity=128, sweep_interval=7, "
    "real_kv_hash_mode=<RealKvHashMode.ALL: 2>) launch_capacities=CanaryLaunchCapacities(per_forward_verify_capacity=2700)\n"
)


def values(result: ImportResult) -> dict[str, Any]:
    return {name: entry.value for name, entry in result.fields.items()}


def conflict(result: ImportResult, name: str) -> Conflict:
    [entry] = [entry for entry in result.conflicts if entry.name == name]
    return entry


@pytest.mark.parametrize("order", list(itertools.permutations([COMMAND, ARGUMENTS, READY, INSTALL])))
def test_install_line_before_ready_line_and_arguments_before_the_command(order: tuple[str, ...]) -> None:
    result = merge([read_text(text) for text in order])
    found = values(result)
    assert (found["pool_slot_count"], found["mode"], found["sweep_interval"], found["ring_capacity"]) == (900, "log", 7, 128)
    assert (found["req_to_token_pool_size"], found["page_size"], found["chunked_prefill_size"]) == (70, 4, 256)
    assert (found["real_data"], found["max_total_tokens"]) == ("all", 1000)
    pool = conflict(result, "pool_slot_count")
    assert [candidate.value for candidate in pool.candidates] == [900, 800, 1000]
    assert pool.chosen == pool.candidates[0]
    assert [candidate.value for candidate in conflict(result, "req_to_token_pool_size").candidates] == [70, 80, 90]


def test_one_paste_of_command_and_log_reads_as_both() -> None:
    result = read_text(f"$ {COMMAND}\n{ARGUMENTS}{READY}{INSTALL}")
    assert result.parts == (ImportKind.LOG, ImportKind.COMMAND)
    assert result.kind is ImportKind.COMMAND
    assert result.arguments["page_size"] == 2
    assert values(result)["page_size"] == 4
    assert conflict(result, "page_size").reason.startswith("taken from the server arguments")


def test_sources_that_agree_are_no_conflict() -> None:
    result = merge([read_text(COMPOSE), read_text("--tp 2 --kv-canary raise")])
    assert not result.conflicts
    assert result.fields["tp_size"].value == 2


def test_two_commands_that_differ_say_so() -> None:
    result = merge([read_text("--page-size 2 --tp 1"), read_text("--page-size 4 --tp 1")])
    entry = conflict(result, "page_size")
    assert [candidate.value for candidate in entry.candidates] == [2, 4]
    assert "two sources of the same kind" in entry.reason


def test_a_config_fills_what_the_command_leaves_open_and_an_error_adds_its_explanation() -> None:
    result = merge([read_text(COMPOSE), read_text(HF_CONFIG), read_text(EMPTY_POOL)])
    assert result.kind is ImportKind.MIXED
    assert set(result.parts) == {ImportKind.COMMAND, ImportKind.HF_CONFIG, ImportKind.ERROR}
    assert (values(result)["tp_size"], values(result)["head_dim"]) == (2, 128)
    assert [entry.label for entry in result.explanations] == ["canary_pool_empty"]
    assert values(result)["model"] == "/m/wren"


def test_what_no_piece_states_is_not_there() -> None:
    result = merge([read_text("--tp 2 --page-size 4"), read_text(HF_CONFIG)])
    assert not {"pool_slot_count", "mode", "sweep_interval", "max_prefill_tokens", "chunked_prefill_size"} & set(result.fields)


def test_names_unknown_and_unresolved_words_of_all_pieces_are_kept() -> None:
    first = read_text("python -m sglang.launch_server --tp 2 --old-flag 1 $MORE", name="a.sh")
    second = read_text(SGLANG_LOG, name="b.log")
    both = merge([first, second])
    assert both.name == "a.sh, b.log"
    assert [entry.flag for entry in both.unknown] == ["--old-flag"]
    assert both.unresolved == ("$MORE",)


def test_one_piece_is_itself_and_none_is_an_error() -> None:
    one = read_text(SGLANG_LOG)
    assert values(merge([one])) == values(one)
    with pytest.raises(ImportTextError, match="nothing to merge"):
        merge([])
