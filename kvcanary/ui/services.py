"""Things that all sessions of one server share: the job manager and the stored runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from kvcanary.errors import JobError, StoreError
from kvcanary.kernels.backends import available_backends, choose_backend
from kvcanary.kernels.types import Availability
from kvcanary.lab.jobs import JobManager
from kvcanary.lab.records import BenchmarkSpec
from kvcanary.store import sweep_progress
from kvcanary.store.database import Store
from kvcanary.store.home import DATABASE_VARIABLE, FILES_VARIABLE, VARIABLE, data_folder, open_store
from kvcanary.store.runs import SlotArrays
from kvcanary.ui import access

if TYPE_CHECKING:
    from kvcanary.lab.campaign_job import CampaignSpec


def home() -> Path:
    """The data folder of this server."""
    return data_folder(os.environ)


@st.cache_resource(on_release=JobManager.close)
def jobs() -> JobManager:
    """The one job manager of this server."""
    return JobManager(home())


def start(spec: BenchmarkSpec | CampaignSpec) -> str:
    """Queue a job of whoever is in front of this session; its id. ConfigError and JobError as `JobManager.start`.

    StoreError for a campaign that goes on with one that this session may not see.
    """
    if not isinstance(spec, BenchmarkSpec) and spec.continues:
        runs().row(spec.continues)
    return jobs().start(spec, owner=access.user().owner)


def stop(run_id: str) -> None:
    """Ask a job to stop. JobError when it is over, and when it belongs to somebody else, whatever button was pressed."""
    if not access.user().may_change(runs().record(run_id).owner):
        raise JobError(f"run {run_id} was started by somebody else; only they or an administrator can stop it")
    jobs().stop(run_id)


def stop_sweep(sweep_id: str) -> None:
    """Ask a sweep to stop. JobError for who may not, whatever button was pressed; StoreError when it is over."""
    # A sweep is called on the host, without a login, and has no owner.
    if not access.user().may_change(""):
        raise JobError("a sweep belongs to who called it; only an administrator can stop it here")
    sweep_progress.ask_to_stop(home(), sweep_id)


def runs() -> Store:
    """Stored runs, as far as whoever is in front of this session may see them.

    StoreError when the store cannot be opened, which is tried again at the next call.
    """
    who = access.user()
    return _all_runs() if who.admin else _all_runs().seen_by(who.key)


def delete(run_id: str) -> None:
    """Delete a run. StoreError as `Store.delete`, and for who may not, whatever button was pressed."""
    _own(run_id).delete(run_id)


def restore(run_id: str) -> None:
    """Undo a deletion. StoreError as `Store.restore`, and for who may not."""
    _own(run_id).restore(run_id)


def set_private(run_id: str, private: bool) -> None:
    """Hide a run from others or show it to them. StoreError as `Store.set_private`, and for who may not."""
    _own(run_id).set_private(run_id, private)


def _own(run_id: str) -> Store:
    store, who = runs(), access.user()
    if not who.admin and not who.may_change(store.row(run_id).owner):
        raise StoreError(f"run {run_id} was made by somebody else; only they or an administrator can change that")
    return store


def _all_runs() -> Store:
    return _store(*(os.environ.get(name) for name in (VARIABLE, DATABASE_VARIABLE, FILES_VARIABLE)))


@st.cache_resource(on_release=Store.close)
def _store(*named_by: str | None) -> Store:
    store = open_store(os.environ)
    store.purge()
    return store


def slots(run_id: str) -> SlotArrays | None:
    """The map of a finished run; StoreError where this session may not see it."""
    runs().row(run_id)
    return _slots(run_id)


@st.cache_data(max_entries=4, show_spinner=False)
def _slots(run_id: str) -> SlotArrays | None:
    # What is kept here is for all sessions.
    return _all_runs().slots(run_id)


@st.cache_resource
def devices() -> dict[str, str]:
    """Devices a job can run on, with what they are; the host is always one."""
    import torch

    found = {"cpu": "this host's processor"}
    for index in range(torch.cuda.device_count()):
        found[f"cuda:{index}"] = torch.cuda.get_device_name(index)
    return found


@st.cache_data(ttl=300, show_spinner=False)
def auto_choice(device: str) -> str:
    """What backend `auto` means on a device, and why."""
    return choose_backend("auto", device)[1]


@st.cache_data(ttl=300, show_spinner=False)
def backends() -> list[tuple[str, Availability]]:
    """Every backend and whether it can run here."""
    return available_backends()
