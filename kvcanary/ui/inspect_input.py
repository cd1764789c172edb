"""Where a log comes in: upload, paste, the example, or a file of an allowed folder on the server, read once or followed as it grows."""

from __future__ import annotations

import io
import os
from functools import partial
from pathlib import Path
from typing import BinaryIO

import streamlit as st

from kvcanary.analysis.follow import LogFollower
from kvcanary.analysis.inspected import Inspected
from kvcanary.analysis.log_stream import Progress, Stop, read_streams
from kvcanary.errors import ImportTextError, KvCanaryError
from kvcanary.escape import html_text, markdown_text
from kvcanary.ui import import_box, state, style
from kvcanary.ui import inspect_address as address
from kvcanary.ui import inspect_files as files
from kvcanary.ui.inspect_example import example_log
from kvcanary.ui.inspect_reading import Following, Loaded, Reading, Source, Work
from kvcanary.units import format_bytes, format_fraction

UPLOAD_LIMIT_MB = 200
SNAPSHOT_SUFFIX = ".safetensors"
_PASTED = "pasted text"
# A log that is read within this time needs no progress bar.
_PATIENCE_S, _POLL_S, _FOLLOW_S = 1.5, 0.5, 0.5
_FOUND, _PROBLEM, _TEXT, _FILES = "inspect_found", "inspect_problem", "inspect_text", "inspect_files"
_READING, _FOLLOWING, _PICKED, _TRIED = "inspect_reading", "inspect_following", "inspect_picked", "inspect_tried"


def draw() -> Loaded | None:
    """The form, and what was read last in this session."""
    _open_named()
    found: Loaded | None = st.session_state.get(_FOUND)
    folders = files.allowed_folders(os.environ)
    with st.expander(f"Read another log (shown: {markdown_text(found.label)})", expanded=False) if found else st.container():
        left, right = st.columns(2, gap="medium")
        with left:
            st.file_uploader(
                "Server logs, one per rank or day (also .gz and .zst), or snapshots (.safetensors)", accept_multiple_files=True, key=_FILES,
                on_change=_take_files, max_upload_size=UPLOAD_LIMIT_MB,
                help="Read together as one history, each rank apart; they stay on this host and are not kept.",
            )  # fmt: skip
        with right:
            st.text_area(
                "Or paste lines of a log", key=_TEXT, height=92, placeholder="kv_canary violation: launch_tag=…",
                help="Any part of a log, with its other lines or without; what is not of the canary is passed over.",
            )  # fmt: skip
            with st.container(horizontal=True, gap="small"):
                st.button("Inspect", key="inspect_go", type="primary", on_click=_take_text)
                st.button("Load an example", key="inspect_example", on_click=take_example)
        if folders:
            _folder_form(folders)
    if problem := st.session_state.get(_PROBLEM):
        style.verdict(f"Not read: {problem}", "error")
    if st.session_state.get(_READING) is not None:
        _reading_panel()
    if st.session_state.get(_FOLLOWING) is not None:
        _following_panel()
    elif found is None and not problem and st.session_state.get(_READING) is None:
        style.caption("No log has been read yet. A log with canary lines ends in a verdict, a cause and a map; the example shows how.")
    return found


def to_plan(found: Loaded) -> None:
    """A text without a line of the canary may be an error of the start, a start-up log or a command: Plan reads those."""
    log = found.inspected.log
    if not log.lines or log.canary_lines:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="inspect_plan"):
        style.caption("Plan reads errors of the start, such as “kv-canary: pool_slot_count must be positive”, start-up logs and commands.")
        if pasted := found.sources.get(_PASTED):
            st.button("Read it on Plan", key="inspect_to_plan", on_click=_hand_over, args=(pasted,))
        else:
            st.page_link("pages/plan.py", label="Open Plan", icon=":material/tune:")


def _hand_over(pasted: Source) -> None:
    with pasted() as stream:
        import_box.hand_over(stream.read().decode(errors="replace"))
    state.go_to("pages/plan.py")


