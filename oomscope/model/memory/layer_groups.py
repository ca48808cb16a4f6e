"""How full recomputation cuts the layers of a stage into regions whose input alone is kept."""

from __future__ import annotations

from typing import NamedTuple

from oomscope.config.schema import Config, RecomputeConfig


class LayerGroup(NamedTuple):
    """Consecutive layers of one stage that are run as one region."""

    layers: range
    recompute: bool


def layer_groups(recompute: RecomputeConfig, num_layers: int) -> list[LayerGroup]:
    """Cut the ``num_layers`` layers of one stage as full recomputation asks for.

    ``uniform`` makes checkpoints of ``recompute_num_layers`` layers (the last may be shorter); ``block`` makes one
    of each of the first ``recompute_num_layers`` layers and keeps the others whole
    (Megatron-Core ``recompute.py::checkpointed_forward``). Otherwise nothing is recomputed here.
    """
    size = recompute.recompute_num_layers or 0
    if recompute.recompute_granularity != "full" or size < 1:
        return [LayerGroup(range(num_layers), recompute=False)]
    if recompute.recompute_method == "uniform":
        starts = range(0, num_layers, size)
        return [LayerGroup(range(start, min(start + size, num_layers)), recompute=True) for start in starts]
    recomputed = min(size, num_layers)
    singles = [LayerGroup(range(index, index + 1), recompute=True) for index in range(recomputed)]
    return [*singles, LayerGroup(range(recomputed, num_layers), recompute=False)]


def recomputes_predictions(config: Config) -> bool:
    """Whether full recomputation runs the depths of multi-token prediction again: ``uniform`` does."""
    return config.recompute.recompute_granularity == "full" and config.recompute.recompute_method == "uniform"
