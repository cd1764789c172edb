from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary.config.settings import FIELDS, FieldSpec, Settings, format_field
from kvcanary.units import INT64_MAX


def typed_values(spec: FieldSpec) -> st.SearchStrategy[Any]:
    """Typed values of a field, whether a rule would accept them or not."""
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "count": st.integers(-INT64_MAX, INT64_MAX),
        "size": st.integers(0, INT64_MAX),
        "fraction": st.integers(0, 10**6).map(lambda n: n / 10**6),
        "switch": st.booleans(),
        "choice": st.sampled_from(spec.choices or ("",)),
        "text": st.text("abz/-_.09 X", max_size=12).map(str.strip),
    }
    values = kinds[spec.kind]
    return st.none() | values if spec.optional else values


@settings(deadline=None, max_examples=60)
@given(st.fixed_dictionaries({name: typed_values(spec) for name, spec in FIELDS.items()}))
def test_all_fields_survive_a_trip_through_text(values: dict[str, Any]) -> None:
    original = Settings.from_flat(values)
    assert Settings.from_flat({name: format_field(name, value) for name, value in original.to_flat().items()}) == original


def test_small_fractions_are_printed_in_digits() -> None:
    assert format_field("mem_fraction_static", 0.00001) == "0.00001"
    assert format_field("mem_fraction_static", 0.875) == "0.875"
    assert format_field("swa_full_tokens_ratio", 1.0) == "1.0"
