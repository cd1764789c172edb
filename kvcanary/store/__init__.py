"""Runs on disk and in a database: list, open, compare, report, delete."""