@st.cache_data(ttl=5, show_spinner=False)
def _listed(folders: tuple[Path, ...]) -> list[files.LogFile]:
    """A large folder takes a while to look through, and the page is drawn at each click."""
    return files.list_logs(folders)


def _folder_form(folders: tuple[Path, ...]) -> None:
    listed = {file.name: file for file in _listed(folders)}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.multiselect(
            "Or choose on the server", list(listed), key=_PICKED, placeholder="newest first", width=560,
            help="Logs in the folders that this dashboard may read; several are read as one history.",
            format_func=lambda name: f"{listed[name].label} · {format_bytes(listed[name].size_bytes)}" if name in listed else name,
        )  # fmt: skip
        picked = st.session_state.get(_PICKED) or []
        st.button("Open", key="inspect_open", disabled=not picked, on_click=_open_files, args=(picked,))
        st.button(
            "Follow", key="inspect_follow", disabled=not picked, on_click=_follow_files, args=(picked,),
            help="Read it and go on as it grows, through rotation, until stopped.",
        )  # fmt: skip


def _open_named() -> None:
    """A link names a log of an allowed folder: open it once."""
    name = address.named_log()
    found: Loaded | None = st.session_state.get(_FOUND)
    if name and st.session_state.get(_TRIED) != name and (found is None or found.name != name):
        _load_files(name.split("|"))
    st.session_state[_TRIED] = name


def _take_files() -> None:
    uploads = st.session_state.get(_FILES) or []
    if not uploads:
        return
    names = [upload.name for upload in uploads]
    if len(set(names)) < len(names):
        st.session_state[_PROBLEM] = "two files have the same name, so their lines could not be told apart; rename one"
        return
    address.begin_log("")
    _read({upload.name: partial(io.BytesIO, upload.getvalue()) for upload in uploads}, ", ".join(names[:3]))


def _take_text() -> None:
    text = st.session_state.get(_TEXT) or ""
    if not text.strip() and st.session_state.get(_FILES):
        # They were read when they came; asked again, they say again what is in them or wrong with them.
        _take_files()
        return
    if not text.strip():
        st.session_state[_PROBLEM] = "there is nothing to read; paste some lines or upload a file"
        return
    address.begin_log("")
    _read({_PASTED: partial(io.BytesIO, text.encode(errors="replace"))}, _PASTED)


def take_example() -> None:
    """Read the invented example, as if it had been uploaded."""
    address.begin_log("")
    _read({"example.log": partial(io.BytesIO, example_log().encode())}, "example")


def _open_files(names: list[str]) -> None:
    address.begin_log("|".join(names))
    _load_files(names)


def _load_files(names: list[str]) -> None:
    try:
        folders, paths = _found_paths(names)
    except ImportTextError as error:
        st.session_state[_PROBLEM] = str(error)
        return
    sources: dict[str, Source] = {
        path.name if len(paths) == 1 else name: partial(files.open_inside, folders, path) for name, path in paths.items()
    }
    _read(sources, ", ".join(path.name for path in list(paths.values())[:3]), name="|".join(names))


def _follow_files(names: list[str]) -> None:
    _end_following()
    try:
        folders, paths = _found_paths(names)
    except ImportTextError as error:
        st.session_state[_PROBLEM] = str(error)
        return
    address.begin_log("|".join(names))
    st.session_state[_PROBLEM] = ""
    opener = partial(files.open_inside, folders)
    label = ", ".join(path.name for path in list(paths.values())[:3])
    sources: dict[str, Source] = {str(path): partial(opener, path) for path in paths.values()}
    follower = LogFollower(list(paths.values()), open_file=opener)
    following = Following(label=label, name="|".join(names), follower=follower, sources=sources)
    st.session_state[_FOLLOWING], st.session_state[_TRIED] = following, following.name
    _take_following(following)


def _found_paths(names: list[str]) -> tuple[tuple[Path, ...], dict[str, Path]]:
    folders = files.allowed_folders(os.environ)
    return folders, {name: files.find(folders, name) for name in names}


