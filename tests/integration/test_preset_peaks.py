"""The simulated peak of the published models is what the ledger adds up to, within one per cent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomscope.config.load import load_preset
from oomscope.model.cost.parameters import stage_parameters
from oomscope.probe.job import bundled_job
from oomscope.units import MiB
from tests.forked import probe
from tests.ledgers.stage import logits_bytes, stage_bytes

CUBLAS_WORKSPACES = 3 * 32 * MiB
"""One for the forward thread, one for the backward thread and one of Transformer Engine on an H100."""


def ledger_sum(config) -> int:
    """Bytes of states, of every microbatch in flight, of the loss's transient and of the workspaces."""
    parallel = config.parallel
    stages = parallel.pipeline_model_parallel_size
    layers = config.model.num_layers // stages
    last = stages == 1
    parameters = stage_parameters(config, layers, pre_process=True, post_process=last)
    states = parameters * (6 + 12 / parallel.data_parallel_size)
    in_flight = min(stages, config.num_microbatches)
    activations = in_flight * stage_bytes(config, layers, pre_process=True, post_process=last)
    logits = logits_bytes(config) if last else 0
    return int(states) + activations + logits + CUBLAS_WORKSPACES


@pytest.mark.parametrize(
    ("preset", "microbatches"),
    [("llama3-8b", 2), ("llama3-70b", 4)],  # of one stage, where the second is as all after it; of four, all in flight
    ids=["llama3-8b", "llama3-70b"],
)
def test_the_peak_is_the_ledgers_sum_within_one_per_cent(preset, microbatches):
    config = load_preset(preset, [f"data.num_microbatches={microbatches}"]).config
    result = probe(replace(bundled_job(config), backend="virtual"))
    assert result.outcome == "fits", result.failure
    assert result.peak is not None
    assert result.peak.requested_bytes == pytest.approx(ledger_sum(config), rel=0.01)
    assert sum(result.peak.categories.values()) == result.peak.requested_bytes
    assert sum(row.bytes for row in result.peak.sites) == result.peak.requested_bytes
