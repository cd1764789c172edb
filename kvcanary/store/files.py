"""Where the files of runs lie: in the data folder that they were made in, and, where one is named, in a folder or URL that others reach too."""

from __future__ import annotations

import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import fsspec

from kvcanary.errors import StoreError
from kvcanary.lab.lifecycle import RUNS_FOLDER
from kvcanary.lab.records import RunFolder

CACHE_FOLDER = "cache"
_NAME_LIMIT = 200
# What a finished run is read from; the rest of its folder is about how it ran.
FILES = (
    "run.json",
    "points.jsonl",
    "points.parquet",
    "slots.parquet",
    "cards.json",
    "campaign.jsonl",
    "campaign.parquet",
    "result.json",
    "worker.log",
)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Finds the folder of a run; `shared_url` is a folder or an fsspec URL that finished runs are copied to, empty for none."""

    root: Path
    shared_url: str = ""

    def own(self, run_id: str) -> RunFolder | None:
        """The folder in this data folder, None when it is not there."""
        path = self.root / RUNS_FOLDER / run_id
        return RunFolder(path) if _is_name(run_id) and (path / "run.json").is_file() else None

    def folder(self, run_id: str, files_url: str = "") -> RunFolder:
        """A folder that can be read, fetched once from the shared place when it is not this data folder's. StoreError when there is none."""
        if (own := self.own(run_id)) is not None:
            return own
        if not _is_name(run_id) or not files_url:
            raise StoreError(f"no run {run_id[:60]!r} under {self.root / RUNS_FOLDER}")
        cached = self.root / CACHE_FOLDER / run_id
        if not cached.is_dir():
            self._fetch(files_url, cached)
        return RunFolder(cached)

    def publish(self, folder: RunFolder) -> str:
        """Copy the files of a finished run to the shared place and return their URL. run.json comes last, so that half a copy is none."""
        url = f"{self.shared_url.rstrip('/')}/{folder.path.name}"
        try:
            system, path = fsspec.core.url_to_fs(url)
            system.makedirs(path, exist_ok=True)
            for name in sorted(FILES, key=lambda name: name == "run.json"):
                if (folder.path / name).is_file():
                    system.put_file(str(folder.path / name), f"{path}/{name}")
        except (OSError, ValueError, ImportError) as error:
            raise StoreError(f"run {folder.path.name} cannot be copied to {url}: {error}") from error
        return url

    def remove(self, run_id: str, files_url: str) -> None:
        """Remove the files of a run everywhere. Renamed first, so that no reader meets half a run; StoreError when that fails."""
        doomed = self.root / RUNS_FOLDER / f".deleted-{run_id}"
        try:
            if (self.root / RUNS_FOLDER / run_id).is_dir():
                os.replace(self.root / RUNS_FOLDER / run_id, doomed)
            for path in (doomed, self.root / CACHE_FOLDER / run_id):
                if path.is_dir():
                    shutil.rmtree(path)
            if files_url:
                system, path = fsspec.core.url_to_fs(files_url)
                if system.exists(path):
                    system.rm(path, recursive=True)
        except (OSError, ValueError, ImportError) as error:
            raise StoreError(f"run {run_id} cannot be deleted: {error}") from error

    def _fetch(self, url: str, target: Path) -> None:
        fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            fresh.mkdir(parents=True)
            system, path = fsspec.core.url_to_fs(url)
            for entry in system.ls(path, detail=False):
                system.get_file(entry, str(fresh / Path(entry).name))
            # Somebody else may have fetched the same meanwhile, which is as good.
            if not target.exists():
                os.replace(fresh, target)
        except (OSError, ValueError, ImportError) as error:
            raise StoreError(f"files of run {target.name} cannot be read from {url}: {error}") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _is_name(run_id: str) -> bool:
    return 0 < len(run_id) <= _NAME_LIMIT and not run_id.startswith(".") and not set(run_id) & set("/\\\0")
