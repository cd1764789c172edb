"""Options that switch on one mechanism each, and a small workload with shared prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kvcanary.serving.options import ServingOptions
from kvcanary.serving.request import RequestSpec

MECHANISMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pages": {"page_size": 4},
    "tight": {"pool_slot_count": 160},
    "no-tree": {"radix_cache": False, "pool_slot_count": 200},
    "no-chunks": {"chunked_prefill_size": None, "max_prefill_tokens": 24},
    "window": {"sliding_window": 8, "swa_pool_slot_count": 160},
    "window-pages": {"sliding_window": 8, "swa_pool_slot_count": 160, "page_size": 4},
    "window-host": {"sliding_window": 8, "swa_pool_slot_count": 120, "host_slot_count": 200, "pool_slot_count": 160},
    "window-host-pages": {"sliding_window": 6, "swa_pool_slot_count": 120, "host_slot_count": 200, "pool_slot_count": 160, "page_size": 2},
    "window-prefill-side": {"sliding_window": 8, "swa_pool_slot_count": 160, "disaggregation_mode": "prefill"},
    "window-decode-side": {
        "sliding_window": 8,
        "swa_pool_slot_count": 160,
        "disaggregation_mode": "decode",
        "radix_cache": False,
        "pool_slot_count": 200,
    },
    "draft": {"speculative_num_draft_tokens": 4, "pool_slot_count": 200},
    "draft-pages": {"speculative_num_draft_tokens": 3, "pool_slot_count": 200, "page_size": 4},
    "host": {"host_slot_count": 160, "pool_slot_count": 160, "page_size": 2},
    "prefill-side": {"disaggregation_mode": "prefill"},
    "decode-side": {"disaggregation_mode": "decode", "radix_cache": False, "pool_slot_count": 200},
    "overlap": {"overlap": True, "pool_slot_count": 200},
    "overlap-draft": {"overlap": True, "speculative_num_draft_tokens": 4, "pool_slot_count": 200, "page_size": 2},
    "draft-pool": {"speculative_num_draft_tokens": 3, "draft_pool": True, "pool_slot_count": 200},
    "draft-pool-pages": {"speculative_num_draft_tokens": 3, "draft_pool": True, "pool_slot_count": 200, "page_size": 4},
    "mixed": {"enable_mixed_chunk": True, "pool_slot_count": 160},
    "mixed-pages": {"enable_mixed_chunk": True, "page_size": 4, "sliding_window": 8, "swa_pool_slot_count": 160},
    "ranks": {"dp_size": 3, "cuda_graph_max_bs": 8},
}
SMALL: dict[str, Any] = {
    "pool_slot_count": 320,
    "req_to_token_pool_size": 10,
    "max_seq_len_per_req": 120,
    "max_prefill_tokens": 64,
    "chunked_prefill_size": 32,
    "vocab_size": 900,
}


def small_options(**changes: Any) -> ServingOptions:
    """A pool that is too small for the workload, so that everything happens."""
    return ServingOptions(**{**SMALL, **changes})


def shared_prefixes(count: int, seed: int, vocab_size: int = 900) -> Iterator[RequestSpec]:
    """Requests over three prefixes in two namespaces, ten in a burst."""
    rng = np.random.default_rng([77, seed])
    stems = [rng.integers(0, vocab_size, size=size) for size in (37, 21, 12)]
    for index in range(count):
        stem = stems[rng.integers(0, len(stems))]
        prompt = np.concatenate([stem[: rng.integers(1, len(stem) + 1)], rng.integers(0, vocab_size, size=rng.integers(1, 50))])
        yield RequestSpec(
            prompt=prompt.astype(np.int32),
            output_len=int(rng.integers(1, 26)),
            arrival_s=index // 10 * 0.1,
            namespace=int(rng.integers(0, 2)),
        )


@pytest.fixture(params=list(MECHANISMS))
def mechanism(request: pytest.FixtureRequest) -> Callable[..., ServingOptions]:
    """Options with one mechanism on; further changes as keywords."""
    return lambda **changes: small_options(**{**MECHANISMS[request.param], **changes})
