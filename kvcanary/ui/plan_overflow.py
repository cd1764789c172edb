"""Forecast of skipped verification: how far shared prefixes may push the rows of one forward beyond 3 x the pool."""

from __future__ import annotations

import streamlit as st

from kvcanary.charts import plan as charts
from kvcanary.config.overflow import OverflowForecast, PrefixGroup, forecast_overflow, most_requests
from kvcanary.config.settings import Settings
from kvcanary.errors import ConfigError
from kvcanary.escape import html_text
from kvcanary.layout import VERIFY_CAPACITY_FACTOR
from kvcanary.ui import blocks, state, style
from kvcanary.units import format_count, group_digits, parse_integer

CHART_CONFIG = {"displayModeBar": False}
# (name, label, default, help)
_INPUTS = (
    ("groups", "Groups", "1", "Groups of requests; requests of one group share a prefix, those of two groups share nothing."),
    ("requests", "Requests per group", "16", "Running requests that have the same beginning."),
    ("shared", "Shared prefix", "16384", "Tokens that all requests of a group have in common, such as a system prompt or a document."),
    ("own", "Own tokens", "512", "Tokens of each request that nobody shares: the rest of its prompt and what it has generated."),
)


def draw(settings: Settings) -> None:
    """Four numbers that describe the traffic, the sentence, the picture, the figures."""
    style.caption(
        f"Each forward verifies every cached token of every request; a shared slot counts once in the pool and once per request here. "
        f"Above {VERIFY_CAPACITY_FACTOR} x the pool SGLang skips verification for that forward."
    )
    numbers = _numbers()
    if numbers is None:
        return
    group = PrefixGroup(requests=numbers["requests"], shared_tokens=numbers["shared"], own_tokens=numbers["own"])
    count, step = numbers["groups"], max(1, settings.batch.speculative_num_draft_tokens or 1)
    pool = settings.pool
    try:
        forecast = forecast_overflow(
            pool.pool_slot_count, [group] * count, page_size=pool.page_size, step_tokens=step, max_requests=pool.req_to_token_pool_size
        )
        fitting = most_requests(pool.pool_slot_count, group, count, page_size=pool.page_size, step_tokens=step)
        most = min(fitting, pool.req_to_token_pool_size // count)
    except ConfigError as error:
        style.remark(f"No forecast: {error}.", "note")
        return
    kind = "warning" if forecast.skipped or not forecast.fits else "pass"
    st.html(f'<p class="kvc-finding kvc-{kind}"><b>{html_text(forecast.text[0].upper() + forecast.text[1:])}</b></p>')
    st.plotly_chart(
        charts.overflow_chart(forecast, group, count, most, state.theme()), key="overflow_chart", config=CHART_CONFIG, alt=forecast.text
    )
    blocks.table(("figure", "value"), _rows(forecast, most), numeric=(1,))
    st.html(f'<p class="kvc-why"><code>{html_text(group_digits(forecast.formula))}</code></p>')


def _numbers() -> dict[str, int] | None:
    """The four inputs, or None while one of them is no number of its kind."""
    found: dict[str, int] = {}
    for column, (name, label, default, help_text) in zip(st.columns(4, gap="small"), _INPUTS, strict=True):
        with column:
            text = st.text_input(
                label, default, key=f"overflow.{name}", live="200ms", help=help_text, autocomplete="off", persist_state="session"
            )
            try:
                found[name] = _number(name, text or "")
            except ConfigError as error:
                style.line(str(error).partition("; accepted forms")[0], "error")
            else:
                style.line("", "note")
    return found if len(found) == len(_INPUTS) else None


def _number(name: str, text: str) -> int:
    value = parse_integer(text)
    lowest, highest = (1, 1000) if name == "groups" else (0, 10**12)
    if not lowest <= value <= highest:
        raise ConfigError(f"must be in {lowest}..{format_count(highest)}, got {value}")
    return value


def _rows(forecast: OverflowForecast, most: int) -> list[tuple[str, str]]:
    def limit(value: int | None) -> str:
        return "never, the pool is full before" if value is None else format_count(value)

    return [
        ("rows of one forward", format_count(forecast.rows)),
        ("rows the plan holds", format_count(forecast.capacity)),
        ("pool slots taken", f"{format_count(forecast.slots)} of {format_count(forecast.pool_slots)}"),
        ("requests per group that pool and request rows hold", format_count(most)),
        ("skipped from this many requests per group", limit(forecast.skip_from_requests)),
        ("skipped from this long a shared prefix", limit(forecast.skip_from_prefix)),
    ]
