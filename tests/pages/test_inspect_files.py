"""Files of the server: only those in the operator's folders, by where they really lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvcanary.errors import ImportTextError
from kvcanary.ui import inspect_files
from kvcanary.ui.inspect_files import VARIABLE, allowed_folders, find, list_logs, open_inside


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, ...]:
    for name in ("one", "two", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "server.log").write_text(name)
    (tmp_path / "one" / "deep").mkdir()
    (tmp_path / "one" / "deep" / "rank.log.gz").write_text("x")
    (tmp_path / "one" / "notes.md").write_text("x")
    (tmp_path / "one" / "out.log").symlink_to(tmp_path / "elsewhere" / "server.log")
    (tmp_path / "one" / "way").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "one" / "in.log").symlink_to(tmp_path / "one" / "server.log")
    os.mkfifo(tmp_path / "one" / "pipe.log")
    value = os.pathsep.join(str(tmp_path / name) for name in ("one", "two", "absent"))
    return allowed_folders({VARIABLE: value})


def test_folders_come_from_the_setting_alone(folders: tuple[Path, ...]) -> None:
    assert [folder.name for folder in folders] == ["one", "two"]
    assert allowed_folders({}) == ()


def test_list_holds_what_may_be_read(folders: tuple[Path, ...]) -> None:
    assert sorted(file.name for file in list_logs(folders)) == ["0/deep/rank.log.gz", "0/in.log", "0/server.log", "1/server.log"]


@pytest.mark.parametrize(
    "name",
    [
        "0/out.log",
        "0/way/server.log",
        "0/../elsewhere/server.log",
        "2/server.log",
        "x",
        "0/absent.log",
        "/etc/hosts",
        "0/a\0b",
        "0/\ud800",
        "9" * 5000 + "/server.log",
        "\u0660/server.log",
        "0/",
        "0/.",
        "0/deep",
        "0/pipe.log",
        "0/" + "a" * 5000,
    ],
)
def test_everything_else_is_refused(folders: tuple[Path, ...], name: str) -> None:
    with pytest.raises(ImportTextError):
        find(folders, name)


def test_opening_looks_again(folders: tuple[Path, ...], tmp_path: Path) -> None:
    path = find(folders, "0/server.log")
    with open_inside(folders, path) as stream:
        assert stream.read() == b"one"
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere" / "server.log")
    with pytest.raises(PermissionError):
        open_inside(folders, path)
    with pytest.raises(PermissionError):
        open_inside(folders, tmp_path / "elsewhere" / "server.log")
    with pytest.raises(PermissionError, match="no regular file"):
        open_inside(folders, folders[0] / "pipe.log")


def test_a_link_put_there_after_the_look_is_not_followed(folders: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_files, "_inside", lambda folder, path: path)
    with pytest.raises(OSError, match="symbolic links"):
        open_inside(folders, folders[0] / "out.log")
