"""The Runs page's parts: filters and table, one opened run, runs beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import streamlit as st

from kvcanary.charts.compare import RUN_LIMIT
from kvcanary.charts.compare_sections import compare_report, compare_sections
from kvcanary.charts.report import Section
from kvcanary.charts.sections import VERDICT_KINDS, run_report, run_sections
from kvcanary.config.settings import FIELDS, format_field
from kvcanary.errors import KvCanaryError
from kvcanary.escape import markdown_text
from kvcanary.lab.records import RunRecord
from kvcanary.store.export import export_csv, export_json, export_parquet
from kvcanary.store.rows import Filters, RunRow
from kvcanary.ui import access, blocks, progress, services, state, style
from kvcanary.units import MIB, format_bytes, format_count

PAGE_ROWS = 100
_Choice = Literal["kind", "verdict", "machine", "model", "label"]
_CHOICES: Mapping[_Choice, tuple[str, str]] = {
    "kind": ("Kind", "What was run or kept: only runs of this kind are listed."),
    "verdict": ("Verdict", "How a run ended by its own gate; partial: nothing wrong in the part that ran."),
    "machine": ("Machine", "The accelerator, else the processor, that a run was made on."),
    "model": ("Model", "The model that the settings of a run name."),
    "label": ("Label", "A word that somebody gave to runs; a sweep gives its own to each of its runs."),
}
# Where the choice of a label lies, for who narrows the list from outside.
LABEL_KEY = "runs.label"
_PAGES = {"benchmark": "pages/benchmark.py", "campaign": "pages/fault_lab.py"}
_UNDO, _PROBLEM = "runs_deleted", "runs_problem"
_CONFIG = {"displayModeBar": False}


def any_stored() -> bool:
    """Whether there is a run to list, kept or deleted; where there is none, the page says how to get one."""
    store = services.runs()
    if store.list(limit=1) or store.list(limit=1, deleted=True) or store.damaged():
        return True
    st.info("No run is stored yet. Benchmarks and campaigns are kept by themselves.")
    st.page_link("pages/benchmark.py", label="Run a benchmark", icon=":material/speed:")
    return False


def filters() -> Filters:
    """What the list is narrowed to."""
    choices = services.runs().choices()
    chosen = Filters()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        for name, (label, help_text) in _CHOICES.items():
            options = choices[name]
            key = f"runs.{name}"
            if st.session_state.get(key) not in (None, *options):
                st.session_state[key] = None
            chosen[name] = st.selectbox(
                label, options, index=None, key=key, placeholder="any", disabled=not options, persist_state="session", width=124,
                help=help_text,
            )  # fmt: skip
        chosen["text"] = st.text_input(
            "Search", key="runs.text", placeholder="id, note, sentence", persist_state="session", width=160,
            help="Keeps runs that have all these words in their id, sentence, note, model or machine; large and small letters are the same.",
        )  # fmt: skip
        chosen["deleted"] = st.toggle(
            "Deleted", key="runs.deleted", persist_state="session", help="Runs that were deleted in the last day and can be restored."
        )
    return chosen


def table(wanted: Filters) -> None:
    """The list, newest first; selecting rows writes them into the address. Above it how many fit, and what the store takes."""
    store = services.runs()
    count, use = store.count(**wanted), store.disk_use()
    pages = max(1, -(-count // PAGE_ROWS))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        fit = "1 run fits" if count == 1 else f"{format_count(count)} runs fit"
        style.caption(
            f"{fit}. All runs take {format_bytes(use.runs_bytes)}, deleted ones {format_bytes(use.deleted_bytes)}, "
            f"the database {format_bytes(use.database_bytes)}; {format_bytes(use.free_bytes)} are free."
        )
        page = 1
        if pages > 1:
            page = st.number_input(
                "Page", 1, pages, key=f"runs.page.{pages}", width=120, help=f"The list shows {PAGE_ROWS} runs at a time, newest first."
            )
    _undo()
    for problem in store.damaged():
        style.remark(problem, "warning")
    rows = store.list(limit=PAGE_ROWS, offset=(page - 1) * PAGE_ROWS, **wanted)
    if not rows:
        st.info("No run fits these filters." if any(wanted.values()) else "Every run is deleted; see Deleted.")
        return
    ids = [row.id for row in rows]
    # Rows of another list must not inherit a selection by their place.
    key = f"runs.table.{hash(tuple(ids))}"
    named = st.query_params.get("run", "").split(",")
    # The selection begins with what a link names; after that the table and the address go together.
    begun = st.session_state.setdefault(f"{key}.begun", [index for index, run_id in enumerate(ids) if run_id in named])
    st.dataframe(
        _columns(rows), key=key, hide_index=True, height=min(420, 38 + 35 * len(rows)), selection_mode="multi-row",
        selection_default={"selection": {"rows": begun}}, on_select=lambda: _select(key, ids), column_config=_COLUMNS,
        alt="Stored runs; select a row (Shift+Space) to open one, two or more to compare them.",
    )  # fmt: skip


_COLUMNS = {
    "made": st.column_config.DatetimeColumn("made (UTC)", format="YYYY-MM-DD HH:mm", width=130),
    "sentence": st.column_config.TextColumn("sentence", width=330),
    "size": st.column_config.NumberColumn("size", format="%.3f MiB"),
    "run": st.column_config.TextColumn("run", width=270),
}


def _columns(rows: Sequence[RunRow]) -> dict[str, list[Any]]:
    return {
        "made": [datetime.fromtimestamp(row.created_s, UTC) for row in rows],
        "kind": [row.kind for row in rows],
        "verdict": [row.verdict.value if not row.state.active else row.state.value for row in rows],
        "sentence": [row.sentence for row in rows],
        "model": [row.model for row in rows],
        "labels": [list(row.labels) for row in rows],
        "note": [row.note for row in rows],
        "machine": [row.machine for row in rows],
        "size": [row.size_bytes / MIB for row in rows],
        **({"by": [_by(row) for row in rows]} if access.login() else {}),
        "run": [row.id for row in rows],
    }


def _by(row: RunRow) -> str:
    return f"{access.name_of(row.owner)}{' (private)' if row.private else ''}" if row.owner else ""


def _select(key: str, ids: Sequence[str]) -> None:
    chosen = [ids[index] for index in st.session_state[key]["selection"]["rows"]]
    if chosen:
        # Oldest first: what came before is what the others are compared with.
        st.query_params["run"] = ",".join(sorted(chosen))
    else:
        st.query_params.pop("run", None)


def _undo() -> None:
    """What was deleted last, with the way back; and what did not work."""
    if problem := st.session_state.pop(_PROBLEM, ""):
        style.remark(problem, "error")
    gone: list[str] = st.session_state.get(_UNDO, [])
    if gone:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            what = f"run {gone[0]}" if len(gone) == 1 else f"{len(gone)} runs"
            style.caption(f"Deleted {what}; it can be restored for a day under Deleted.")
            st.button("Undo", key="runs.undo", on_click=_restore, args=(gone,), icon=":material/undo:")


def _try(change: Any, run_ids: Sequence[str]) -> list[str]:
    """Do it for each run; the first that does not work is told, those before it are done."""
    done = []
    for run_id in run_ids:
        try:
            change(run_id)
        except KvCanaryError as error:
            st.session_state[_PROBLEM] = str(error)
            break
        done.append(run_id)
    return done


def _delete(run_ids: Sequence[str]) -> None:
    st.session_state[_UNDO] = _try(services.delete, run_ids)
    st.query_params.pop("run", None)


def _restore(run_ids: Sequence[str]) -> None:
    _try(services.restore, run_ids)
    st.session_state.pop(_UNDO, None)


def opened() -> None:
    """The runs that the address names: one is shown, two or more are compared."""
    run_ids = [part for part in st.query_params.get("run", "").split(",") if part]
    if not run_ids:
        style.caption(
            f"Select a row (Shift+Space) to open a run, or two to {RUN_LIMIT} to compare them; the oldest is what the others are compared with."
        )
        return
    try:
        if len(run_ids) == 1:
            _one(run_ids[0])
        else:
            _several(run_ids)
    except KvCanaryError as error:
        # Where the store lies is nothing for a reader of the page.
        said, unknown, _ = str(error).partition(" in store ")
        style.verdict(f"There is {said}; choose from the table above." if unknown else said, "error")


def _one(run_id: str) -> None:
    store = services.runs()
    row, record = store.row(run_id), store.record(run_id)
    st.subheader(
        f"{markdown_text(record.kind.capitalize())} of {datetime.fromtimestamp(record.created_s, UTC):%Y-%m-%d %H:%M} UTC", anchor=False
    )
    style.verdict(record.sentence or f"{record.state.value.capitalize()}. {record.error}", VERDICT_KINDS[record.verdict])
    if record.state.active:
        progress.panel(run_id)
        return
    _made_by(row)
    _actions(row, record)
    _annotations(row)
    for number, section in enumerate(run_sections(store, run_id)):
        draw_section(section, f"{run_id}.{number}")


def _made_by(row: RunRow) -> None:
    """Whose the run is, and for them whether others see it; nothing where nobody logs in."""
    if not row.owner:
        return
    key = f"runs.private.{row.id}"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        style.caption(f"By {access.name_of(row.owner)}")
        if access.user().may_change(row.owner):
            # As it is stored: another tab may have changed it, and a change may have failed.
            st.session_state[key] = row.private
            st.toggle(
                "Private", key=key, on_change=_hide, args=(row.id, key),
                help="Only you and administrators see a private run, in no list and under no link.",
            )  # fmt: skip


def _hide(run_id: str, key: str) -> None:
    _try(lambda name: services.set_private(name, st.session_state[key]), [run_id])


def _actions(row: RunRow, record: RunRecord) -> None:
    store, run_id, mine = services.runs(), row.id, access.user().may_change(row.owner)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.download_button(
            "Report", lambda: run_report(store, run_id), f"{run_id}.html", "text/html", key="runs.report", on_click="ignore",
            type="primary", help="One HTML file with everything below; it opens without a network and prints.",
        )  # fmt: skip
        if record.kind in _PAGES:
            st.page_link(_PAGES[record.kind], label="Open on its page", query_params={"run": run_id})
        settings = record.spec.get("settings")
        if isinstance(settings, dict):
            parameters = {name: text for name, value in settings.items() if (text := _field_text(name, value)) != _default_text(name)}
            st.page_link("pages/plan.py", label="Clone into Plan", query_params=parameters)
        st.download_button(
            "JSON", lambda: export_json(store, run_id), f"{run_id}.json", "application/json", key="runs.json", on_click="ignore"
        )
        if record.kind in _PAGES:
            st.download_button("CSV", lambda: export_csv(store, run_id), f"{run_id}.csv", "text/csv", key="runs.csv", on_click="ignore")
            st.download_button(
                "Parquet", lambda: export_parquet(store, run_id), f"{run_id}.parquet", "application/vnd.apache.parquet",
                key="runs.parquet", on_click="ignore",
            )  # fmt: skip
        if row.deleted_s is None:
            st.button("Delete", key="runs.delete", on_click=_delete, args=([run_id],), icon=":material/delete:", disabled=not mine)
        else:
            st.button("Restore", key="runs.restore", on_click=_restore, args=([run_id],), icon=":material/undo:", disabled=not mine)


def _field_text(name: str, value: Any) -> str:
    return format_field(name, value) if name in FIELDS and not isinstance(value, str) else str(value)


def _default_text(name: str) -> str | None:
    return format_field(name, FIELDS[name].default) if name in FIELDS else None


def _annotations(row: RunRow) -> None:
    store, note_key, label_key = services.runs(), f"runs.note.{row.id}", f"runs.labels.{row.id}"

    def write_note() -> None:
        _try(lambda run_id: store.set_note(run_id, st.session_state[note_key]), [row.id])

    def write_labels() -> None:
        wanted, held = set(st.session_state[label_key]), set(store.row(row.id).labels)
        for name in sorted(wanted - held):
            _try(lambda run_id, name=name: store.add_label(run_id, name), [row.id])
        for name in sorted(held - wanted):
            _try(lambda run_id, name=name: store.remove_label(run_id, name), [row.id])

    # Given through the session: a default that follows what was written would make the widget a new one in the middle of an edit.
    st.session_state.setdefault(note_key, row.note)
    st.session_state.setdefault(label_key, list(row.labels))
    left, right = st.columns(2, gap="medium")
    with left:
        st.text_input(
            "Note", key=note_key, on_change=write_note, placeholder="what this run was for",
            help="Kept with the run as soon as you leave the field; Search finds its words.",
        )  # fmt: skip
    with right:
        options = sorted({*store.choices()["label"], *row.labels})
        st.multiselect(
            "Labels", options, key=label_key, on_change=write_labels, accept_new_options=True,
            placeholder="choose or type one", help="Words that put runs together: the list above can be narrowed to one of them.",
        )  # fmt: skip


def _several(run_ids: Sequence[str]) -> None:
    store = services.runs()
    sections = compare_sections(store, run_ids)
    st.subheader(f"{len(run_ids)} runs compared", anchor=False)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        name = "compare-" + "-".join(run_id.rpartition("-")[2] for run_id in run_ids)
        st.download_button(
            "Report", lambda: compare_report(store, run_ids), f"{name}.html", "text/html", key="runs.report", on_click="ignore",
            type="primary", help="One HTML file with everything below; it opens without a network and prints.",
        )  # fmt: skip
        st.button(f"Delete {len(run_ids)} runs", key="runs.delete", on_click=_delete, args=(list(run_ids),), icon=":material/delete:")
    for number, section in enumerate(sections):
        draw_section(section, f"{name}.{number}")


def draw_section(section: Section, key: str) -> None:
    """A section as the report has it: heading, sentence, pictures with their words, tables, lines to copy."""
    st.subheader(markdown_text(section.heading), anchor=False)
    if section.sentence:
        style.caption(section.sentence)
    pictures = section.pictures
    places = st.columns(2, gap="medium") if section.beside and len(pictures) > 1 else [st.container()]
    for number, picture in enumerate(pictures):
        with places[number % len(places)]:
            st.plotly_chart(picture.draw(state.theme()), key=f"{key}.{number}", config=_CONFIG, alt=picture.alt)
            if picture.key is not None:
                st.html(f'<div class="kvc-key">{blocks.key(picture.key(state.theme()))}</div>')
            style.caption(picture.alt)
    for table in section.tables:
        blocks.table(table.head, table.rows, numeric=table.numeric)
        if table.caption:
            style.caption(table.caption)
    if section.code:
        st.code(section.code, language="shell", wrap_lines=True)