def _read(sources: dict[str, Source], label: str, *, name: str = "") -> None:
    """Start reading; a short log is there at once."""
    _end_following()
    st.session_state[_PROBLEM] = ""
    if reading := st.session_state.get(_READING):
        reading[0].stop()
    st.session_state[_TRIED] = name
    reading = Reading(label, _work(sources))
    st.session_state[_READING] = (reading, sources, name)
    reading.wait(_PATIENCE_S)
    _take_reading()


def _work(sources: dict[str, Source]) -> Work:
    snapshots = [name for name in sources if name.endswith(SNAPSHOT_SUFFIX)]
    if snapshots and len(snapshots) < len(sources):
        raise_later = ImportTextError(f"snapshots and logs cannot be mixed, got {', '.join(list(sources)[:4])}; inspect them apart")
        return partial(_fail, raise_later)
    return partial(_read_snapshots if snapshots else _read_logs, sources)


def _fail(error: ImportTextError, _progress: Progress, _stop: Stop) -> Inspected:
    raise error


def _read_logs(sources: dict[str, Source], progress: Progress, stop: Stop) -> Inspected:
    streams = []
    try:
        for name, source in sources.items():
            streams.append((name, _opened(name, source)))
        return Inspected(read_streams(streams, progress=progress, stop=stop))
    finally:
        for _, stream in streams:
            stream.close()


def _read_snapshots(sources: dict[str, Source], progress: Progress, stop: Stop) -> Inspected:
    # torch takes seconds to load, and logs do without it.
    from kvcanary.analysis.snapshot_log import read_snapshots

    contents = []
    for name, source in sources.items():
        with _opened(name, source) as stream:
            contents.append((name, stream.read()))
    log, statuses = read_snapshots(contents)
    return Inspected(log, {(status.pool, status.name): status.status for status in statuses})


def _opened(name: str, source: Source) -> BinaryIO:
    try:
        return source()
    except OSError as error:
        raise ImportTextError(f"{name} cannot be read: {error.strerror or error}") from error


def _take_reading() -> None:
    """Show what was read, once it is there."""
    reading, sources, name = st.session_state[_READING]
    if not reading.finished:
        return
    st.session_state[_READING] = None
    try:
        st.session_state[_FOUND] = Loaded(reading.result(), sources, reading.label, name)
    except KvCanaryError as error:
        st.session_state[_PROBLEM] = str(error)


@st.fragment(run_every=_POLL_S)
def _reading_panel() -> None:
    if st.session_state.get(_READING) is None:
        return
    reading: Reading = st.session_state[_READING][0]
    _take_reading()
    if st.session_state[_READING] is None:
        st.rerun()
    read = f"{format_bytes(reading.done_bytes)} of {format_bytes(reading.total_bytes)}, {format_fraction(reading.share)}"
    if reading.share == 1:
        st.progress(1.0, text="Read to the end; looking for causes")
        return
    st.progress(reading.share, text=f"Reading {markdown_text(reading.label)}: {read}")
    st.button("Stop", key="inspect_stop", on_click=reading.stop, help="Shows what was read until then.", icon=":material/stop:")


@st.fragment(run_every=_FOLLOW_S)
def _following_panel() -> None:
    following: Following | None = st.session_state.get(_FOLLOWING)
    if following is None:
        return
    if _take_following(following):
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button("Stop following", key="inspect_unfollow", on_click=_end_following, icon=":material/stop:")
        st.html(f'<p class="kvc-why" role="status">Following {html_text(following.label)}: {following.words()}.</p>')
    if following.behind_bytes:
        share = 1 - following.behind_bytes / max(1, following.size_bytes)
        st.progress(min(1.0, max(0.0, share)), text=f"Catching up, {format_bytes(following.behind_bytes)} left")


def _take_following(following: Following) -> bool:
    inspected = following.poll()
    if inspected is None:
        return False
    st.session_state[_FOUND] = Loaded(inspected, following.sources, following.label, following.name)
    return True


def _end_following() -> None:
    following: Following | None = st.session_state.get(_FOLLOWING)
    if following is not None:
        following.follower.close()
        st.session_state[_FOLLOWING] = None
