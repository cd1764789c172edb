"""Documents as others may have written them: our own with any of their values put in another's place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from kvcanary.charts.report import Section

NASTY = "</script><img src=x onerror=alert(1)>%{x}\x1b[31m\ud800"
_TEXTS = ("", "FULL", "HEAD_K_FULL", "9999-12-31 23:59:59", "2026-01-01T00:00:00+14:00", NASTY)
_LEAVES = st.sampled_from((None, True, -1, 0, 1, 7, (1 << 63) - 1, 1 << 70, 0.5, 1e300, *_TEXTS))
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("a", "slot", NASTY)), inner, max_size=3)
)


@st.composite
def damaged(draw: st.DrawFn, document: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a document in which some values, at any depth, are missing or are something else."""
    places = draw(st.lists(st.sampled_from(_paths(document)), min_size=1, max_size=12))
    copy = _copy(document)
    for path in places:
        holder: Any = copy
        for key in path[:-1]:
            holder = holder[key] if _has(holder, key) else None
        if _has(holder, path[-1]):
            holder[path[-1]] = draw(_VALUES)
    return copy


def shown(sections: Sequence[Section]) -> list[Any]:
    """Everything that is shown, with every figure drawn in both themes."""
    return [
        (
            section.heading, section.sentence, section.code,
            [(list(table.head), [list(row) for row in table.rows], list(table.numeric), table.caption) for table in section.tables],
            [
                (picture.alt, [(picture.draw(theme).to_json(), picture.key and picture.key(theme)) for theme in ("light", "dark")])
                for picture in section.pictures
            ],
        )
        for section in sections
    ]  # fmt: skip


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return ([path] if path else []) + [found for key, part in inner for found in _paths(part, (*path, key))]


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(part) for key, part in value.items()}
    return [_copy(part) for part in value] if isinstance(value, list | tuple) else value


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else isinstance(holder, list) and isinstance(key, int) and key < len(holder)
