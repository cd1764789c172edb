"""The Benchmark page's two sides: what will run, and the result of the run that is shown."""

from __future__ import annotations

import streamlit as st

from kvcanary.analysis import roofline
from kvcanary.analysis.frames import decode_variant, points_frame, variants
from kvcanary.charts import roofline as roofline_chart
from kvcanary.charts import sections, throughput
from kvcanary.config.findings import Severity
from kvcanary.config.settings import Settings
from kvcanary.errors import KvCanaryError
from kvcanary.lab.records import BenchmarkSpec, Point, RunRecord, RunState
from kvcanary.lab.workloads import PRESETS, plan_benchmark
from kvcanary.store.export import export_csv, export_json
from kvcanary.ui import blocks, chosen_run, progress, services, slot_view, state, style
from kvcanary.units import parse_seconds

_CONFIG = {"displayModeBar": False}
# Runs that can be chosen to compare with; older ones are found on the page Runs.
_LISTED = 100


def controls(current: state.Current) -> None:
    """Choose effort, backend and device, see what will run, and start it."""
    names = ["auto", *(name for name, found in services.backends() if found.ok)]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        effort = st.segmented_control(
            "Effort", list(PRESETS), default="quick", required=True, key="effort", persist_state="session",
            help="quick: the current real-KV mode, contiguous slots. standard and long: every mode, contiguous and shuffled slots.",
        )  # fmt: skip
        device = st.selectbox(
            "Device", list(services.devices()), key="device", format_func=_device_label, persist_state="session", width=260,
            help="Where the kernels run and the simulated pool lies; figures hold for the device they were measured on.",
        )  # fmt: skip
        backend = st.selectbox(
            "Backend", names, key="backend", persist_state="session", width=140,
            help="Which implementation of the kernels is measured; auto takes the fastest that works on the device.",
        )  # fmt: skip
        faults = st.toggle(
            "Plant faults", value=True, key="faults", persist_state="session",
            help="After the measurements, damage a few slots of the benchmark's own pool, so that the map shows what is found.",
        )  # fmt: skip
        step_text = st.text_input(
            "Model step", key="step_time", placeholder="such as 20 ms", width=140, persist_state="session",
            help="Time of one forward of your model, if you know it: the canary's time per forward is then also shown as a share of it.",
        )  # fmt: skip
    step_time_s, no_time = _step_time(step_text)
    problem = _problem(current)
    spec = BenchmarkSpec(
        settings=current.settings.to_flat(), preset=effort, backend=backend, device=device, faults=faults, step_time_s=step_time_s
    )
    sentence = ""
    if not problem and not no_time:
        try:
            sentence = plan_benchmark(spec).sentence
        except KvCanaryError as error:
            problem = str(error)
    if problem:
        style.verdict(f"Cannot run: {problem}", "error")
        st.page_link("pages/plan.py", label="Correct the settings on Plan", icon=":material/tune:")
    elif no_time:
        style.verdict(f"Cannot run: {no_time}", "error")
    else:
        sentence += "" if backend == "auto" else f" Backend: {backend}."
    queued = len(services.jobs().active())
    label = "Run" if not queued else f"Queue behind {queued}"
    with st.container(horizontal=True, wrap=False, vertical_alignment="center", gap="small"):
        st.button(
            label, key="run", type="secondary" if queued else "primary", disabled=bool(problem or no_time), on_click=_start,
            args=(spec,),
            icon=":material/play_arrow:",
        )  # fmt: skip
        if sentence:
            style.caption(sentence)
    if failure := st.session_state.pop("start_problem", ""):
        style.remark(failure, "error")


def _device_label(device: str) -> str:
    return f"{device}: {services.devices()[device]}"


def _problem(current: state.Current) -> str:
    errors = [finding for finding in current.findings if finding.severity is Severity.ERROR]
    return errors[0].message.partition("; accepted forms")[0] if errors else ""


def _step_time(text: str) -> tuple[float | None, str]:
    """The stated time of a step, and what is wrong with it."""
    try:
        return (parse_seconds(text), "") if text.strip() else (None, "")
    except KvCanaryError as error:
        return None, f"Model step {error}"


def _start(spec: BenchmarkSpec) -> None:
    try:
        st.query_params["run"] = services.start(spec)
        st.query_params.pop("slot", None)
    except (KvCanaryError, OSError) as error:
        st.session_state["start_problem"] = str(error)


def result(current: state.Current) -> None:
    """The run named in the address, else the newest."""
    record = chosen_run.choose("benchmark")
    if record is None:
        st.info("No benchmark has run yet. Press Run: the quick one takes a few seconds and ends with a map of the pool.")
        return
    if record.state.active:
        progress.panel(record.id)
    else:
        _finished(record, current)


