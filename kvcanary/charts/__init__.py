"""Frames to Plotly figures with their words: pure functions, one theme."""
