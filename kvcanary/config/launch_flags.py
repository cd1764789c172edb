"""Settings as the command line that SGLang would be started with."""

from __future__ import annotations

import shlex

from kvcanary.config.defaults import row_context
from kvcanary.config.settings import FIELDS, Settings, flag_text

# Fields whose flag is written from another field, or which are facts of a model and no flags.
_WRITTEN_APART = frozenset(
    {
        "req_to_token_pool_size", "max_seq_len_per_req", "pool_slot_count", "max_total_tokens", "chunked_prefill_size",
        "max_running_requests", "global_chunked_prefill_size", "device", "model_dtype",
    }
)  # fmt: skip
_DEVICE_TYPES = ("cpu", "xpu", "npu", "musa", "mps")
_ALWAYS = ("mode", "page_size", "max_prefill_tokens", "cuda_graph_max_bs")


def sglang_flags(settings: Settings) -> str:
    """One shell command: environment assignments, then the flags that differ from SGLang's defaults or decide a capacity.

    The pool is given as --max-total-tokens, which SGLang takes as an upper limit.
    """
    environment: list[str] = []
    flags: list[str] = []
    for name, value in settings.to_flat().items():
        text = flag_text(name, value)
        if name == "cuda_graph_max_bs" and not value:
            continue
        if not text or name in _WRITTEN_APART or (value == FIELDS[name].default and name not in _ALWAYS):
            continue
        (environment if text.startswith("SGLANG_") else flags).append(text)
    pool, batch = settings.pool, settings.batch
    ranks = batch.dp_size if batch.enable_dp_attention else 1
    requests = _over_ranks(pool.req_to_token_pool_size, batch.max_running_requests, ranks)
    own_chunk = -1 if batch.chunked_prefill_size is None else batch.chunked_prefill_size
    # Off, and the limit of zero, are the same for every rank.
    chunk = _over_ranks(own_chunk, batch.global_chunked_prefill_size, ranks) if own_chunk > 0 else own_chunk
    tokens = pool.max_total_tokens if pool.max_total_tokens is not None else pool.pool_slot_count
    if not batch.cuda_graph_max_bs and batch.cuda_graph_backend_decode != "disabled":
        flags.append("--cuda-graph-backend-decode disabled")
    # A name from the device list is no device type: SGLang finds that one by itself.
    if settings.memory.device in _DEVICE_TYPES:
        flags.append(f"--device {settings.memory.device}")
    flags += [
        f"--max-running-requests {requests}",
        f"--context-length {row_context(settings)}",
        f"--max-total-tokens {tokens}",
        f"--chunked-prefill-size {chunk}",
    ]
    model = shlex.quote(settings.model.model) if settings.model.model else "MODEL"
    return " \\\n  ".join([*environment, f"python -m sglang.launch_server --model-path {model}", *flags])


def _over_ranks(own: int, asked: int | None, ranks: int) -> int:
    """The flag that gives one rank its own value: what was asked for, unless the plan was changed since to something else."""
    return asked if asked is not None and ranks > 0 and asked // ranks == own else own * ranks
