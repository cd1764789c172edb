"""Look the installed packages up among known vulnerabilities: python tools/audit.py

Exit code 1 when one of them has a vulnerability that is not excused below. Where no vulnerability database can be reached this says that
nothing was audited, and does not claim that all is well.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

# Vulnerability id -> why it does not concern kvcanary.
EXCUSED: dict[str, str] = {}
_TIMEOUT_S = 300


def main() -> int:
    """Run pip-audit and say what it could and could not look up."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "audit.json"
        command = [
            sys.executable,
            "-m",
            "pip_audit",
            "--local",
            "--skip-editable",
            "--progress-spinner",
            "off",
            "-f",
            "json",
            "-o",
            str(report),
        ]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            print(f"not audited: no answer in {_TIMEOUT_S} s")
            return 0
        try:
            packages = json.loads(report.read_text(encoding="utf-8"))["dependencies"]
        except (OSError, ValueError, KeyError):
            print(f"not audited: {' '.join(result.stderr.strip().splitlines()[-1:]) or 'pip-audit gave no report'}")
            return 0
    audited = [package for package in packages if "vulns" in package]
    found = [(package, vulnerability) for package in audited for vulnerability in package["vulns"] if vulnerability["id"] not in EXCUSED]
    for package, vulnerability in found:
        fixed = ", ".join(vulnerability.get("fix_versions", ())) or "no version yet"
        print(f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}")
    if not audited:
        print(f"not audited: none of {len(packages)} packages is known to the vulnerability database that can be reached")
        return 0
    print(f"{len(audited)} of {len(packages)} packages audited, {len(found)} vulnerabilities that are not excused")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