def _finished(record: RunRecord, current: state.Current) -> None:
    style.verdict(record.sentence or f"{record.state.value.capitalize()}. {record.error}", sections.VERDICT_KINDS[record.verdict])
    # Where a field cannot be read there is no plan to compare with; the line above says so.
    if current.readable and (words := chosen_run.other_settings(record, current.settings)):
        style.remark(words, "note")
    if record.state in (RunState.FAILED, RunState.INTERRUPTED):
        with st.expander("Last words of the worker"):
            st.code(record.error or "nothing was printed", language=None, wrap_lines=True)
    points = services.runs().points(record.id)
    if not points and services.runs().count(kind="benchmark") > 1:
        st.page_link("pages/runs.py", label="Earlier benchmarks", icon=":material/history:")
    frame = points_frame(points)
    by_batch = bool(variants(frame))
    if by_batch:
        _throughput(record, points)
    else:
        _limits(record, points)
    if len(frame):
        _points_table(record, points)
    arrays = services.slots(record.id)
    if arrays is not None:
        page_size = Settings.from_flat(record.spec["settings"]).pool.page_size
        slot_view.draw(record.id, arrays, services.runs().cards(record.id), page_size)
    if by_batch:
        _limits(record, points)
    _details(record)
    _downloads(record)


def _throughput(record: RunRecord, points: list[Point]) -> None:
    frame = points_frame(points)
    found = variants(frame)
    words = st.container()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        chosen = _pick_variant(record, found)
        earlier = _pick_earlier(record)
    rows = decode_variant(frame, *chosen)
    before = decode_variant(points_frame(services.runs().points(earlier)), *chosen) if earlier else None
    text = throughput.summary(rows, record.spec.get("step_time_s"))
    with words:
        style.caption(text)
    figure = throughput.by_batch(rows, state.theme(), before, "the earlier run" if earlier else "")
    st.plotly_chart(figure, key=f"throughput.{record.id}", config=_CONFIG, alt=text)


def _pick_earlier(record: RunRecord) -> str | None:
    """A run to lay beneath this one; nothing to pick where there is none."""
    rows = services.runs().list(kind="benchmark", limit=_LISTED)
    others = {row.id: sections.run_name(row) for row in rows if row.id != record.id and row.points and not row.state.active}
    if not others:
        return None
    return st.selectbox(
        "Compare with", list(others), index=None, placeholder="an earlier run", key=f"compare.{record.id}", width=300,
        format_func=others.__getitem__, help="Lays the rates of an earlier run under these in the chart; nothing is measured again.",
    )  # fmt: skip


def _points_table(record: RunRecord, points: list[Point]) -> None:
    with st.expander("Every measured point as a table", key=f"table.{record.id}"):
        table = sections.points_table(record, points)
        blocks.table(table.head, table.rows, numeric=table.numeric)


def _limits(record: RunRecord, points: list[Point]) -> None:
    frame = roofline.roofline_frame(points, record.limits)
    if frame.empty:
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.subheader("What limits it", anchor="limits")
        variant = st.selectbox(
            "Points", roofline.roofline_variants(frame), key=f"limits.{record.id}", width=320,
            format_func=lambda found: f"{found[0]}, hash {found[1]}, {found[2]} slots",
            help="A limit alone: memory moves the same bytes without hashing, compute hashes the same words without memory, chain latency is "
            "one hash after the other, launch is an operation of one entry. No measured rate gets above them, but for noise.",
        )  # fmt: skip
    rows = roofline.roofline_variant(frame, *variant)
    text = roofline.sentence(rows, record.limits)
    for column, op in zip(st.columns(2), ("stamp", "verify"), strict=True):
        if (rows["op"] == op).any():
            figure = roofline_chart.roofline(rows, record.limits, op, state.theme())
            column.plotly_chart(figure, key=f"limits.{op}.{record.id}", config=_CONFIG, alt=f"{op}: {text}")
    style.caption(text)
    with st.expander("Limits as a table", key=f"limits.table.{record.id}"):
        head = ("op", "items", "measured", "held by", "share", "of copy bandwidth", *(f"{name} alone" for name in roofline.LIMITS))
        blocks.table(head, roofline.table_rows(rows), numeric=(1, 2, 4, 5, 6, 7, 8, 9))


def _pick_variant(record: RunRecord, found: list[tuple[str, str]]) -> tuple[str, str]:
    if len(found) == 1:
        return found[0]
    return st.selectbox(
        "Variant", found, format_func=lambda pair: f"hash {pair[0]}, {pair[1]} slots", key=f"variant.{record.id}", width=260,
        help="Which of the measured combinations the chart shows: how much real KV is hashed, and whether a request's slots lie in a row.",
    )  # fmt: skip


def _details(record: RunRecord) -> None:
    with st.expander("Gate, coverage, machine, planted faults", key=f"details.{record.id}"):
        found = [section for section in (sections.gate(record), sections.coverage(record), sections.machine(record)) if section is not None]
        for table in [*(table for section in found for table in section.tables), *sections.planted_tables(record)]:
            blocks.table(table.head, table.rows, numeric=table.numeric)
        style.caption(f"Run {record.id}, seed {record.spec.get('seed')}.")
        for reason in record.skipped:
            style.caption(f"Left out: {reason}.")


def _downloads(record: RunRecord) -> None:
    runs, name = services.runs(), record.id
    with st.container(horizontal=True, gap="small"):
        st.download_button("JSON", lambda: export_json(runs, name), f"{name}.json", "application/json", on_click="ignore")
        st.download_button("CSV", lambda: export_csv(runs, name), f"{name}.csv", "text/csv", on_click="ignore")
