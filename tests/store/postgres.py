"""A PostgreSQL server of the tests' own: on loopback, in a folder of its own, gone afterwards. The server refuses to run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg


def server_programs() -> Path | None:
    """The folder of initdb and pg_ctl, None where no server is installed."""
    on_path = shutil.which("pg_ctl")
    if on_path:
        return Path(on_path).resolve().parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def why_not() -> str | None:
    """Why no server can be started here, None when one can."""
    if server_programs() is None:
        return "no PostgreSQL server is installed"
    if os.getuid() == 0 and (not shutil.which("runuser") or "postgres" not in {user.pw_name for user in pwd.getpwall()}):
        return "PostgreSQL refuses to run as root and there is no user postgres"
    return None


@dataclass(frozen=True)
class Server:
    """A server that can go and come back. url names no database."""

    url: str
    start: Callable[[], None]
    stop: Callable[[], None]


@contextmanager
def server() -> Iterator[Server]:
    """A running server."""
    programs = server_programs()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="kvcanary-postgres-"))
    prefix = []
    if os.getuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
        prefix = ["runuser", "-u", "postgres", "--"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def call(*arguments: str) -> None:
        subprocess.run([*prefix, *arguments], check=True, cwd=folder, stdout=subprocess.DEVNULL)

    control = (str(programs / "pg_ctl"), "-D", str(folder / "data"), "-w")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off -c full_page_writes=off"

    def start() -> None:
        call(*control, "-o", options, "-l", str(folder / "log"), "start")

    def stop() -> None:
        call(*control, "-m", "immediate", "stop")

    try:
        call(str(programs / "initdb"), "-D", control[2], "-U", "tester", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
        start()
        try:
            yield Server(f"postgresql://tester@127.0.0.1:{port}", start, stop)
        finally:
            stop()
    finally:
        shutil.rmtree(folder)


def new_database(server_url: str, name: str) -> str:
    """An empty database; returns its URL."""
    with psycopg.connect(f"{server_url}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{server_url}/{name}"
