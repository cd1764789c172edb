"""Exceptions of kvcanary: one root, children that are also the built-in a caller would expect."""

from __future__ import annotations


class KvCanaryError(Exception):
    """Root of every error that kvcanary raises on purpose; its text is meant for the operator."""


class ConfigError(KvCanaryError, ValueError):
    """A setting is missing, malformed or illegal."""


class ContractError(KvCanaryError, ValueError):
    """A tensor handed to a kernel has the wrong shape, dtype, device or layout."""


class BackendUnavailableError(KvCanaryError, RuntimeError):
    """A backend was asked for by name and cannot run here."""


class ImportTextError(KvCanaryError, ValueError):
    """Pasted or uploaded text could not be read as any known kind."""


class JobError(KvCanaryError, RuntimeError):
    """A job could not be started, found or stopped."""


class StoreError(KvCanaryError, RuntimeError):
    """A stored run is missing, damaged or written by a newer version."""


class ServingError(KvCanaryError, RuntimeError):
    """The simulated memory side was driven against its rules, or found its own accounting broken."""
