"""What leaves the Inspect page: CSV of the rows, JSON of the diagnosis, and text for a public issue."""

from __future__ import annotations

import json

import pandas as pd

from kvcanary.analysis.canary_log import CanaryLog
from kvcanary.analysis.diagnosis import Diagnosis
from kvcanary.analysis.inspection import counts, report_data
from kvcanary.escape import code_text, csv_text, markdown_text
from kvcanary.units import format_count

JSON_LIMIT = 10_000
_GROUP_LIMIT = 20
_INSTALL = ("mode", "real_kv_hash_mode", "sweep_interval", "ring_capacity")


def csv(frame: pd.DataFrame) -> str:
    """Every row; hashes as '0x' and 16 digits, because spreadsheets lose digits beyond 2^53.

    Text that a spreadsheet would take for a formula gets a leading quote: logs are written by others.
    """
    plain = frame.copy()
    for name in ("stored_chain_hash", "expected_aux"):
        plain[name] = [None if value is pd.NA else f"0x{value:016x}" for value in plain[name]]
    for name in ("file", "server", "source", "rank", "launch_tag", "place", "half", "group", "reasons"):
        plain[name] = plain[name].astype(str).map(csv_text)
    return plain.to_csv(index=False)


def json_text(log: CanaryLog, diagnosis: Diagnosis) -> str:
    """The document that `kvcanary inspect --json` writes."""
    return json.dumps(report_data(log, diagnosis, max_violations=JSON_LIMIT), indent=2) + "\n"


def issue_text(log: CanaryLog, diagnosis: Diagnosis) -> str:
    """Markdown for a public issue: verdict, cause, counts, settings; no tokens and no hashes, and nobody is mentioned by a log."""
    lines = ["### KV canary report", "", f"{diagnosis.verdict.upper()}: {markdown_text(diagnosis.sentence)}", ""]
    lines += [f"- {markdown_text(reason)}" for reason in diagnosis.coverage.reasons[:_GROUP_LIMIT]]
    for cause in diagnosis.causes[:3]:
        lines += ["", f"**{cause.text.title}** ({cause.confidence.name.lower()} confidence), {cause.slots} slots"]
    groups = counts(log.violations.frame())
    if groups:
        lines += ["", "| rank | launch tag | reasons | violations | slots |", "|---|---|---|---:|---:|"]
        for group in groups[:_GROUP_LIMIT]:
            words = " | ".join(code_text(group[name]) for name in ("rank", "launch_tag", "reasons"))
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
