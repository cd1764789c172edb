"""Results and parsed logs to frames, maps, diagnoses and comparisons."""
