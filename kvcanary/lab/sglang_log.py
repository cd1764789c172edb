"""What a server prints about its canary, written from what the simulated canary found: the text that an operator would hold.

Formats are SGLang 0.5.23's: one structured line and six body lines for each ring row, one WARNING per row in log mode, one RuntimeError
with all rows in raise mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from kvcanary import layout
from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.lab.violation_text import violation_text
from kvcanary.layout import RealKvHashMode
from kvcanary.serving.options import DisaggregationMode, ServingOptions
from kvcanary.serving.pool import Int64Array

Mode = Literal["log", "raise"]
_START = datetime(2026, 1, 5, 2, 30)
_READ_BYTES = {RealKvHashMode.NONE: 0, RealKvHashMode.PARTIAL: layout.PARTIAL_BYTES, RealKvHashMode.ALL: (1 << 63) - 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What the start-up lines say about the server around the canary."""

    name: str
    disaggregation: DisaggregationMode = "null"
    host_tier: bool = False


def violation_message(row: Int64Array, *, total: int, overflow: bool, step: int) -> str:
    """A ring row, int64 [8] in the order of layout.RING_FIELDS, as the seven lines that SGLang prints. step is the pump's counter."""
    return violation_text(row.tolist(), total=total, ring_overflow=overflow, step=step)


def start_lines(options: ServingOptions, config: CanaryConfig, deployment: Deployment, mode: Mode) -> Iterator[str]:
    """The lines of a start that concern the canary, without time stamp."""
    groups = ["FULL"] if options.sliding_window is None else ["FULL", "SWA"]
    pool = "MHATokenToKVPool" if options.sliding_window is None else "SWAKVPool"
    slots, rows = options.pool_slot_count, options.req_to_token_pool_size
    real = config.real_data
    yield (
        f"server_args=ServerArgs(model_path='model', chunked_prefill_size={options.chunked_prefill_size}, "
        f"max_prefill_tokens={options.max_prefill_tokens}, page_size={options.page_size}, tp_size=1, "
        f"disaggregation_mode='{deployment.disaggregation}', enable_hierarchical_cache={deployment.host_tier}, kv_canary='{mode}', "
        f"kv_canary_real_data='{real.name.lower()}', kv_canary_sweep_interval={config.sweep_interval})"
    )
    yield (
        f"attach_canary_buffers: pool={pool} attacher=attach read_bytes={_READ_BYTES[real]} n_groups={len(groups)} kinds={groups} "
        "kv_token_id_vs_position_offset=0"
    )
    yield (
        f"install_canary: disaggregation_mode={deployment.disaggregation} config=CanaryConfig(mode=<CanaryMode.{mode.upper()}: '{mode}'>, "
        f"ring_capacity={config.ring_capacity}, sweep_interval={config.sweep_interval}, "
        f"real_kv_hash_mode=<RealKvHashMode.{real.name}: {int(real)}>, enable_write_input_assert={config.write_input_assert}, "
        f"enable_verify_token_assert={config.verify_token_assert}, stats_print_every_n_steps=100) "
        "perturb_config=PerturbConfig(req_to_token_prob=0.0, real_kv_used_prob=0.0, real_kv_unused_cache_prob=0.0, "
        "real_kv_post_forward_prob=0.0, target_group_kind=None, warmup_steps=50) "
        f"launch_capacities=CanaryLaunchCapacities(per_forward_verify_capacity={layout.VERIFY_CAPACITY_FACTOR * slots}, "
        f"per_forward_write_req_capacity={rows}, per_forward_write_entry_capacity={max(rows, options.prefill_budget)}) "
        f"n_buffer_groups={len(groups)} buffer_group_kinds={groups} swa_window_size={options.sliding_window or 0} speculative_num_steps=1"
    )
    yield (
        f"Tree cache initialized: source=default impl={'HiRadixCache' if deployment.host_tier else 'RadixCache'} "
        f"hybrid_swa={len(groups) > 1} hybrid_ssm=False hicache_attached={deployment.host_tier} streaming_wrapped=False"
    )


class CanaryPrinter:
    """Collects the text of one rank's server, forward by forward.

    A report is printed one step after the device saw it, so the first covers two forwards; after that each forward's rows come at its
    end. raise mode prints once and the server is gone.
    """

    def __init__(self, *, mode: Mode, ring_capacity: int, step_s: float) -> None:
        self.lines: list[str] = []
        self.ended = False
        self._mode, self._capacity, self._step_s = mode, ring_capacity, step_s
        self._waiting: list[Int64Array] = []
        self._counted = self._sweeps = 0
        self._seen = False

    def start(self, lines: Iterator[str]) -> None:
        """Lines of the start."""
        self.lines += [f"{self._stamp(0)} {line}" for line in lines]

    def step(self, index: int, rows: Int64Array, violations: int, swept: bool) -> None:
        """What one forward's launches found: rows int64 [n, 8] that the ring kept, and how many violations were counted."""
        if swept:
            self._sweeps += 1
            self.lines.append(f"{self._stamp(index)} [canary] sweep succeeded {self._sweeps} times (last_step={index})")
        # What the host looks at is the counter as it was at the end of the forward before.
        due, self._counted = self._seen, self._counted + violations
        self._seen = self._counted > 0
        self._waiting += list(rows)
        if due and self._waiting:
            self._print(index)

    def _print(self, index: int) -> None:
        overflow = self._counted > self._capacity
        messages = [violation_message(row, total=self._counted, overflow=overflow, step=index + 1) for row in self._waiting]
        self._waiting = []
        stamp = self._stamp(index)
        if self._mode == "log":
            self.lines += [f"{stamp} {message}" for message in messages]
            return
        self.ended = True
        self.lines += [
            f"{stamp} Scheduler hit an exception: Traceback (most recent call last):",
            '  File "scheduler.py", line 1, in run_scheduler_process',
            "RuntimeError: " + "\n".join(messages),
            "",
            f"{stamp.replace(' TP0', '')} Received sigquit from a child process. It usually means the child failed.",
        ]

    def _stamp(self, index: int) -> str:
        return f"[{_START + timedelta(seconds=int(index * self._step_s)):%Y-%m-%d %H:%M:%S} TP0]"
