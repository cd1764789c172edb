"""The views of the Plan page: solve, frontier, lines, overflow, log, choices, flags, and what happens over budget."""

from __future__ import annotations

import re

import pytest

from tests.pages.plan_app import MODEL, field_text, html, keys, open_plan, paste, show, source, type_into

LOG = """[2026-09-20 10:11:12] server_args=ServerArgs(model_path='org/crane-9b', context_length=20000, mem_fraction_static=0.84, \
max_running_requests=96, page_size=1, tp_size=1, chunked_prefill_size=4096, max_prefill_tokens=16384, cuda_graph_max_bs=64, kv_canary='log')
[2026-09-20 10:11:13] Load weight begin. avail mem=45.10 GB
[2026-09-20 10:11:42] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=27.10 GB, mem usage=18.00 GB.
[2026-09-20 10:11:43] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 388000, K size: 9.71 GB, V size: 9.71 GB
[2026-09-20 10:11:51] max_total_num_tokens=388000, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=96, \
context_len=20000, available_gpu_mem=6.50 GB
"""


def test_solve_answers_and_its_buttons_take_the_answer_over() -> None:
    app = show(open_plan(**MODEL), "Solve")
    text = html(app)
    assert "Largest pool for this memory" in text
    assert "Longest context in this pool: <b>1" in text
    assert "log or raise, any real-data depth" in text
    app.button(key="solved.pool_slot_count").click().run()
    larger = int(field_text(app, "pool_slot_count"))
    assert larger > 180_000
    assert "solved.pool_slot_count" not in keys(app)
    app.text_input(key="solve.concurrency").set_value("3").run()
    assert f"<b>{larger // 3:,} tokens</b>".replace(",", "\N{NARROW NO-BREAK SPACE}") in html(app)


def test_requests_at_once_follow_the_request_rows_until_typed() -> None:
    app = show(open_plan(**MODEL), "Solve")
    assert "Longest context in this pool: <b>1\u202f875 tokens</b>" in html(app)
    assert "Longest context in this pool: <b>3\u202f750 tokens</b>" in html(type_into(app, "req_to_token_pool_size", "48"))
    app.text_input(key="solve.concurrency").set_value("12").run()
    assert "Longest context in this pool: <b>15\u202f000 tokens</b>" in html(type_into(app, "req_to_token_pool_size", "24"))


@pytest.mark.parametrize("text", ["0", "many", "-4"])
def test_a_concurrency_that_is_none_is_explained(text: str) -> None:
    app = show(open_plan(**MODEL), "Solve")
    app.text_input(key="solve.concurrency").set_value(text).run()
    assert not app.exception
    assert "must be" in html(app)


def test_over_budget_is_a_result_with_remedies_that_act() -> None:
    app = open_plan(**{**MODEL, "pool_slot_count": "900000"})
    assert '<div class="kvc-verdict kvc-warning"' in html(app)
    assert "Over budget:" in html(app)
    remedies = [key for key in keys(app) if key.startswith("remedy.")]
    assert remedies[0].endswith("pool_slot_count")
    app.button(key=remedies[0]).click().run()
    assert "Over budget:" not in html(app)
    assert "slots or" in html(app)
    # Nothing is left of the device for what comes on top of the static share.
    full = html(open_plan(**{**MODEL, "pool_slot_count": "900000", "mem_fraction_static": "0.999"}))
    assert '<div class="kvc-verdict kvc-error" role="status"><span>Over budget:' in full


def test_every_line_has_its_formula_and_where_it_comes_from() -> None:
    app = show(open_plan(**{**MODEL, "verify_token_assert": "true"}), "Lines")
    text = html(app)
    for part in ("Weights", "KV pool", "Canary buffers FULL K", "Canary buffers FULL V", "workspace", "Violation ring", "Expected-token table",
                 "Request table", "CUDA graphs", "headroom"):  # fmt: skip
        assert part in text
    assert "slots 180\u202f000 * bytes_per_slot 53\u202f760 = 9\u202f676\u202f800\u202f000" in text
    assert "SGLang 0.5.23, pool_configurator.py" in text
    assert "typed in the form" in text


def test_the_frontier_is_a_chart_with_a_table() -> None:
    app = show(open_plan(**MODEL), "Frontier")
    assert "At this memory 1 request can reach" in html(app)
    assert "longest context" in html(app)
    unknown = show(open_plan(), "Frontier")
    assert "No frontier yet" in html(unknown)


