"""The documents of the project say what is there: tests, pictures, files, commands and variables that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvcanary.cli import COMMANDS
from kvcanary.lab.sweep import KINDS, read_sweep

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "kvcanary").rglob("*.py"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_pictures_and_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_commands_and_variables_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"`((?:docs|examples|tests|tools|kvcanary)/[\w./-]+?)`", text) + re.findall(
        r"python ((?:tools|examples)/\w+\.py)", text
    )
    assert [name for name in named if not (ROOT / name).exists()] == []
    commands = set(re.findall(r"`kvcanary (\w+)", text))
    assert commands <= set(COMMANDS)
    variables = set(re.findall(r"\bKVCANARY_[A-Z_]+\b", text))
    assert {name for name in variables if name not in SOURCES} == set()


def test_every_fault_tried_is_a_test() -> None:
    rows = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "faults-tried.md").read_text(encoding="utf-8"))
    assert len(rows) > 20
    missing = [f"{path}::{name}" for path, name in rows if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")]
    assert missing == []


def test_every_sweep_file_that_is_shown_can_run() -> None:
    shown = re.findall(r"```yaml\n(.*?)```", "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS), re.DOTALL)
    sweeps = [read_sweep(text) for text in shown]
    assert {sweep.kind for sweep in sweeps} == set(KINDS)
    assert [point.problem for sweep in sweeps for point in sweep.points if point.problem] == []


def test_every_page_has_a_document_with_a_picture_of_both_themes() -> None:
    for page in (ROOT / "pages").glob("*.py"):
        name = {"inspect_log": "inspect", "fault_lab": "fault-lab"}.get(page.stem, page.stem)
        assert f"images/{name}-light.png" in (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        assert (ROOT / "docs" / "images" / f"{name}-dark.png").is_file()
