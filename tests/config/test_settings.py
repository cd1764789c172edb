"""Settings: flat names, text, round trips, refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvcanary.config.launch_flags import sglang_flags
from kvcanary.config.presets import find_preset, presets
from kvcanary.config.rules import validate
from kvcanary.config.settings import FIELDS, Settings, SettingsTextError, flag_text, format_field, parse_field, read_flat
from kvcanary.errors import ConfigError


def value_of(name: str) -> st.SearchStrategy[Any]:
    spec = FIELDS[name]
    values: st.SearchStrategy[Any] = {
        "count": st.integers(-(2**63) + 1, 2**63 - 1),
        "size": st.integers(0, 2**63 - 1),
        "fraction": st.floats(-1000, 1000, allow_nan=False).map(lambda number: round(number, 6)),
        "choice": st.sampled_from(spec.choices or ("none",)),
        "switch": st.booleans(),
        "text": st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=30).map(str.strip),
    }[spec.kind]
    return st.none() | values if spec.optional else values


ANY_SETTINGS = st.fixed_dictionaries({}, optional={name: value_of(name) for name in FIELDS})


@given(ANY_SETTINGS)
def test_flat_values_come_back(values: dict[str, Any]) -> None:
    settings = Settings.from_flat(values)
    flat = settings.to_flat()
    assert list(flat) == list(FIELDS)
    assert all(flat[name] == value for name, value in values.items())
    assert Settings.from_flat(flat) == settings


@given(ANY_SETTINGS)
def test_text_values_come_back(values: dict[str, Any]) -> None:
    settings = Settings.from_flat(values)
    assert Settings.from_flat({name: format_field(name, value) for name, value in settings.to_flat().items()}) == settings


@given(st.sampled_from(list(FIELDS)), st.text(max_size=60))
def test_no_text_does_anything_but_parse_or_be_refused_by_name(name: str, text: str) -> None:
    try:
        value = parse_field(name, text)
    except ConfigError as refusal:
        said = str(refusal)
    else:
        said = f"{name} must be readable again: {parse_field(name, format_field(name, value))}"
    assert said.startswith(f"{name} must")


@pytest.mark.parametrize(("raw", "said"), [("-1", "'-1'"), (-1, "'-1' (int)"), (2**63, "'9223372036854775808' (int)")])
def test_a_negative_size_is_none_as_text_and_typed(raw: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"weight_bytes must be a size, got {said}")):
        parse_field("weight_bytes", raw)


def test_every_unreadable_field_is_named_at_once() -> None:
    with pytest.raises(SettingsTextError) as caught:
        Settings.from_flat({"page_size": "12.5", "mode": "on", "typo": "1", "sweep_interval": None, "pool_slot_count": True})
    assert [finding.fields[0] for finding in caught.value.findings] == ["page_size", "mode", "typo", "sweep_interval", "pool_slot_count"]
    assert "accepted forms" in str(caught.value)


def test_readable_fields_survive_beside_unreadable_ones() -> None:
    settings, problems = read_flat({"page_size": "64", "pool_slot_count": "many"})
    assert settings.pool.page_size == 64
    assert [problem.fixes[0].field for problem in problems] == ["pool_slot_count"]


def test_settings_are_frozen_and_refuse_unknown_keys() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.pool = settings.pool  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Settings.model_validate({"pool": {"slots": 1}})


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("page_size", 64, "--page-size 64"),
        ("enable_mixed_chunk", True, "--enable-mixed-chunk"),
        ("enable_mixed_chunk", False, ""),
        ("verify_v_half", True, "SGLANG_KV_CANARY_ENABLE_MHA_V=1"),
        ("cuda_graph_max_bs", None, ""),
        ("num_layers", 3, ""),
    ],
)
def test_a_value_as_its_flag(name: str, value: Any, flag: str) -> None:
    assert flag_text(name, value) == flag


def test_presets_are_whole_start_and_have_names_of_their_own() -> None:
    assert len(presets()) >= 6
    assert len({preset.name for preset in presets()}) == len(presets())
    for preset in presets():
        errors = [finding.message for finding in validate(preset.to_settings()) if finding.severity == "error"]
        assert errors == [], preset.name
        assert preset.source


def test_a_wrong_preset_name_lists_the_right_ones() -> None:
    with pytest.raises(ConfigError, match=f"{presets()[0].name}.*got 'gpt-9'"):
        find_preset("gpt-9")


def test_the_launch_command_holds_what_decides_a_capacity() -> None:
    text = sglang_flags(
        Settings.from_flat(
            {
                "model": "a b", "req_to_token_pool_size": 12, "dp_size": 4, "enable_dp_attention": True, "chunked_prefill_size": None,
                "cuda_graph_max_bs": None, "ring_capacity": 9, "verify_token_assert": True, "max_seq_len_per_req": 1004,
            }
        )
    )  # fmt: skip
    for piece in (
        "--model-path 'a b'", "--max-running-requests 48", "--chunked-prefill-size -1", "--cuda-graph-backend-decode disabled",
        "--context-length 1000", "--max-total-tokens 262144", "SGLANG_KV_CANARY_RING_CAPACITY=9", "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT=1",
        "--kv-canary log",
    ):  # fmt: skip
        assert piece in text
    assert text.index("SGLANG_KV_CANARY_RING_CAPACITY=9") < text.index("sglang.launch_server")
