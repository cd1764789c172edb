"""What leaves the Inspect page: the rows as CSV, JSON and Parquet, the report, an entry in Runs, and text for a public issue."""

from __future__ import annotations

import io
import json
import re
from functools import partial

import numpy as np
import pandas as pd
import streamlit as st

from kvcanary.analysis.canary_log import CanaryLog
from kvcanary.analysis.diagnosis import Diagnosis
from kvcanary.analysis.inspection import counts, report_data
from kvcanary.errors import KvCanaryError
from kvcanary.escape import code_text, csv_text, markdown_text
from kvcanary.lab.records import Verdict
from kvcanary.ui import access, inspect_report, services, style
from kvcanary.ui import inspect_address as address
from kvcanary.ui.inspect_reading import Loaded
from kvcanary.units import format_count

JSON_LIMIT = 10_000
_GROUP_LIMIT = 20
_INSTALL = ("mode", "real_kv_hash_mode", "sweep_interval", "ring_capacity")
_TEXTS = ("file", "server", "source", "rank", "launch_tag", "place", "half", "group", "reasons")
REDACTIONS = {
    "names": "Names of logs, services, pods and ranks",
    "slots": "Slot numbers and pool sizes",
    "times": "Times and steps",
}
_NAMED_NUMBER = re.compile(r"\b(slots?|step|steps)((?: \d[\d\u202f]*(?:,| and| to)?)+)")
_KEPT = "inspect_kept"


def every_row(found: Loaded) -> None:
    """All violations that the filters keep, loaded as they are scrolled to."""
    if found.inspected.cross.count and st.toggle(
        "Show every row as a table", key="inspect_every_row", persist_state="session",
        help="The violations that the filters keep, in the order of the log, loaded while you scroll.",
    ):  # fmt: skip
        rows = _rows(found)
        st.dataframe(
            rows.drop(columns=["place", "half", "group"]), hide_index=True, height=420, lazy=True, alt="Every violation, in order."
        )
        style.caption(f"{format_count(len(rows))} rows.")


def draw(found: Loaded) -> None:
    """Downloads of what is shown, and of the whole inspection."""
    log, diagnosis = found.inspected.log, found.inspected.diagnosis
    with st.container(horizontal=True, gap="small"):
        st.download_button("CSV", lambda: csv(_rows(found)), "violations.csv", "text/csv", on_click="ignore", help="The filtered rows.")
        st.download_button(
            "Parquet", lambda: parquet(_rows(found)), "violations.parquet", "application/vnd.apache.parquet", on_click="ignore",
            help="The filtered rows, with their types; hashes as unsigned 64-bit numbers.",
        )  # fmt: skip
        st.download_button(
            "JSON", lambda: json_text(log, diagnosis), "inspect.json", "application/json", on_click="ignore",
            help=f"The whole diagnosis, with the first {format_count(JSON_LIMIT)} violations.",
        )  # fmt: skip
        st.download_button(
            "HTML report", lambda: inspect_report.html(found.inspected, found.label), "inspect.html", "text/html", on_click="ignore",
            help="One file with every picture, to hand on; it needs no network.",
        )  # fmt: skip
        st.button("Keep in Runs", key="inspect_keep", on_click=_keep, args=(found,), help="Stores the diagnosis, not the log.")
    if said := st.session_state.pop(_KEPT, ""):
        style.caption(said)
    with st.expander("Text for a GitHub issue"):
        hidden = st.pills(
            "Leave out", list(REDACTIONS), selection_mode="multi", default=["names"], format_func=REDACTIONS.__getitem__,
            key="inspect_redact", persist_state="session", help="What is replaced by … in the text below before it leaves your hands.",
        )  # fmt: skip
        style.caption("Tokens and hashes are never in it. Read it before you post it.")
        st.code(issue_text(log, diagnosis, hidden), language="markdown", wrap_lines=True)


def _rows(found: Loaded) -> pd.DataFrame:
    """The violations that the filters keep."""
    cross = found.inspected.cross
    return found.inspected.log.violations.frame().iloc[np.flatnonzero(cross.mask(address.filters()))]


