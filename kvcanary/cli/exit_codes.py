"""Exit codes, the same for every command."""

from __future__ import annotations

PASS, FAIL, BAD_INPUT, PARTIAL, NOT_RUN = 0, 1, 2, 3, 4
VERDICT_EXIT_CODES = {"pass": PASS, "fail": FAIL, "partial": PARTIAL, "not run": NOT_RUN}
