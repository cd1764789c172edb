"""What a real-KV hash mode costs on this machine: one forward's canary, and verify and stamp alone, in multiples of mode none.

    python tools/measure_hash_modes.py [--row-bytes 16 2048] [--shuffled] [--log2 12 14 16 18 20]

Every mode of a line is measured in turn with the others; printed are the median of none in microseconds and the medians of the ratios.
A forward is a plan, and verify and stamp of HEAD and of TAIL, while every request of the pool writes one token; HEAD hashes no KV. Rows of
16 bytes are as hot as rows get: a whole pool of 65 536 has a megabyte of them.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvcanary.kernels.backends import choose_backend
from kvcanary.kernels.types import Backend
from kvcanary.lab.scene import Scene
from kvcanary.lab.shape import SceneShape
from kvcanary.layout import LaunchTag, RealKvHashMode

LENGTH, TURNS, REPEATS = 512, 7, 7
_OPS = ("forward", "verify", "stamp")


def actions(backend: Backend, mode: RealKvHashMode, log2: int, row_bytes: int, shuffled: bool) -> dict[str, Callable[[], None]]:
    """What is timed, by name, over a pool of 2^log2 slots in requests of LENGTH tokens."""
    requests = 2**log2 // LENGTH
    shape = SceneShape(
        num_slots=2**log2 + 1, requests=requests, length=LENGTH, row_bytes=row_bytes, hash_mode=mode, shuffled=shuffled
    )  # fmt: skip
    scene = Scene(shape, seed=1)
    head, tail = scene.launch(LaunchTag.HEAD_K_FULL), scene.launch(LaunchTag.TAIL_K_FULL)
    for tag in (LaunchTag.HEAD_K_FULL, LaunchTag.TAIL_K_FULL):
        scene.stamp_everything(backend, tag)
    everything, whole = scene.stamp_inputs(0, LENGTH), copy.deepcopy(scene.plan(backend, 0, LENGTH)[1])
    one, inputs = scene.stamp_inputs(LENGTH - 1, 1), scene.plan_inputs(LENGTH - 1, 1)
    verify_plan, write_plan = scene.plan(backend, LENGTH - 1, 1)

    def forward() -> None:
        backend.plan(inputs, verify_plan, write_plan)
        for launch in (head, tail):
            backend.verify(launch, verify_plan)
            backend.stamp(launch, write_plan, one)

    return {
        "forward": forward,
        "verify": lambda: backend.verify(tail, verify_plan),
        "stamp": lambda: backend.stamp(tail, whole, everything),
    }


def median_s(action: Callable[[], None]) -> float:
    """Median seconds of REPEATS calls, after one that is not counted."""
    seconds = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def main() -> None:
    """Print a line per row size and pool size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row-bytes", type=int, nargs="+", default=[16, 2048])
    parser.add_argument("--shuffled", action="store_true", help="slots of a request in no order")
    parser.add_argument("--log2", type=int, nargs="+", default=[12, 14, 16, 18, 20])
    arguments = parser.parse_args()
    backend, _ = choose_backend("auto")
    print(f"backend {backend.name}, slots {'shuffled' if arguments.shuffled else 'contiguous'}; us: mode none; x: multiples of it")
    for row_bytes in arguments.row_bytes:
        modes = [RealKvHashMode.NONE, RealKvHashMode.PARTIAL, *([RealKvHashMode.ALL] if row_bytes > 16 else [])]
        for log2 in arguments.log2:
            by_mode = [actions(backend, mode, log2, row_bytes, arguments.shuffled) for mode in modes]
            line = [f"{row_bytes:5} B rows, 2^{log2} slots"]
            for op in _OPS:
                turns = [[median_s(named[op]) for named in by_mode] for _ in range(TURNS)]
                ratios = [statistics.median(turn[place] / turn[0] for turn in turns) for place in range(1, len(modes))]
                shown = " ".join(f"{mode.name.lower()} {ratio:.2f} x" for mode, ratio in zip(modes[1:], ratios, strict=True))
                line.append(f"{op} {statistics.median(turn[0] for turn in turns) * 1e6:.0f} us, {shown}")
            print("; ".join(line), flush=True)


if __name__ == "__main__":
    main()
