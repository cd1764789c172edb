"""Where runs are kept, as the environment says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from kvcanary.store.database import Store

VARIABLE = "KVCANARY_HOME"
DATABASE_VARIABLE = "KVCANARY_DATABASE_URL"
FILES_VARIABLE = "KVCANARY_FILES_URL"


def data_folder(environment: Mapping[str, str], given: Path | None = None) -> Path:
    """The data folder: the given one, else KVCANARY_HOME of the environment, else the user's own data folder."""
    return given or Path(environment.get(VARIABLE) or platformdirs.user_data_path("kvcanary"))


def open_store(environment: Mapping[str, str], given: Path | None = None) -> Store:
    """The store of an environment: its data folder, KVCANARY_DATABASE_URL and KVCANARY_FILES_URL. StoreError as `Store.open`."""
    # Brings SQLAlchemy, for which commands without runs need not wait.
    from kvcanary.store.database import Store

    return Store.open(environment.get(DATABASE_VARIABLE) or None, data_folder(environment, given), environment.get(FILES_VARIABLE) or "")
