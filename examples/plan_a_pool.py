"""Will this pool start with the canary on, what does the canary cost, and what is the largest pool that fits?

python examples/plan_a_pool.py
"""

from __future__ import annotations

from kvcanary.config.capacities import LaunchCapacities
from kvcanary.config.memory import memory_plan
from kvcanary.config.presets import find_preset
from kvcanary.config.rules import validate
from kvcanary.config.settings import Settings
from kvcanary.config.solve import largest_pool


def main() -> None:
    """Plan a preset with one value changed, and print what follows."""
    fields = {**find_preset("qwen3-8b-h100").settings, "mode": "raise", "real_data": "partial", "sweep_interval": 100}
    settings = Settings.from_flat(fields)
    for finding in validate(settings):
        print(f"{finding.severity}: {finding.message}")
    capacities = LaunchCapacities.from_settings(settings)
    for bound in capacities.bounds:
        print(f"{bound.label}: {bound.value}   ({bound.text})")
    plan = memory_plan(settings)
    print(plan.summary)
    print(f"the canary takes {plan.canary_bytes} bytes")
    print(f"largest pool: {largest_pool(plan).text}")


if __name__ == "__main__":
    main()
