"""Benchmarks and campaigns as jobs in processes of their own."""
