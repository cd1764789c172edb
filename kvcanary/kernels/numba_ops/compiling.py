"""How every function of this package is compiled, and when what numba kept of it on disk is too old."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

from kvcanary import layout


def _sources_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted([*Path(__file__).parent.glob("*.py"), Path(layout.__file__)]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_DIGEST = _sources_digest()


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    dispatcher = njit(cache=True, nogil=True, boundscheck=False, **options)(function)
    # numba looks at the file of a function alone, but its code holds the constants and the functions of the other files as well: after
    # an update it would go on with theirs as they were.
    kept = dispatcher._cache._cache_file
    kept._source_stamp = kept._source_stamp, _DIGEST
    return dispatcher


def compiled(function: Callable[..., Any]) -> Any:
    """Decorator of a compiled function: kept on disk, without the GIL, without checks of indices."""
    return _compile(function)


def inlined(function: Callable[..., Any]) -> Any:
    """The same for helpers whose arguments are constants at the call, so that the compiler sees the constants."""
    return _compile(function, inline="always")
