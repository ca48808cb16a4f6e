"""The simulated peak of the published models is what the ledger adds up to, to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomscope.config.load import load_preset
from oomscope.config.schema import Config
from oomscope.model.cost.parameters import element_bytes, stage_parameters
from oomscope.probe.job import bundled_job
from oomscope.units import KiB, MiB
from tests.forked import probe
from tests.ledgers.layer import hidden_bytes, kept_layer_ledger
from tests.ledgers.stage import logits_bytes, stage_bytes

CUBLAS_WORKSPACE = 32 * MiB
"""On an H100. PyTorch's is freed after each product (since 2.15); Transformer Engine's is 1 KiB larger and stays."""
STEP_COUNTS = 2 * 4
"""Of Adam, one for the parameters with weight decay and one for those without."""


def resident_bytes(config: Config, layers: int, *, is_last: bool) -> int:
    """Return parameters, main gradients, optimizer states, Transformer Engine's workspace and the rotary table."""
    parameters = stage_parameters(config, layers, pre_process=True, post_process=is_last)
    states = parameters * (6 + 12 // config.parallel.data_parallel_size) + STEP_COUNTS
    cosines_and_sines = 4 * config.data.seq_length * config.head_dim
    return states + CUBLAS_WORKSPACE + KiB + cosines_and_sines


def peak_at_the_loss(config: Config) -> int:
    """Return the peak of a model in one stage: the second microbatch's loss is computed, no backward is under way."""
    layers, tokens = config.model.num_layers, config.data.seq_length * config.data.micro_batch_size
    kept = stage_bytes(config, layers, pre_process=True, post_process=True)
    tokens_and_labels, mask = 2 * 8 * tokens, tokens * config.data.seq_length
    largest_predicted_total_and_its_logarithm, first_loss = 4 * 4 * tokens, 4
    loss = logits_bytes(config) + largest_predicted_total_and_its_logarithm + first_loss
    return resident_bytes(config, layers, is_last=True) + kept + tokens_and_labels + mask + loss


def peak_in_the_first_backward(config: Config) -> int:
    """Return the peak of the first of several stages: all have a microbatch, and the first's last layer is at fc1.

    The MLP's activations are used up. There are the gradients of fc1's output, of its gathered input and of its weight,
    the gathered input itself, two shards [s/t, b, h] (the gradient received from the next stage, and fc1's input
    gradient) and the workspace of the product under way.
    """
    stages, t = config.parallel.pipeline_model_parallel_size, config.parallel.tensor_model_parallel_size
    layers, last_layer = config.model.num_layers // stages, kept_layer_ledger(config)
    used_up = last_layer["fc1_output"] + last_layer["fc2_input"]
    weight_gradient = element_bytes(config) * config.model.hidden_size * 2 * config.ffn_size // t
    shard = hidden_bytes(config)
    arising = last_layer["fc1_output"] + 2 * t * shard + weight_gradient + 2 * shard + CUBLAS_WORKSPACE
    kept = stages * stage_bytes(config, layers, pre_process=True, post_process=False)
    return resident_bytes(config, layers, is_last=False) + kept - used_up + arising


@pytest.mark.parametrize(
    ("preset", "microbatches", "layers", "phase", "ledger"),
    [
        ("llama3-8b", 2, 8, "loss", peak_at_the_loss),  # the second microbatch is as all after it
        ("llama3-70b", 4, 16, "backward", peak_in_the_first_backward),  # all four are in flight
    ],
    ids=["llama3-8b", "llama3-70b"],
)
def test_the_peak_is_the_ledgers_sum(preset, microbatches, layers, phase, ledger):
    """Fewer layers than published, each of which is as all the others."""
    config = load_preset(preset, [f"data.num_microbatches={microbatches}", f"model.num_layers={layers}"]).config
    result = probe(replace(bundled_job(config), backend="virtual"))
    assert result.outcome == "fits", result.failure
    assert result.peak is not None
    assert (result.peak.phase, result.peak.requested_bytes) == (phase, ledger(config))
    assert sum(result.peak.categories.values()) == result.peak.requested_bytes
    assert sum(row.bytes for row in result.peak.sites) == result.peak.requested_bytes
