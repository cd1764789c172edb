"""Faults to plant: what each does to memory, and which check can see it."""
