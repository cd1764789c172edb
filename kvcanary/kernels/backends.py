"""Which backends there are, which of them can run here, and which one `auto` means.

Nothing heavy is imported before a backend is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvcanary.errors import BackendUnavailableError

if TYPE_CHECKING:
    import torch

    from kvcanary.kernels.types import Availability, Backend

AUTO = "auto"


def _reference() -> Backend:
    from kvcanary.kernels.reference import ReferenceBackend

    return ReferenceBackend()


def _torch() -> Backend:
    from kvcanary.kernels.torch_any import TorchBackend

    return TorchBackend()


def _numba() -> Backend:
    from kvcanary.kernels.numba_cpu import NumbaBackend

    return NumbaBackend()


def _triton() -> Backend:
    from kvcanary.kernels.triton_gpu import TritonBackend

    return TritonBackend()


_FACTORIES: dict[str, Callable[[], Backend]] = {"reference": _reference, "torch": _torch, "numba": _numba, "triton": _triton}

BACKEND_NAMES = tuple(_FACTORIES)


def check_choice(name: str, device: str) -> None:
    """BackendUnavailableError for a backend that does not exist or never works on such a device; whether it can run here is not tried."""
    if name != AUTO and name not in _FACTORIES:
        known = ", ".join((AUTO, *BACKEND_NAMES))
        raise BackendUnavailableError(f"backend must be one of {known}, got {name!r}")
    types = _DEVICE_TYPES.get(name, ())
    if types and device.split(":")[0] not in types:
        raise BackendUnavailableError(f"backend {name!r} works on {'/'.join(types)} only, got device {device!r}; choose backend 'auto'")


def get_backend(name: str) -> Backend:
    """The backend of that name; BackendUnavailableError, with the reason, when it does not exist or cannot run here."""
    if name == AUTO:
        raise BackendUnavailableError("backend 'auto' depends on the device; ask choose_backend('auto', device), or name one")
    if name not in _FACTORIES:
        known = ", ".join((AUTO, *BACKEND_NAMES))
        raise BackendUnavailableError(f"backend must be one of {known}, got {name!r}")
    backend, availability = _probe(name)
    if backend is None or not availability.ok:
        raise BackendUnavailableError(f"backend {name!r} cannot run here: {availability.reason}; use --backend auto or another one")
    return backend


def available_backends() -> list[tuple[str, Availability]]:
    """Every backend with whether it can run here and why (not)."""
    return [(name, _probe(name)[1]) for name in BACKEND_NAMES]


def choose_backend(name: str, device: torch.device | str = "cpu") -> tuple[Backend, str]:
    """The named backend, or for `auto` the fastest one for the device, with the reason for the choice."""
    if name != AUTO:
        return get_backend(name), f"{name}: asked for by name"
    device_type = str(device).split(":")[0]
    passed_over: list[str] = []
    for candidate, devices, why in _PREFERENCE:
        if devices and device_type not in devices:
            continue
        backend, availability = _probe(candidate)
        if backend is not None and availability.ok:
            because = "".join(f"; {other}" for other in passed_over)
            return backend, f"{candidate}: {why} on {device_type}{because}"
        passed_over.append(f"{candidate} cannot run: {availability.reason}")
    raise BackendUnavailableError(f"no backend can run on {device}: {'; '.join(passed_over)}")


_PREFERENCE: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("numba", ("cpu",), "compiled loops, the fastest backend"),
    ("triton", ("cuda",), "compiled GPU kernels, the fastest backend"),
    ("torch", (), "vectorised torch, the fastest backend"),
)
"""(backend, device types or () for any, why), best first."""

_DEVICE_TYPES = {name: types for name, types, _ in _PREFERENCE}


def _probe(name: str) -> tuple[Backend | None, Availability]:
    from kvcanary.kernels.types import Availability

    try:
        backend = _FACTORIES[name]()
    except ImportError as error:
        return None, Availability(ok=False, reason=str(error))
    return backend, backend.available()
