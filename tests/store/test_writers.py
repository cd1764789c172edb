"""Several processes change one store at once: two dashboards and commands lose nothing of each other's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.store.conftest import OpenStore
from tests.store.making import run_folder

WRITERS, CHANGES = 4, 8

CHANGE = """
import sys
from pathlib import Path
from kvcanary.lab.records import Verdict
from kvcanary.store.database import Store

url, home, name, shared, changes = sys.argv[1:]
store = Store.open(url, Path(home))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(changes)):
    store.add_label(shared, f"{name} {number}")
    own = store.save_plan({"model": name}, verdict=Verdict.PASS, sentence=f"{number}", document={"number": number})
    store.set_note(own, f"{name} {number}")
    doomed = store.save_inspection(name, verdict=Verdict.FAIL, sentence="", document={})
    store.delete(doomed)
    store.remove_label(shared, "everybody takes this away")
    store.purge(after_s=0)
    assert store.count(model=name) == number + 1
"""


def test_processes_that_write_at_once_lose_nothing(database_url: str, open_store: OpenStore, tmp_path: Path) -> None:
    """Two of them share a data folder, as two dashboards and a command do; the others have their own, as hosts do."""
    shared = run_folder(tmp_path / "home0", 1).path.name
    store = open_store("home0")
    store.add_label(shared, "everybody takes this away")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CHANGE, database_url, str(tmp_path / f"home{max(0, writer - 1)}"), f"w{writer}", shared, str(CHANGES)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for writer in range(WRITERS)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert set(store.row(shared).labels) == {f"w{writer} {number}" for writer in range(WRITERS) for number in range(CHANGES)}
    for writer in range(WRITERS):
        rows = store.list(model=f"w{writer}", order="oldest")
        assert [row.note for row in rows] == [f"w{writer} {number}" for number in range(CHANGES)]
    assert store.count(kind="inspection") == 0
    assert store.damaged() == []
