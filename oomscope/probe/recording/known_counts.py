"""How many elements of a mask are set, where the host can count them on a virtual card.

``x[mask]``, ``masked_select`` and ``where(mask)`` count on the card, read the count, and allocate as much. All of them
call ``aten::nonzero``, also in backward, from C++. Where the card holds the mask, that operation runs as it is, with
what it allocates, the count that it reads is the host's, and its result holds what the host found.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from oomscope import virtual
from oomscope.probe.recording.known_integers import HeldOperands, is_followed, write_values

_OPERATION: Final = "aten::nonzero"
_PLACES: Final = "_oomscope_places"


@contextmanager
def counts_are_known() -> Iterator[None]:
    """Count such elements on the host while the block runs on a virtual card.

    Below torch 2.10, which does not tell an operation's kernel, they stay unknown.
    """
    get_kernel = getattr(torch.library, "get_kernel", None)
    if not virtual.is_loaded() or get_kernel is None:
        yield
        return
    kernel = get_kernel(_OPERATION, "CUDA")

    def nonzero(keys: Any, mask: torch.Tensor) -> torch.Tensor:
        kept = HeldOperands()
        places = _places_in(mask, kept)
        if places is None:
            return kernel.call_boxed(keys, mask)  # type: ignore[no-any-return]
        with virtual.expecting(struct.pack("i", len(places))):
            result: torch.Tensor = kernel.call_boxed(keys, mask)
        kept.put_back()
        write_values(result.T, places.T.contiguous())  # the card writes one dimension after the other
        return result

    library = torch.library.Library("aten", "IMPL")
    library.impl("nonzero", nonzero, "CUDA", with_keyset=True, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def _places_in(mask: torch.Tensor, kept: HeldOperands) -> torch.Tensor | None:
    """Return where ``mask``, which is then among the ``kept``, is set, one row each; None where that is not known.

    It is remembered with the mask, since backward asks again, and kernels may have been given the mask in between.
    """
    if mask.is_inference():
        return None
    if is_followed(mask) and kept.take(mask):
        setattr(mask, _PLACES, (kept.on_host(mask).nonzero(), mask._version))
    places, version = getattr(mask, _PLACES, (None, None))
    return places if version == mask._version else None
