"""JSON that operators have: server_info old and new, config.json, weight indexes, our own settings and runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcanary.config.settings import Settings
from kvcanary.errors import ImportTextError
from kvcanary.importers.detect import merge, read_text
from kvcanary.importers.result import ImportKind, ImportResult
from kvcanary.units import GIB
from tests.importers.samples import HF_CONFIG, SERVER_INFO, WEIGHT_INDEX


def values(result: ImportResult) -> dict[str, Any]:
    return {name: entry.value for name, entry in result.fields.items()}


def test_server_info() -> None:
    result = read_text(SERVER_INFO)
    assert (result.kind, result.engine) == (ImportKind.SERVER_INFO, "sglang")
    assert values(result) == {
        "model": "org/wren-9b", "page_size": 16, "tp_size": 2, "mode": "log", "pool_slot_count": 250_000, "req_to_token_pool_size": 48,
        "weight_bytes": round(17.5 * GIB), "graph_bytes": round(0.34 * GIB),
    }  # fmt: skip
    assert result.fields["pool_slot_count"].source == "server_info, max_total_num_tokens"
    assert result.observed["max_req_input_len"] == 32_762
    assert result.observed["version"] == "0.5.23"


def document(**changes: Any) -> str:
    return json.dumps({"model_path": "m", "tp_size": 1, "page_size": 4, "internal_states": [], **changes})


def test_what_was_asked_for_is_not_what_runs() -> None:
    states = [{"effective_max_running_requests_per_dp": 30}, {"effective_max_running_requests_per_dp": 20}]
    result = read_text(document(max_running_requests=500, internal_states=states))
    assert result.fields["req_to_token_pool_size"].value == 20
    assert result.fields["max_running_requests"].value == 500
    assert result.observed["effective_max_running_requests_per_dp"] == [30, 20]
    [conflict] = [entry for entry in result.conflicts if entry.name == "req_to_token_pool_size"]
    assert "ready line" in conflict.reason


def test_data_parallel_states_are_separate_pools_and_nothing_is_summed() -> None:
    usage = [{"weight": 3.0, "kvcache": 1.0, "graph": -0.01, "token_capacity": tokens} for tokens in (900, 800)]
    result = read_text(document(internal_states=[{"memory_usage": entry} for entry in usage]))
    assert values(result)["pool_slot_count"] == 800
    assert values(result)["weight_bytes"] == 3 * GIB
    assert "graph_bytes" not in result.fields


def test_nested_and_flat_graph_settings() -> None:
    config = {"decode": {"backend": "full", "max_bs": 40, "bs": [1, 8, 40]}, "prefill": {"backend": "disabled", "max_bs": 2048, "bs": None}}
    assert values(read_text(document(cuda_graph_config=config)))["cuda_graph_max_bs"] == 40
    assert values(read_text(document(cuda_graph_config=config)))["cuda_graph_backend_prefill"] == "disabled"
    assert values(read_text(document(cuda_graph_max_bs=96, cuda_graph_bs=None)))["cuda_graph_max_bs"] == 96
    assert "cuda_graph_max_bs" not in read_text(document(cuda_graph_config={"prefill": {"max_bs": 2048}})).fields


def test_null_is_not_stated_and_zero_is() -> None:
    result = read_text(document(chunked_prefill_size=0, max_prefill_tokens=None, kv_canary_sweep_interval=0, max_total_num_tokens=0))
    found = values(result)
    assert (found["chunked_prefill_size"], found["sweep_interval"], found["pool_slot_count"]) == (0, 0, 0)
    assert "max_prefill_tokens" not in found


def test_secrets_of_an_answer_are_left_out() -> None:
    result = read_text(document(api_key="hidden-1", admin_api_key="hidden-2", hf_token="hidden-3", ssl_keyfile_password="hidden-4"))
    assert "hidden" not in json.dumps(result.to_dict())


def test_values_that_make_no_sense_are_findings() -> None:
    result = read_text(document(page_size="many", tp_size=True, max_total_num_tokens="12"))
    assert "page_size" not in result.fields
    assert any(finding.rule == "field-not-set" and "page_size" in finding.message for finding in result.findings)


def test_one_state_pasted_alone() -> None:
    text = json.dumps({"memory_usage": {"weight": 2.0, "token_capacity": 777}, "effective_max_running_requests_per_dp": 6})
    assert values(read_text(text)) == {"req_to_token_pool_size": 6, "weight_bytes": 2 * GIB, "pool_slot_count": 777}


def test_a_model_config() -> None:
    result = read_text(HF_CONFIG)
    assert result.kind is ImportKind.HF_CONFIG
    found = values(result)
    assert (found["num_layers"], found["num_kv_heads"], found["head_dim"], found["model_dtype"]) == (20, 4, 128, "bfloat16")
    assert result.fields["num_kv_heads"].source == "config.json, num_key_value_heads"


def test_a_weight_index() -> None:
    result = read_text(WEIGHT_INDEX)
    assert (result.kind, values(result)) == (ImportKind.WEIGHT_INDEX, {"weight_bytes": 17_500_000_000})
    with pytest.raises(ImportTextError, match=r"metadata\.total_size must be a whole number in 1\.\.9223372036854775807, got 'x'"):
        read_text('{"metadata": {"total_size": "x"}, "weight_map": {}}')


@pytest.mark.parametrize(
    "wrap",
    [
        lambda settings: settings.to_flat(),
        lambda settings: settings.model_dump(),
        lambda settings: {"settings": settings.to_flat()},
        lambda settings: {"schema": "kvcanary.plan", "version": 1, "settings": settings.to_flat()},
        lambda settings: {"schema": "kvcanary.run", "version": 3, "spec": {"kind": "bench", "settings": settings.to_flat()}},
        lambda settings: {
            "schema": "kvcanary.import",
            "version": 1,
            "fields": {name: {"value": value, "source": "x"} for name, value in settings.to_flat().items()},
        },
    ],
)
def test_our_own_files(wrap: Any) -> None:
    settings = Settings.from_flat({"pool_slot_count": 4096, "page_size": 8, "chunked_prefill_size": None, "mode": "raise"})
    result = read_text(json.dumps(wrap(settings)))
    assert result.kind in (ImportKind.SETTINGS, ImportKind.RUN)
    assert Settings.from_flat(result.settings_values()) == settings


def test_our_own_files_from_elsewhere() -> None:
    result = read_text('{"schema": "kvcanary.settings", "settings": {"page_size": 8, "page_colour": "red", "ring_capacity": "many"}}')
    assert values(result) == {"page_size": 8}
    assert [finding.rule for finding in result.findings] == ["unknown-field", "field-not-set"]
    with pytest.raises(ImportTextError, match=r"a kvcanary\.run file without settings"):
        read_text('{"schema": "kvcanary.run", "version": 1}')


def test_a_reading_can_be_read_again() -> None:
    first = read_text("python -m sglang.launch_server --model-path m --page-size 16 --max-running-requests 9 --kv-canary log")
    again = read_text(json.dumps(first.to_dict()))
    assert again.settings_values() == first.settings_values()


def test_documents_among_other_text() -> None:
    text = f"the server says\n{SERVER_INFO}\nand the model is\n{json.dumps(json.loads(HF_CONFIG), indent=2)}\nbye\n"
    result = read_text(text)
    assert set(result.parts) == {ImportKind.SERVER_INFO, ImportKind.HF_CONFIG}
    assert (result.fields["pool_slot_count"].value, result.fields["head_dim"].value) == (250_000, 128)


def test_a_model_config_is_read_for_the_ranks_that_another_piece_states() -> None:
    config = json.loads(HF_CONFIG) | {"num_attention_heads": 16, "layer_types": ["full_attention", "linear_attention"] * 10,
                                      "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
                                      "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}  # fmt: skip
    alone = read_text(json.dumps(config))
    with_ranks = merge([read_text("python -m sglang.launch_server --model-path m --tp 4"), alone])
    one, four = alone.fields["state_bytes_per_request"].value, with_ranks.fields["state_bytes_per_request"].value
    assert 3.5 < one / four < 4.5
