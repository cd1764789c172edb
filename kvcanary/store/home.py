"""Where runs are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import platformdirs

VARIABLE = "KVCANARY_HOME"


def data_folder(environment: Mapping[str, str], given: Path | None = None) -> Path:
    """The data folder: the given one, else KVCANARY_HOME of the environment, else the user's own data folder."""
    return given or Path(environment.get(VARIABLE) or platformdirs.user_data_path("kvcanary"))
