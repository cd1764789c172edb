"""Fixtures shared with the serving loop's tests."""

from tests.serving.conftest import mechanism

__all__ = ["mechanism"]
