"""SGLang's own kv-canary code, taken from its published wheel and imported on a machine without a GPU.

The wheel is looked for in the folder named by KVCANARY_SGLANG_ROOT (it holds `sglang/`), then in .cache/, and is fetched into .cache/
once when neither has it. SGLang's packages import CUDA toolchains when they are loaded, so the packages on the way to a wanted module
are replaced by empty ones that only know their folder. Everything that computes is SGLang's.
"""

from __future__ import annotations

import fcntl
import functools
import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

VERSION = "0.5.23"
CACHE = Path(__file__).resolve().parents[2] / ".cache"
FETCH_TIMEOUT_S = 180


class WheelUnavailable(Exception):
    """SGLang's wheel is not here and could not be fetched; the text says why."""


@functools.cache
def wheel_root() -> Path:
    """Folder that holds SGLang's `sglang/` package."""
    named = os.environ.get("KVCANARY_SGLANG_ROOT")
    if named:
        if not (Path(named) / "sglang").is_dir():
            raise WheelUnavailable(f"KVCANARY_SGLANG_ROOT={named} holds no sglang/ folder")
        return Path(named)
    root = CACHE / f"sglang-{VERSION}"
    CACHE.mkdir(exist_ok=True)
    # Tests in several processes want it at the same moment: one fetches it, and nobody reads a half of it.
    with (CACHE / "sglang.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "sglang").is_dir():
            _fetch(root)
    return root


def load(module_name: str, stubs: dict[str, dict[str, object]] | None = None) -> ModuleType:
    """Import one module of the wheel, e.g. `sglang.kernels.ops.kv_canary.verify_ref`.

    stubs: attributes of modules that the wanted one imports and that need a GPU or a server to load.
    """
    root = wheel_root()
    for name, attributes in (stubs or {}).items():
        stub = sys.modules.setdefault(name, ModuleType(name))
        stub.__dict__.update(attributes)
    parts = module_name.split(".")
    for depth in range(1, len(parts)):
        package = ".".join(parts[:depth])
        if package not in sys.modules:
            shell = ModuleType(package)
            shell.__path__ = [str(root.joinpath(*parts[:depth]))]
            sys.modules[package] = shell
    return importlib.import_module(module_name)


def load_kernel(name: str) -> ModuleType:
    """A module of sglang.kernels.ops.kv_canary; the CUDA compiler entry points are replaced by functions that are never called."""
    jit = {"cache_once": functools.cache, "load_jit": None, "make_cpp_args": None}
    return load(f"sglang.kernels.ops.kv_canary.{name}", {"sglang.kernels.jit.utils": jit})


def _fetch(root: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), f"sglang=={VERSION}"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
        [wheel] = CACHE.glob(f"sglang-{VERSION}-*.whl")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, ValueError) as error:
        raise WheelUnavailable(f"sglang {VERSION} could not be fetched with pip: {error}") from error
    with zipfile.ZipFile(wheel) as archive:
        # Whole or not there: a fetch may be interrupted.
        fresh = root.with_suffix(".part")
        shutil.rmtree(fresh, ignore_errors=True)
        archive.extractall(fresh, [name for name in archive.namelist() if "/kv_canary/" in name])
    fresh.rename(root)
    wheel.unlink()