def test_overflow_forecast_of_a_sharing_pattern() -> None:
    app = show(open_plan(**MODEL), "Overflow")
    assert "Verified: rows are" in html(app)
    app.text_input(key="overflow.requests").set_value("90").run()
    app.text_input(key="overflow.shared").set_value("60000").run()
    text = html(app)
    assert "Not verified: rows are" in text
    assert "90 x (60 000 + 512) = 5 446 080 rows; 3 x 180 000 = 540 000" in text.replace("\u202f", " ")
    app.text_input(key="overflow.groups").set_value("2").run()
    assert "90 x (60 000 + 512) + 90 x (60 000 + 512) = 10 892 160 rows" in html(app).replace("\u202f", " ")
    app.text_input(key="overflow.own").set_value("some").run()
    assert not app.exception
    assert "must be a whole number" in html(app)


def test_a_log_stands_beside_the_plan_line_by_line() -> None:
    assert "No log yet" in html(show(open_plan(**MODEL), "Log"))
    app = paste(open_plan(**MODEL), LOG)
    assert app.session_state["plan_view"] == "Log"
    text = html(app)
    assert "unexplained" in text
    assert "K bytes per token" in text
    # 30 layers of 4 heads of 112 elements of 2 bytes are 26 880 bytes; the log's 9.71 GiB over 388 001 rows are 26 871.
    assert ">26\N{NARROW NO-BREAK SPACE}880<" in text
    wrong = type_into(app, "num_kv_heads", "8")
    assert "unexplained: " in html(wrong)
    assert "K bytes per token, V bytes per token" in html(wrong)


def test_choices_name_their_rule_and_fill_only_what_nobody_stated() -> None:
    app = show(open_plan(**MODEL), "Choices")
    ungrouped = re.findall(r">[^<]*\b\d{5,}\b[^<]*<", html(app).partition("rule with your numbers")[2])
    assert ungrouped == [], "numbers stand in thin groups, as everywhere on the page"
    assert "47 000 MiB &lt; 61 440 MiB" in html(app).replace("\u202f", " ")
    app.button(key="use_choices").click().run()
    assert field_text(app, "chunked_prefill_size") == "4096"
    assert field_text(app, "cuda_graph_max_bs") == "32"
    assert source(app, "chunked_prefill_size").startswith("derived as SGLang does")
    # What a link states is stated.
    assert (field_text(app, "mem_fraction_static"), field_text(app, "pool_slot_count")) == ("0.84", "180000")
    assert "use_choices" not in keys(app)
    app.button(key="undo").click().run()
    assert field_text(app, "chunked_prefill_size") == "8192"


def test_flags_say_the_settings() -> None:
    assert any("--max-total-tokens 180000" in code.value for code in show(open_plan(**MODEL), "Flags").code)


@pytest.mark.parametrize("change", [{"pool_slot_count": "12.5"}, {"weight_bytes": "heavy"}, {"pool_slots": "180000"}])
def test_nothing_is_computed_from_a_default_in_place_of_what_cannot_be_read(change: dict[str, str]) -> None:
    app = show(open_plan(**{**MODEL, **change}), "Flags")
    text = html(app)
    assert "Capacities and memory are computed once every field can be read." in text
    for figures in ("Slots verified per launch", "Memory of one rank", "000 slots", "144 slots"):
        assert figures not in text.replace("\u202f", " ")
    assert not any("--max-total-tokens" in code.value for code in app.code)


def test_figures_come_back_with_the_value() -> None:
    app = type_into(open_plan(**{**MODEL, "pool_slot_count": "12.5"}), "pool_slot_count", "190000")
    assert "190\u202f000 slots" in html(app)
    assert "Slots verified per launch" in html(app)


@pytest.mark.parametrize("view", ["Solve", "Frontier", "Lines", "Overflow", "Log", "Choices", "Flags"])
@pytest.mark.parametrize("change", [{"pool_slot_count": "0"}, {"page_size": "0"}, {"tp_size": "3"}, {"dp_size": "0"}, {"num_layers": "-1"}])
def test_no_view_breaks_on_illegal_values(view: str, change: dict[str, str]) -> None:
    show(open_plan(**{**MODEL, **change}), view)
