"""Code that nobody calls, tests included: python tools/unused.py

vulture guesses; what it cannot see a use of is listed here with the reason. Exit code 1 for anything else;
an entry that is not needed any more is only named.
"""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase

OWN = ("kvcanary/", "app.py", "pages/", "tools/", "examples/")
# "file: name" patterns -> who uses it.
USED_ELSEWHERE: dict[str, str] = {
    "kvcanary/layout.py: *": "constants of SGLang's format, complete on purpose",
    "kvcanary/config/geometry.py: *": "names of SGLang's pools, complete on purpose",
    "kvcanary/cli/*: list_commands": "called by typer",
    "kvcanary/cli/runs.py: *": "typer commands",
    "kvcanary/kernels/numba_ops/*: typing_context": "numba hands it to every intrinsic",
    "kvcanary/ui/server.py: _external_ip": "read by Streamlit",
    "kvcanary/ui/services.py: named_by": "part of a cache's key",
    "kvcanary/store/connection.py: _prepare": "called by SQLAlchemy when it connects",
    "kvcanary/store/connection.py: isolation_level": "read by sqlite3",
    "kvcanary/analysis/coverage.py: skipped_steps": "a field of documents",
    "kvcanary/analysis/coverage.py: silent_ranks": "a field of documents",
    "kvcanary/lab/points.py: *_graph": "fields of documents",
    "tools/measure_sessions.py: *": "fields of Streamlit's messages",
    "kvcanary/config/settings.py: model_config": "read by pydantic",
}


def main() -> int:
    """Print what is unused and return 1, or return 0."""
    command = [sys.executable, "-m", "vulture"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    needed, found = set(), []
    for line in lines:
        place, _, said = line.partition(": ")
        path = place.partition(":")[0]
        if not path.startswith(OWN):
            continue
        name = said.split("'")[1]
        excuses = [pattern for pattern in USED_ELSEWHERE if fnmatchcase(f"{path}: {name}", pattern)]
        needed.update(excuses)
        if not excuses:
            found.append(line)
    print("\n".join(found), end="\n" if found else "")
    for pattern in USED_ELSEWHERE.keys() - needed:
        print(f"tools/unused.py: {pattern!r} excuses nothing any more; remove it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
