"""Tensors that a program fills part by part: ``y = torch.empty_like(x); y[..., :2] = a; y[..., 2:] = b``.

The card holds what is known of whole storages. Until all of a storage is assigned, the host keeps the parts that are
known of it. Any other change of the tensor ends that, as its version tells; what is written in between without one
(through ``.data``, or by a kernel of the program's own) is not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from oomscope import virtual
from oomscope.probe.recording.values.held_values import OutOfModes, is_followed, note_known
from oomscope.probe.recording.values.storages import size_of, start_of


class _Parts(NamedTuple):
    """What is known of a storage after an assignment, elements in their order."""

    address: int
    version: int
    numbers: torch.Tensor
    is_known: torch.Tensor


_parts = WeakTensorKeyDictionary()
"""Of tensors that are filled, without views of others."""


def version_of(tensor: object) -> int | None:
    """Return the version of a tensor that may be filled by parts; None for anything else."""
    return tensor._version if isinstance(tensor, torch.Tensor) and not tensor.is_inference() else None


def fill_part(tensor: torch.Tensor, version: int, assign: Callable[[torch.Tensor, bool], None]) -> None:
    """Note what an assignment to ``tensor`` on the card makes known; let the card hold its storage once all of it is.

    Args:
        tensor: after the assignment.
        version: of the tensor before it.
        assign: does the same to a tensor on the host: the values, or, where its second argument is true, true.
    """
    owner = tensor if tensor._base is None else tensor._base
    if not is_followed(tensor) or owner.dtype != tensor.dtype:
        return
    address, size = start_of(owner), size_of(owner)
    count = size // owner.itemsize
    with OutOfModes():
        before = _parts.get(owner)
        if before is None or (before.address, before.version) != (address, version):
            numbers = torch.zeros(count, dtype=owner.dtype, device="cpu")
            before = _Parts(address, version, numbers, torch.zeros(count, dtype=torch.bool, device="cpu"))
        for each, is_told in ((before.numbers, False), (before.is_known, True)):
            assign(each.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()), is_told)
        is_whole = bool(before.is_known.all())
    if is_whole:
        _parts.pop(owner, None)
        virtual.write_held(address, before.numbers.data_ptr(), size, virtual.Origin.COMPUTED)
        note_known(tensor)
    else:
        _parts[owner] = before._replace(version=owner._version)
