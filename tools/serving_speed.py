"""How fast the serving loop schedules, alone and under a canary: python tools/serving_speed.py [TRACE ...]

Seconds are those of this process's threads on a processor, so that other work on the machine counts little; the median of five runs.
Computed tokens are those that forwards compute. Served tokens are prompts and replies, cached prefixes included, as a serving benchmark
counts them. Entries are those that HEAD and TAIL verify.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from kvcanary.faults.canary_config import CanaryConfig
from kvcanary.importers.trace import TraceReader
from kvcanary.kernels.backends import choose_backend
from kvcanary.lab.executors import CanaryExecutor
from kvcanary.layout import RealKvHashMode
from kvcanary.serving.engine import ServingEngine
from kvcanary.serving.options import ServingOptions
from kvcanary.serving.request import RequestSpec
from kvcanary.serving.workload import PRESETS, Mix, from_trace, synthetic

_ROOMY = ServingOptions(pool_slot_count=1 << 18, max_seq_len_per_req=4096, chunked_prefill_size=8192)
_TRACE_POOL = ServingOptions(pool_slot_count=400_000, req_to_token_pool_size=256, max_seq_len_per_req=140_000, chunked_prefill_size=8192)
_REPEATS = 5
# Lengths and batches of a server; the named mixes are made for pools of which a replay can draw every slot.
_SERVER = ServingOptions(pool_slot_count=1 << 19, req_to_token_pool_size=256, max_seq_len_per_req=16384, chunked_prefill_size=8192)
_SERVER_MIXES = {
    "server, chat": Mix(requests=600, rate_per_s=12.0, prompt_len=(64, 2048), output_len=(64, 512), prefixes=8, prefix_len=(256, 1024)),
    "server, agents": Mix(
        requests=600, rate_per_s=12.0, prompt_len=(64, 512), output_len=(32, 256), prefixes=4, prefix_len=(2048, 8192), share_fraction=0.95
    ),
    "server, batch": Mix(requests=600, rate_per_s=0.0, prompt_len=(512, 4096), output_len=(16, 128), share_fraction=0.0),
}
_CANARIES = {"chain only": CanaryConfig(), "all": CanaryConfig(real_data=RealKvHashMode.ALL)}


def loads() -> Iterator[tuple[str, ServingOptions, list[RequestSpec]]]:
    """Decode batches of several sizes, then the named mixes."""
    for batch in (8, 32, 256):
        options = replace(_ROOMY, req_to_token_pool_size=batch)
        mix = Mix(requests=batch, rate_per_s=0.0, prompt_len=(4, 16), output_len=(1000, 1000), share_fraction=0.0)
        yield f"decode, batch {batch}", options, list(synthetic(mix, options.vocab_size))
    for name, mix in PRESETS.items():
        options = ServingOptions()
        yield name, options, list(synthetic(replace(mix, requests=400), options.vocab_size))
    for name, mix in _SERVER_MIXES.items():
        yield name, _SERVER, list(synthetic(mix, _SERVER.vocab_size))
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as lines:
            yield path.rsplit("/", 1)[-1], _TRACE_POOL, list(from_trace(TraceReader(lines), _TRACE_POOL.vocab_size, speed=8.0))


def main() -> None:
    """Print one line per load, then the small mixes under a canary."""
    for name, options, requests in loads():
        lengths = [len(spec.prompt) + spec.output_len for spec in requests]
        served = sum(length for length in lengths if length <= options.longest_request)
        tokens = steps = 0
        times = []
        for _ in range(_REPEATS):
            tokens = steps = 0
            started = time.process_time()
            for step in ServingEngine(options, requests).steps():
                tokens += len(step.tokens)
                steps += 1
            times.append(time.process_time() - started)
        seconds = statistics.median(times)
        print(
            f"{name:36} {tokens / steps:8.1f} tokens/step {seconds / steps * 1e6:8.1f} us/step {tokens / seconds / 1e6:7.2f} M computed/s "
            f"{served / seconds / 1e6:7.2f} M served/s"
        )
    backend, _ = choose_backend("auto", "cpu")
    long = Mix(requests=64, rate_per_s=0.0, prompt_len=(512, 1024), output_len=(24, 24), share_fraction=0.0)
    under = {
        "chat": (ServingOptions(), replace(PRESETS["chat"], requests=60)),
        "64 long prompts": (replace(_ROOMY, pool_slot_count=1 << 17), long),
    }
    for load, name in ((load, name) for load in under for name in _CANARIES):
        options, mix = under[load]
        requests = list(synthetic(mix, options.vocab_size))
        executor = CanaryExecutor(options, _CANARIES[name], backend)
        tokens = entries = steps = 0
        canary_s = 0.0
        for step in ServingEngine(options, requests).steps():
            report = executor.run(step)
            if steps:
                # The first launch compiles.
                canary_s += report.canary_s
                tokens += len(step.tokens)
                entries += report.verified
            steps += 1
        print(
            f"{load}, canary {name:12} {canary_s / steps * 1e6:8.1f} us/step {tokens / canary_s / 1e6:7.3f} M tokens/s "
            f"{entries / canary_s / 1e6:7.2f} M entries/s ({entries / tokens:.0f} entries per token)"
        )


if __name__ == "__main__":
    main()
