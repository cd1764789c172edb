"""Settings, rules, launch capacities, memory, and what they are computed from."""