def _keep(found: Loaded) -> None:
    log, diagnosis = found.inspected.log, found.inspected.diagnosis
    document = report_data(log, diagnosis)
    try:
        run = services.runs().save_inspection(
            found.label, verdict=Verdict(diagnosis.verdict), sentence=diagnosis.sentence, document=document, owner=access.user().owner
        )  # fmt: skip
    except KvCanaryError as error:
        st.session_state[_KEPT] = f"Not kept: {error}"
    else:
        st.session_state[_KEPT] = f"Kept in Runs as {run}.{access.kept_to()}"


def csv(frame: pd.DataFrame) -> str:
    """Every row; hashes as '0x' and 16 digits, because spreadsheets lose digits beyond 2^53.

    Text that a spreadsheet would take for a formula gets a leading quote: logs are written by others.
    """
    plain = frame.copy()
    for name in ("stored_chain_hash", "expected_aux"):
        plain[name] = [None if value is pd.NA else f"0x{value:016x}" for value in plain[name]]
    for name in _TEXTS:
        plain[name] = plain[name].astype(str).map(csv_text)
    return plain.to_csv(index=False)


def parquet(frame: pd.DataFrame) -> bytes:
    """Every row with its types."""
    target = io.BytesIO()
    frame.to_parquet(target, index=False, compression="zstd")
    return target.getvalue()


def json_text(log: CanaryLog, diagnosis: Diagnosis) -> str:
    """The document that `kvcanary inspect --json` writes."""
    return json.dumps(report_data(log, diagnosis, max_violations=JSON_LIMIT), indent=2) + "\n"


def issue_text(log: CanaryLog, diagnosis: Diagnosis, hidden: list[str] | tuple[str, ...] = ()) -> str:
    """Markdown for a public issue: verdict, cause, counts, settings; no tokens and no hashes, and nobody is mentioned by a log.

    hidden: keys of REDACTIONS whose details are replaced by '…'.
    """
    redact = _Redaction(log, hidden)
    lines = ["### KV canary report", "", f"{diagnosis.verdict.upper()}: {markdown_text(redact.text(diagnosis.sentence))}", ""]
    lines += [f"- {markdown_text(redact.text(reason))}" for reason in diagnosis.coverage.reasons[:_GROUP_LIMIT]]
    for cause in diagnosis.causes[:3]:
        lines += ["", f"**{cause.text.title}** ({cause.confidence.name.lower()} confidence), {cause.slots} slots"]
    groups = counts(log.violations)
    if groups:
        lines += ["", "| rank | launch tag | reasons | violations | slots |", "|---|---|---|---:|---:|"]
        for group in groups[:_GROUP_LIMIT]:
            words = " | ".join(code_text(redact.text(group[name])) for name in ("rank", "launch_tag", "reasons"))
            lines.append(f"| {words} | {group['violations']} | {group['slots']} |")
        if len(groups) > _GROUP_LIMIT:
            lines.append(f"\n{format_count(len(groups) - _GROUP_LIMIT)} more groups.")
    install = next((report.install for report in log.streams if report.install), None)
    settings = (
        ", ".join(f"{name}={markdown_text(str(install[name]))}" for name in _INSTALL if name in install)
        if install
        else "no install line in the log"
    )
    return "\n".join([*lines, "", f"Canary settings: {settings}", ""])


class _Redaction:
    """Replaces what is not to be public; longer names first, so that none survives as a part of another."""

    def __init__(self, log: CanaryLog, hidden: list[str] | tuple[str, ...]) -> None:
        self._hidden = hidden
        names = {name for report in log.streams for name in (report.stream.server, report.stream.source, report.stream.rank)}
        names |= set(log.files)
        ordered = sorted((name for name in names if name and name != "(none)"), key=len, reverse=True)
        self._names = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in ordered)) if ordered else None

    def text(self, text: str) -> str:
        """The text without what is hidden."""
        if "names" in self._hidden and self._names is not None:
            text = self._names.sub("…", text)
        words = (("slots", "slot"), ("times", "step"))
        for key, word in words:
            if key in self._hidden:
                text = _NAMED_NUMBER.sub(partial(_without_number, word), text)
        return text


def _without_number(word: str, found: re.Match[str]) -> str:
    """The match without its numbers when it is about the word."""
    return f"{found[1]} …" if found[1].startswith(word) else found[0]
