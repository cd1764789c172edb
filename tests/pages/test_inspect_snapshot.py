"""Snapshots on the Inspect page: verified offline, drawn with what is known of each slot, and their violation ring listed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from streamlit.testing.v1 import AppTest

from kvcanary.layout import LaunchTag
from tests.pages.test_inspect import captions, html, open_page
from tests.test_snapshot import Server


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVCANARY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KVCANARY_LOG_FOLDERS", str(tmp_path))
    return tmp_path


def opened(*names: str) -> AppTest:
    app = open_page(log="|".join(f"0/{name}" for name in names))
    for _ in range(100):
        if "Coverage" in captions(app) or "Not read" in html(app):
            break
        app.run()
    assert not app.exception
    return app


def test_damage_and_ring_are_listed_and_drawn(folder: Path) -> None:
    server = Server()
    server.rows[1][3] = 21
    ring = torch.zeros((4, 8), dtype=torch.int64)
    ring[0] = torch.tensor([int(LaunchTag.TAIL_K_FULL), 44, 3, 9, -1, 5, 5, 4])
    server.save(folder / "rank3.safetensors", violation_ring=ring, violation_write_index=torch.tensor([1]), labels={"rank": "TP3"})
    app = opened("rank3.safetensors")
    assert "Wrong mapping or slot reuse" in html(app)
    text = captions(app)
    assert "Pool size from the snapshot" in text
    assert "of 47 slots corrupted" in text
    assert "ring TP3" in str(app.multiselect(key="inspect_filter.rank").options)


def test_a_clean_snapshot_is_drawn_too(folder: Path) -> None:
    Server().save(folder / "clean.safetensors")
    app = opened("clean.safetensors")
    assert "Pass. No violation" in html(app)
    assert "0 of 47 slots corrupted" in captions(app)


def test_what_is_no_snapshot_is_named_by_its_own_name(folder: Path) -> None:
    (folder / "x.safetensors").write_bytes(b"no")
    assert "snapshot x.safetensors cannot be read" in html(opened("x.safetensors"))
    Server().save(folder / "clean.safetensors")
    (folder / "server.log").write_text("x\n")
    assert "cannot be mixed" in html(opened("clean.safetensors", "server.log"))


def test_inspect_again_says_what_is_wrong_with_the_file_that_stands_there() -> None:
    app = open_page()
    app.file_uploader(key="inspect_files").upload("cut.safetensors", b"no", "application/octet-stream").run()
    for _ in range(2):
        assert "Not read: snapshot cut.safetensors cannot be read" in html(app)
        app.button(key="inspect_go").click().run()
    assert "nothing to read" not in html(app)
    app.text_area(key="inspect_text").set_value("no line of a canary").run()
    app.button(key="inspect_go").click().run()
    assert "cut.safetensors" not in html(app), "what is pasted comes first"
