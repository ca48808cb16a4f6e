"""The section ``parallel``: how ranks share the model and the batch, and layouts such as ``Et*3|(tt|)*6L``.

In a layout ``E`` is the embedding, ``t`` a transformer layer, ``m`` one of multi-token prediction, ``L`` the loss with
the final norm and the output layer; ``|`` ends a stage, ``x*n`` and ``(…)*n`` repeat, commas say nothing. Stages are
virtual: number c·p + r is model chunk c of pipeline rank r (Megatron-Core ``pipeline_parallel_layer_layout.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from oomscope.config.schema.section import Count, Section
from oomscope.printable import quoted

_TERM = re.compile(r"\((?P<group>[^()]+)\)\*(?P<groups>\d+)|(?P<sign>[EtmL|])(?:\*(?P<signs>\d+))?")
_SIGNS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_LONGEST = 65_536
"""Signs of a layout; no model has as many layers."""


@lru_cache
def stages_of(layout: str) -> tuple[str, ...]:
    """Return the stages of a layout, each as its signs: ``Et*2|tL`` has ``Ett`` and ``tL``.

    Raises:
        ValueError: it is no layout; the message says where it goes wrong.
    """
    return tuple(_unrolled(layout.replace(",", "")).split("|"))


def _unrolled(text: str) -> str:
    parts: list[str] = []
    size = 0
    for term in _terms(text):
        of_group = term["group"] is not None
        part = _unrolled(term["group"]) if of_group else term["sign"]
        times = int(term["groups" if of_group else "signs"] or 1)
        size += len(part) * times
        if size > _LONGEST:
            raise ValueError(f"it has more than {_LONGEST} characters")
        parts.append(part * times)
    return "".join(parts)


def _terms(text: str) -> Iterator[re.Match[str]]:
    position = 0
    while position < len(text):
        term = _TERM.match(text, position)
        if term is None:
            raise ValueError(f"at {quoted(text[position : position + 12])}: write E, t, m, L and |, x*n or (...)*n")
        yield term
        position = term.end()


def _written(value: Any) -> Any:
    """Return a layout as text, also where it is a list of stages, each a list of names such as ``decoder``.

    Raises:
        ValueError: it is no layout.
    """
    if isinstance(value, list | tuple):
        value = "|".join(map(_written_stage, value))
    if isinstance(value, str):
        stages_of(value)
    return value


def _written_stage(stage: Any) -> str:
    if not isinstance(stage, list | tuple):
        raise ValueError("a layout is text such as Et*3|t*2L, or a list of stages, each a list of layers")
    names = [str(layer).strip().lower() for layer in stage]
    for name in names:
        if name not in _SIGNS:
            raise ValueError(f"{quoted(name)} is none of {', '.join(_SIGNS)}")
    return "".join(_SIGNS[name] for name in names)


StageLayout = Annotated[
    str,
    BeforeValidator(_written),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^[EtmL|(),*\d]+$"},
                {"type": "array", "items": {"type": "array", "items": {"enum": list(_SIGNS)}}},
            ],
            "format": "layout",
        }
    ),
]
"""Text that :func:`stages_of` reads."""


class ParallelConfig(Section):
    """Parallelism (Megatron-Core ``ModelParallelConfig``)."""

    tensor_model_parallel_size: Count = 1
    """Ranks that share each matrix (TP)."""
    sequence_parallel: bool = False
    """Split norms, dropouts and the residual stream along the sequence over the TP group (SP)."""
    tp_comm_overlap: bool = False
    """Send in pieces while Transformer Engine multiplies (userbuffers, which lie outside the allocator)."""
    pipeline_model_parallel_size: Count = 1
    """Pipeline stages (PP)."""
    virtual_pipeline_model_parallel_size: Count | None = None
    """Model chunks a pipeline rank holds (VPP): the interleaved schedule, which keeps more microbatches in flight."""
    num_layers_per_virtual_pipeline_stage: Count | None = None
    """Layers of a model chunk, in place of the number of chunks."""
    microbatch_group_size_per_vp_stage: Count | None = None
    """Microbatches that a chunk takes in a row before the next chunk's turn; null means pipeline_model_parallel_size.
    Each one more keeps v - 1 more chunks in flight."""
    num_layers_in_first_pipeline_stage: Count | None = None
    """Layers of the first stage, over all its chunks; null means an even share."""
    num_layers_in_last_pipeline_stage: Count | None = None
    """Layers of the last stage, over all its chunks; null means an even share."""
    account_for_embedding_in_pipeline_split: bool = False
    """Count the embedding as a layer when layers are shared out: the first chunk gets one less."""
    account_for_loss_in_pipeline_split: bool = False
    """Count the loss as a layer when layers are shared out: the last chunk gets one less."""
    pipeline_model_parallel_layout: StageLayout | None = None
    """What each stage holds: E embedding, t a layer, L loss, | between stages, x*n and (...)*n repeat, as in
    Et*3|(tt|)*6L; or a list of stages, each a list of embedding, decoder, loss. There are p stages for each model
    chunk."""
    context_parallel_size: Count = 1
    """Ranks that share each sequence (CP)."""
    cp_comm_type: Literal["p2p", "a2a", "all_gather", "a2a+p2p"] = "p2p"
    """How attention sees the other ranks' tokens: p2p passes keys and values round a ring, a2a exchanges heads for
    tokens, all_gather fetches all keys and values; a2a+p2p exchanges heads among neighbours and passes keys and values
    round rings between those groups."""
    hierarchical_context_parallel_sizes: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """With a2a+p2p, the ranks that exchange heads and those of a ring; their product is context_parallel_size."""
    expert_model_parallel_size: Count = 1
    """Ranks that share the experts of a layer (EP)."""
    expert_tensor_parallel_size: Count | None = None
    """TP inside an expert; null means tensor_model_parallel_size."""
    data_parallel_size: Count = 1
    """Replicas (DP). The world has TP * PP * CP * DP ranks."""
    use_tp_pp_dp_mapping: bool = False
    """Number ranks along the pipeline before the replicas; else replicas come before stages."""
    use_torch_fsdp2: bool = False
    """Shard parameters, gradients and states over the data-parallel ranks with torch's fully_shard."""
    torch_fsdp2_reshard_after_forward: bool = True
    """With use_torch_fsdp2, drop a unit's gathered parameters after its forward, and gather them again for backward."""
    use_megatron_fsdp: bool = False
    """Shard them with Megatron-FSDP instead, which has buckets of its own and a transformer layer as its unit."""
    data_parallel_sharding_strategy: Literal["no_shard", "optim", "optim_grads", "optim_grads_params"] = "no_shard"
    """What Megatron-FSDP shards: nothing, main weights and moments, main gradients too, or parameters too. The
    distributed optimizer, which it always comes with, adds nothing to that."""
    suggested_communication_unit_size: Count | None = None
    """Elements of whole gradients that may wait with Megatron-FSDP; parameters are gathered half as far ahead. null
    means 10^9, or two units with optim_grads_params if those are more."""
    fsdp_double_buffer: bool = False
    """Let Megatron-FSDP gather and reduce units in two buffers that stay; not modelled."""
    megatron_fsdp_main_grads_dtype: Literal["fp32", "bf16", "fp16", "auto"] = "auto"
    """Dtype of Megatron-FSDP's main gradients; auto means that of the parameters."""
    megatron_fsdp_grad_comm_dtype: Literal["fp32", "bf16", "fp16", "auto"] = "auto"
    """Dtype in which Megatron-FSDP reduces gradients; auto means that of the main gradients."""
    overlap_p2p_comm: bool | None = None
    """With model chunks, send and receive while the next pass runs; false, between pairs of passes, where no buffer
    waits during a backward. null means Megatron-LM's choice: true."""
    batch_p2p_comm: bool | None = None
    """Post sends and receives as one batch; changes no bytes that torch allocates. null means Megatron-LM's choice:
    the opposite of overlap_p2p_comm."""
    deallocate_pipeline_outputs: bool = True
    """Free a stage's output once it has been sent (Megatron-Core's own default is false; Megatron-LM and
    Megatron-Bridge always turn it on)."""

    defer_embedding_wgrad_compute: bool = False
    """On the last stage, compute the output layer's weight gradient once the pipeline drains: inputs and gradients of
    the logits are kept until then."""
    wgrad_deferral_limit: int = Field(default=0, ge=0)
    """Microbatches of a step for which it is put off, the first ones; 0 means all."""

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return (
            self.tensor_model_parallel_size
            * self.pipeline_model_parallel_size
            * self.context_parallel_size
            * self.data_parallel_size
        )
