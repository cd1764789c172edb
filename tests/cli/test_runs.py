"""`kvcanary runs`: list, show, annotate, delete, restore, export, retain."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from kvcanary.cli import app
from kvcanary.cli.runs_table import read_age
from kvcanary.errors import ConfigError
from kvcanary.lab.records import Verdict
from tests.stored_runs import points, store_run


def invoke(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["runs", *arguments, "--home", str(home)])


def listed(home: Path, *arguments: str) -> list[str]:
    result = invoke(home, "list", *arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    return [row["id"] for row in json.loads(result.stdout)["runs"]]


def test_the_list_is_filtered_and_cut(tmp_path: Path) -> None:
    first, second = store_run(tmp_path, 1, measured=points()), store_run(tmp_path, 2, verdict=Verdict.FAIL)
    third = store_run(tmp_path, 3, kind="plan")
    assert listed(tmp_path) == [third, second, first]
    assert listed(tmp_path, "--kind", "benchmark", "--verdict", "fail") == [second]
    assert listed(tmp_path, "--model", "small-model", "--order", "oldest", "--limit", "1") == [first]
    assert listed(tmp_path, "--newer-than", "1h") == []
    assert invoke(tmp_path, "list", "--limit", "2").output.splitlines()[-1] == "2 of 3 runs; --limit shows more."
    assert invoke(tmp_path, "list", "--kind", "campaign").output == "No run fits.\n"


def test_a_note_that_is_cut_says_so(tmp_path: Path) -> None:
    store_run(tmp_path, 1)
    for note, shown in (("n" * 40, "n" * 40), ("n" * 41, "n" * 39 + "…"), ("first line\nsecond", "first line second")):
        assert invoke(tmp_path, "note", "latest", note).exit_code == 0
        assert f" {shown} " in invoke(tmp_path, "list").output


def test_dates_are_utc_everywhere_up_to_the_last_one_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store_run(tmp_path, 1, created_s=datetime(9999, 12, 31, 23, 59, tzinfo=UTC).timestamp())
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert listed(tmp_path) == [run]
        assert "9999-12-31 23:59" in invoke(tmp_path, "list").output
        assert read_age("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC).timestamp() == read_age("2026-01-31T01:00+01:00")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    assert invoke(tmp_path, "list").output == "No run is stored yet.\n"


def test_notes_and_labels_are_kept_found_and_taken_away(tmp_path: Path) -> None:
    run, _ = store_run(tmp_path, 1), store_run(tmp_path, 2)
    assert invoke(tmp_path, "note", run, "before the driver update").exit_code == 0
    assert invoke(tmp_path, "label", run, "nightly", "h100").exit_code == 0
    assert listed(tmp_path, "--label", "nightly") == [run]
    assert listed(tmp_path, "--text", "DRIVER") == [run]
    shown = json.loads(invoke(tmp_path, "show", run, "--json", "-").stdout)
    assert (shown["note"], shown["labels"]) == ("before the driver update", ["h100", "nightly"])
    assert invoke(tmp_path, "label", run, "nightly", "--remove").exit_code == 0
    assert listed(tmp_path, "--label", "nightly") == []


def test_a_deleted_run_is_gone_and_comes_back(tmp_path: Path) -> None:
    run, other = store_run(tmp_path, 1), store_run(tmp_path, 2)
    assert invoke(tmp_path, "delete", "00000001").output == f"deleted {run}\n"
    assert listed(tmp_path) == [other]
    assert listed(tmp_path, "--deleted") == [run]
    assert invoke(tmp_path, "restore", run).exit_code == 0
    assert listed(tmp_path) == [other, run]


def test_a_wrong_name_among_several_changes_nothing(tmp_path: Path) -> None:
    run = store_run(tmp_path, 1)
    result = invoke(tmp_path, "delete", run, "ffff")
    assert result.exit_code == 2
    assert "no run 'ffff'" in result.output
    assert listed(tmp_path) == [run]


def test_show_prints_every_section_and_ends_with_the_verdict(tmp_path: Path) -> None:
    run = store_run(tmp_path, 1, measured=points(), map_slots=4096, verdict=Verdict.FAIL, sentence="Fail: [bold]one[/] slot.\x1b[31m")
    result = invoke(tmp_path, "show", run)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == "Fail: [bold]one[/] slot.\\x1b[31m"
    headings = ["Throughput", "Slot map", "Outcome", "Settings", "Coverage", "Machine and versions"]
    assert [line for line in lines if line in headings] == headings


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("plan", ("3 * pool_slot_count 4\u202f096 = 12\u202f288", "needed; not known: ", "  --max-total-tokens 4096")),
        (
            "inspection",
            ("2 violations by time, from 2027-02-03 04:05:06 on", "2 of 9\u202f812 slots reported"),
        ),
    ],
)
def test_show_says_figures_in_words_and_has_the_command(tmp_path: Path, kind: str, words: tuple[str, ...]) -> None:
    run = store_run(tmp_path, 1, kind=kind)
    shown = invoke(tmp_path, "show", run).output
    assert [word for word in words if word not in shown] == []


def test_exports_hold_what_was_measured(tmp_path: Path) -> None:
    run = store_run(tmp_path, 1, measured=points())
    document = json.loads(invoke(tmp_path, "export", run).stdout)
    assert len(document["points"]) == 3
    assert len(document["points"][0]["stamp"]["samples_s"]) == 40
    rows = list(csv.DictReader(io.StringIO(invoke(tmp_path, "export", run, "--format", "csv").stdout)))
    assert [(row["batch"], row["op"]) for row in rows[:3]] == [("1", "stamp"), ("1", "verify"), ("4", "stamp")]
    assert float(rows[0]["p50_s"]) == document["points"][0]["stamp"]["p50_s"]
    assert invoke(tmp_path, "export", run, "--format", "parquet", "--out", str(tmp_path / "run.parquet")).exit_code == 0
    assert pq.read_table(tmp_path / "run.parquet").column("p50_s")[0].as_py() == document["points"][0]["stamp"]["p50_s"]


@pytest.mark.parametrize(
    ("kind", "part"),
    [("benchmark", "Nothing was measured in this run."), ("plan", "Launch capacities"), ("inspection", "Slot map of the full pool")],
)
def test_the_report_works_with_one_run_without_measurements(tmp_path: Path, kind: str, part: str) -> None:
    run = store_run(tmp_path, 1, kind=kind, sentence="<b>Pass</b>", coverage={}, machine={}, versions={}, backend={}, spec={})
    assert invoke(tmp_path, "export", run, "--format", "html", "--out", str(tmp_path / "r.html")).exit_code == 0
    text = (tmp_path / "r.html").read_text()
    assert "&lt;b&gt;Pass&lt;/b&gt;" in text
    assert part in text


def test_an_exported_run_is_taken_in_elsewhere_once(tmp_path: Path) -> None:
    run = store_run(tmp_path / "here", 1, measured=points())
    assert invoke(tmp_path / "here", "note", run, "handed over").exit_code == 0
    file = tmp_path / "run.json"
    assert invoke(tmp_path / "here", "export", run, "--out", str(file)).exit_code == 0
    assert invoke(tmp_path / "there", "import", str(file)).output == f"took in {run}\n"
    assert invoke(tmp_path / "there", "export", run).stdout == file.read_text(encoding="utf-8")
    again = invoke(tmp_path / "there", "import", str(file))
    assert again.exit_code == 2
    assert "is in the store already" in again.stderr
    file.write_bytes(b"\xff\x00")
    assert invoke(tmp_path / "there", "import", str(file)).exit_code == 2
    assert "No such file" in invoke(tmp_path / "there", "import", str(tmp_path / "none")).stderr


def test_a_plan_has_no_table(tmp_path: Path) -> None:
    result = invoke(tmp_path, "export", store_run(tmp_path, 1, kind="plan"), "--format", "csv")
    assert result.exit_code == 2
    assert "is a plan and has no table of measurements; export it as json or html" in result.output


def test_retention_deletes_nothing_unasked_and_what_it_says(tmp_path: Path) -> None:
    runs = [store_run(tmp_path, number) for number in range(5)]
    invoke(tmp_path, "note", runs[0], "keep me")
    result = invoke(tmp_path, "retain")
    assert (result.exit_code, "--newer-than 30d); without one nothing is deleted" in result.output) == (2, True)
    dry = invoke(tmp_path, "retain", "--keep-last", "2", "--dry-run")
    assert re.match(r"2 runs \([0-9.]+ KiB\) would be deleted\.\n", dry.output)
    assert len(listed(tmp_path)) == 5
    assert re.match(r"2 runs \(.*\) were deleted\.\n", invoke(tmp_path, "retain", "--keep-last", "2").output)
    assert listed(tmp_path) == [runs[4], runs[3], runs[0]]


def test_a_long_list_of_what_goes_is_cut(tmp_path: Path) -> None:
    for number in range(53):
        store_run(tmp_path, number, kind="plan")
    lines = invoke(tmp_path, "retain", "--keep-last", "1", "--dry-run").output.splitlines()
    assert (lines[0].partition(" (")[0], len(lines), lines[-1]) == ("52 runs", 53, "The newest 50 of them.")


def test_purge_removes_what_was_deleted_and_only_when_told(tmp_path: Path) -> None:
    kept, gone = store_run(tmp_path, 1), store_run(tmp_path, 2, measured=points())
    assert invoke(tmp_path, "purge").output == "0 runs (0 B) were removed for good.\n"
    invoke(tmp_path, "delete", gone)
    asked = invoke(tmp_path, "purge")
    assert asked.exit_code == 2
    assert "would be removed for good, so nothing was done; --yes removes them, --dry-run lists them" in asked.output
    dry = invoke(tmp_path, "purge", "--dry-run", "--yes")
    assert (dry.exit_code, dry.output.startswith("1 run ("), gone in dry.output) == (0, True, True)
    for wish in ("--yes", "--dry-run"):
        younger = invoke(tmp_path, "purge", "--older-than", "1h", wish)
        assert (younger.exit_code, younger.output.startswith("0 runs")) == (0, True)
    assert listed(tmp_path, "--deleted") == [gone]
    done = invoke(tmp_path, "purge", "--yes")
    assert (done.exit_code, gone in done.output) == (0, True)
    assert (listed(tmp_path, "--deleted"), listed(tmp_path)) == ([], [kept])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [kept]


def test_purge_says_what_could_not_be_removed_and_what_lies_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCANARY_DATABASE_URL", f"sqlite:///{tmp_path / 'shared.sqlite3'}")
    here, there = store_run(tmp_path / "here", 1), store_run(tmp_path / "there", 2)
    invoke(tmp_path / "here", "delete", here)
    invoke(tmp_path / "there", "delete", there)

    def full(_path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", full)
        result = invoke(tmp_path / "here", "purge", "--yes")
    assert result.exit_code == 3
    assert "0 runs (0 B) were removed for good." in result.output
    assert "1 more were deleted in other data folders" in result.output
    assert f"run {here} cannot be deleted" in result.output
    assert listed(tmp_path / "here", "--deleted") == [there, here]


def test_usage_names_the_kinds(tmp_path: Path) -> None:
    store_run(tmp_path, 1, measured=points())
    output = invoke(tmp_path, "usage").output
    assert "  benchmark: " in output
    assert "  free: " in output
    document = json.loads(invoke(tmp_path, "usage", "--json", "-").output)
    assert (document["schema"], document["version"], list(document["by_kind"])) == ("kvcanary.disk_use", 1, ["benchmark"])
    assert min(document["by_kind"]["benchmark"], document["database_bytes"], document["free_bytes"]) > 0 == document["deleted_bytes"]


def test_an_age_is_a_time_before_now_or_a_date() -> None:
    assert read_age("2h") - read_age("1d") == pytest.approx(22 * 3600, abs=5)
    assert read_age("2026-02-01") - read_age("2026-01-31") == 86_400
    for text in ("soon", "7", "7 years", "", "2026-13-01"):
        with pytest.raises(ConfigError, match="an age must look like 30min"):
            read_age(text)
