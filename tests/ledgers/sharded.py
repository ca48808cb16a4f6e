"""What torch's FSDP2 keeps of a model for good, and what it gathers while a layer runs, in closed form.

Exact where the ranks divide the rows of every parameter; FSDP2 rounds each up to whole rows otherwise. Read off the
order in which torch works (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py), which tests hold on a recording:
the buffer of an all-gather lives until it has been copied out of (in torch 2.13 until the next one has), the input of
a reduce-scatter until the next one is filled, and a backward gathers the next unit before its own.
"""

from __future__ import annotations

from oomscope.config.schema import Config
from oomscope.model.cost.parameters import element_bytes, layer_parameters, stage_parameters
from tests.ledgers.layer import Ledger


def gathered_for_the_model(config: Config) -> int:
    """Return the bytes that are gathered from the first unit's forward to the last one's: what is in no unit.

    That is the final norm, and with the local implementation the output layer, which upstream does not wrap.
    """
    head = stage_parameters(config, 0, pre_process=False, post_process=True)
    vocabulary = config.padded_vocab_size * config.model.hidden_size // config.parallel.tensor_model_parallel_size
    return element_bytes(config) * (head if config.model.transformer_impl == "local" else head - vocabulary)


def shard_ledger(config: Config) -> Ledger:
    """Return the bytes that one rank holds from step to step; gradients are the last step's, as the update left them.

    In 16 bits those are fp32 copies, and the gradients that backward makes, ``gradients``, are gone by then.
    """
    element = element_bytes(config)
    parameters = stage_parameters(config, config.model.num_layers, pre_process=True, post_process=True)
    shard = parameters // (config.parallel.data_parallel_size * config.parallel.context_parallel_size)
    return {
        "parameters": element * shard,
        "gradients": element * shard,
        "gradients_of_update": 4 * shard,
        "master_weights": 0 if element == 4 else 4 * shard,
        "moments": 8 * shard,
    }


def gathered_in_forward(config: Config, layer: int = 1) -> Ledger:
    """Return what ``layer``, behind another like it, has gathered when its forward begins.

    With ``torch_fsdp2_reshard_after_forward`` off, all layers before it are still gathered besides.
    """
    unit = element_bytes(config) * layer_parameters(config, layer)
    return {"model": gathered_for_the_model(config), "gathered_parameters": unit, "gathering": unit}


def gathered_in_backward(config: Config, layer: int = 1) -> Ledger:
    """Return what exists at the end of the backward of ``layer``, between others like it, besides shards.

    Without resharding nothing is gathered again; the parameters are those of all layers up to it.
    """
    unit = element_bytes(config) * layer_parameters(config, layer)
    resharded = config.parallel.torch_fsdp2_reshard_after_forward
    return {
        "model": gathered_for_the_model(config),
        "gathered_parameters": unit,
        "gathering": unit if resharded else 0,
        "reducing": unit,
        "whole_gradients": unit,
    }
