"""Which tensor holds the bytes: a distributed tensor (torch's DTensor) has them in the part that this rank keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a DTensor that this rank keeps; any other tensor is its own."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part
