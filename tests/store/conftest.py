"""A store on each database: SQLite in a file, and PostgreSQL where a server can be started."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvcanary.store.database import Store
from tests.store import postgres

_numbers = itertools.count()
OpenStore = Callable[..., Store]


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a server that lives as long as the tests."""
    reason = postgres.why_not()
    if reason:
        pytest.skip(reason)
    with postgres.server() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that does not exist yet (SQLite) or is empty (PostgreSQL)."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.sqlite3'}"
    return postgres.new_database(request.getfixturevalue("postgres_url"), f"store{next(_numbers)}")


@pytest.fixture
def open_store(database_url: str, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens the same database each time, with the data folder `home` unless another one is named."""
    opened: list[Store] = []

    def open_one(folder: str = "home", shared_url: str = "") -> Store:
        opened.append(Store.open(database_url, tmp_path / folder, shared_url))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
