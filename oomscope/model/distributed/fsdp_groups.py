"""Which parameters Megatron-FSDP gathers and reduces as one, and where each lies in what is gathered.

Source: Megatron-Core ``distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py``, ``_get_parameter_groups`` and
``build_data_parallel_buffer_index``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from oomscope.model.distributed.param_and_grad_buffer import Span, is_expert


@dataclass
class ParameterGroup:
    """Parameters of one dtype, of one unit or of none, that share a bucket."""

    unit: int | None
    """The transformer layer that they belong to, counted on this rank; None outside of layers."""
    expert: bool
    dtype: torch.dtype
    params: list[nn.Parameter] = field(default_factory=list)

    @property
    def chunk(self) -> int:
        """Elements that shards are cut at multiples of: whole rows of every matrix."""
        chunk = row_of(self.params[0])
        for param in self.params[1:]:
            row = row_of(param)
            if param.numel() >= chunk and not (chunk % row == 0 and param.numel() % chunk == 0):
                chunk = math.lcm(chunk, row)
        return chunk


def row_of(param: torch.Tensor) -> int:
    """Return the elements of a row; grouped experts, [E, out, in] here, are matrices [out, in] each upstream."""
    return param.shape[-1] if param.ndim > 1 else 1


def parameter_groups(
    named: Iterable[tuple[nn.Parameter, int | None]],
    *,
    bucket_size: int | None = None,
    alone: Iterable[nn.Parameter] = (),
) -> list[ParameterGroup]:
    """Return the groups in the order of their first parameters, each with its longest rows first.

    Args:
        named: parameters in order of registration, with their units.
        bucket_size: elements after which a group outside of units is closed; None leaves it open.
        alone: parameters that share a bucket with no other.
    """
    kinds: dict[tuple[int | None, bool, torch.dtype], list[nn.Parameter]] = {}
    for param, unit in named:
        kinds.setdefault((unit, is_expert(param), param.dtype), []).append(param)
    separate = set(alone)
    groups: list[ParameterGroup] = []
    for (unit, expert, dtype), params in kinds.items():
        opened = ParameterGroup(unit, expert, dtype)
        for param in params:
            if param in separate:
                groups += [opened] if opened.params else []
                groups.append(ParameterGroup(unit, expert, dtype, [param]))
                opened = ParameterGroup(unit, expert, dtype)
                continue
            opened.params.append(param)
            is_full = bucket_size is not None and sum(p.numel() for p in opened.params) >= bucket_size
            if unit is None and is_full:
                groups.append(opened)
                opened = ParameterGroup(unit, expert, dtype)
        groups += [opened] if opened.params else []
    for group in groups:
        group.params.sort(key=row_of, reverse=True)
    return groups


def lay_out_group(numels: Sequence[int], *, chunk: int, shards: int | None) -> tuple[list[Span], int]:
    """Return the place of each parameter of ``numels`` elements in the bucket, and the elements of the bucket.

    A parameter begins at a multiple of ``chunk``, or ends where the next chunk begins if what the one before it left
    of its last chunk is enough for its own odd end. Parameters below a chunk fill such gaps, else they come last.

    Args:
        numels: of the parameters, in the order of the group.
        chunk: see :attr:`ParameterGroup.chunk`.
        shards: ranks that share the bucket: it ends at a multiple of ``shards * chunk``; None pads nothing.
    """
    places: dict[int, int] = {}
    whole = [index for index, numel in enumerate(numels) if numel >= chunk]
    small = [index for index, numel in enumerate(numels) if numel < chunk]
    end = 0
    while whole:
        index = whole.pop(0)
        places[index] = end
        gap = end + numels[index]
        odd = numels[index] % chunk
        end += -(-numels[index] // chunk) * chunk
        if not odd:
            continue
        space = chunk - odd
        partner = next((i for i in whole if 0 < numels[i] % chunk <= space), None)
        if partner is not None:
            whole.remove(partner)
            places[partner] = end - numels[partner] % chunk
            space -= numels[partner] % chunk
            end += numels[partner] // chunk * chunk
        for fragment in list(small):
            if numels[fragment] <= space:
                places[fragment] = gap
                gap += numels[fragment]
                space -= numels[fragment]
                small.remove(fragment)
    for fragment in small:
        places[fragment] = end
        end += numels[fragment]
    spans = [Span(places[index], places[index] + numel) for index, numel in enumerate(numels)]
    return spans, end if shards is None else -(-end // (shards * chunk)) * shards * chunk
