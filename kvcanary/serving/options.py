"""What the simulated engine is: sizes of its memory side and which of its mechanisms are on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from kvcanary.errors import ConfigError

DisaggregationMode = Literal["null", "prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Sizes in slots and tokens, named as the settings are. Illegal values raise ConfigError with the knob to turn.

    pool_slot_count: KV slots without the padding page. req_to_token_pool_size: request rows without padding row 0.
    max_seq_len_per_req: prompt plus output of one request. chunked_prefill_size: None = off.
    enable_mixed_chunk: running requests decode in the prefill batch, at the expense of its budget.
    sliding_window with swa_pool_slot_count: a window sub-pool of that many slots. speculative_num_draft_tokens with
    draft_acceptance: tokens written per request and decode step, and the chance that a draft token is right. draft_pool: the draft model
    keeps KV of its own (EAGLE), for the token after each position.
    host_slot_count: slots of the host tier, 0 = none. cuda_graph_max_bs: largest captured decode batch, None = no graphs.
    disaggregation_mode with transfer_delay_steps: which half of a prefill/decode pair this is. dp_size above 1 pads batches to the
    largest of the ranks. overlap: results are handled one step late. new_token_ratio: share of the unwritten output of running
    requests that admission keeps free. step_s: simulated seconds of one forward. vocab_size, seed: token ids and all chance.
    kv_row_bytes: bytes that one token has in one strip (the K or V of a layer), for who runs a canary on the steps.
    """

    pool_slot_count: int = 4096
    req_to_token_pool_size: int = 32
    max_seq_len_per_req: int = 1024
    page_size: int = 1
    max_prefill_tokens: int = 16384
    chunked_prefill_size: int | None = 512
    enable_mixed_chunk: bool = False
    radix_cache: bool = True
    sliding_window: int | None = None
    swa_pool_slot_count: int | None = None
    speculative_num_draft_tokens: int | None = None
    draft_acceptance: float = 0.7
    draft_pool: bool = False
    host_slot_count: int = 0
    cuda_graph_max_bs: int | None = None
    dp_size: int = 1
    disaggregation_mode: DisaggregationMode = "null"
    transfer_delay_steps: int = 2
    overlap: bool = False
    new_token_ratio: float = 0.3
    step_s: float = 0.02
    vocab_size: int = 32000
    kv_row_bytes: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("pool_slot_count", "req_to_token_pool_size", "max_seq_len_per_req", "page_size", "max_prefill_tokens", "dp_size"):
            _at_least(name, getattr(self, name), 1)
        _at_least("vocab_size", self.vocab_size, 2)
        if self.kv_row_bytes < 64 or self.kv_row_bytes % 16:
            raise ConfigError(f"kv_row_bytes must be a multiple of 16 from 64 on, got {self.kv_row_bytes}")
        _at_least("transfer_delay_steps", self.transfer_delay_steps, 0)
        _at_least("host_slot_count", self.host_slot_count, 0)
        _at_least("seed", self.seed, 0)
        for name in ("chunked_prefill_size", "sliding_window", "speculative_num_draft_tokens", "cuda_graph_max_bs"):
            if (value := getattr(self, name)) is not None:
                _at_least(name, value, 1)
        for name in ("draft_acceptance", "new_token_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be a fraction from 0 to 1, got {getattr(self, name)}")
        if not self.step_s > 0:
            raise ConfigError(f"step_s must be positive seconds, got {self.step_s}")
        self._check_pages()
        self._check_combinations()

    @property
    def tokens_per_decode(self) -> int:
        """Tokens that one request writes in one decode step."""
        return self.speculative_num_draft_tokens or 1

    @property
    def prefill_budget(self) -> int:
        """Most prompt tokens of one forward, as the canary's write-entry capacity bounds them."""
        return min(self.max_prefill_tokens, self.chunked_prefill_size or self.max_prefill_tokens)

    @property
    def longest_request(self) -> int:
        """Most tokens, prompt and output, of a request that can ever finish here."""
        spare = self.tokens_per_decode - 1 + (1 if self.overlap else 0)
        pools = [self.pool_slot_count]
        if self.swa_pool_slot_count is not None:
            pools.append(self.swa_pool_slot_count)
        return min(self.max_seq_len_per_req, min(pools) - spare - (self.page_size - 1))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; `ServingOptions(**options.to_dict())` gives the same object."""
        return asdict(self)

    def _check_pages(self) -> None:
        for name in ("pool_slot_count", "swa_pool_slot_count", "host_slot_count", "chunked_prefill_size"):
            value = getattr(self, name)
            if value is not None and value % self.page_size:
                nearest = value // self.page_size * self.page_size
                raise ConfigError(f"{name} must be a multiple of page_size={self.page_size}, got {value}; the nearest below is {nearest}")

    def _check_combinations(self) -> None:
        if (self.sliding_window is None) != (self.swa_pool_slot_count is None):
            raise ConfigError(
                f"sliding_window and swa_pool_slot_count go together, got {self.sliding_window} and {self.swa_pool_slot_count}; "
                "set both or neither"
            )
        if self.draft_pool and (self.speculative_num_draft_tokens is None or self.disaggregation_mode != "null"):
            raise ConfigError(
                f"draft_pool=True needs speculative_num_draft_tokens and disaggregation_mode='null', got "
                f"{self.speculative_num_draft_tokens} and {self.disaggregation_mode!r}"
            )
        if self.enable_mixed_chunk and (self.chunked_prefill_size is None or self.speculative_num_draft_tokens is not None):
            raise ConfigError(
                f"enable_mixed_chunk=True needs chunked_prefill_size and no speculative_num_draft_tokens, got {self.chunked_prefill_size} "
                f"and {self.speculative_num_draft_tokens}; set the one, drop the other"
            )
        if self.host_slot_count and not self.radix_cache:
            raise ConfigError(f"host_slot_count={self.host_slot_count} needs radix_cache=True, got False; it backs up tree nodes")
        if self.disaggregation_mode not in ("null", "prefill", "decode"):
            raise ConfigError(f"disaggregation_mode must be 'null', 'prefill' or 'decode', got {self.disaggregation_mode!r}")
        if self.disaggregation_mode == "decode" and self.radix_cache:
            raise ConfigError("disaggregation_mode='decode' needs radix_cache=False, got True; the decode side keeps no prefix tree")
        if self.prefill_budget < self.page_size:
            raise ConfigError(
                f"max_prefill_tokens={self.max_prefill_tokens} is below page_size={self.page_size}, so no chunk of a prompt fits; raise it"
            )
        if self.longest_request < 2:
            raise ConfigError(
                f"no request of two tokens fits: max_seq_len_per_req={self.max_seq_len_per_req}, pool_slot_count={self.pool_slot_count}, "
                f"swa_pool_slot_count={self.swa_pool_slot_count}, {self.tokens_per_decode} tokens per decode step, "
                f"page_size={self.page_size}; raise the smallest of them"
            )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")
