"""Every rule at once: what stops the start, what fails or misleads later, what is worth knowing.

Each rule is a function from settings to findings. Errors come in SGLang's order of checks, so the first one is what the engine would
raise. Sentences of the engine are spelled as in release 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvcanary.config import rules_batch, rules_canary, rules_model, rules_pool, rules_real_data
from kvcanary.config.findings import Finding, worst_first
from kvcanary.config.settings import Settings

Rule = Callable[[Settings], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    rules_pool.page_size_positive,
    rules_batch.chunk_in_pages,
    rules_pool.window_ratio,
    rules_canary.sweep_without_mode,
    rules_pool.page_rounds_to_zero,
    rules_pool.window_pool_too_small,
    rules_canary.prefill_graphs,
    rules_canary.decode_graphs_without_kernels,
    rules_canary.pool_class,
    rules_real_data.row_bytes,
    rules_pool.positive_inputs,
    rules_canary.ring_rows,
    rules_pool.fraction_range,
    rules_pool.parallel_sizes,
    rules_canary.sweep_interval_negative,
    rules_batch.more_requests_than_a_plan,
    rules_canary.sweep_interval_trips_health_check,
    rules_batch.chunk_of_zero,
    rules_batch.long_prompt_without_chunks,
    rules_batch.chunk_above_budget,
    rules_pool.request_does_not_fit,
    rules_canary.draft_tree,
    rules_canary.host_tier,
    rules_canary.sweep_without_tree,
    rules_canary.ring_fills_with_sweeps,
    rules_canary.memory_beside_the_static_share,
    rules_model.model_sizes,
    rules_batch.graph_batch_against_requests,
    rules_batch.mixed_chunk,
    rules_pool.single_row,
    rules_batch.limits_are_global,
    rules_real_data.real_data_coverage,
    rules_real_data.v_half_off,
    rules_real_data.real_data_without_mode,
    rules_canary.input_assert,
)


def validate(settings: Settings) -> list[Finding]:
    """All findings, errors first, each severity in the order of RULES."""
    return worst_first(finding for rule in RULES for finding in rule(settings))
