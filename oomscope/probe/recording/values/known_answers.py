"""Answers that operations of C++ read back from a virtual card, and values for the results of operations.

``x[mask]``, ``masked_select`` and ``where(mask)`` count on the card, read the count, and allocate as much. All of them
call ``aten::nonzero``, also in backward, from C++. Where the card holds the mask, that operation runs as it is, the
count that it reads is the host's, and its result holds what the host found. So it is with ``bincount``, ``unique``,
``coalesce`` and ``repeat_interleave``, which read how much they allocate, and with ``linalg``'s question whether a
factorisation failed, whose status the card holds as zero. ``x[indices]`` and ``copy_`` read nothing; they are here for
what their results hold, since ``Tensor.__getitem__`` can't be replaced (``known_integers``), and C++ copies before it
reads ``x[:, 0]``.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch

from oomscope import virtual
from oomscope.probe.recording.values.held_values import (
    HeldOperands,
    is_followed,
    is_on_host,
    write_shortened,
    write_values,
)
from oomscope.probe.recording.values.known_integers import Function
from oomscope.probe.recording.values.storages import start_of


@contextmanager
def operations_replaced(replacements: Mapping[str, Function]) -> Iterator[None]:
    """Run other functions in place of operations of ``aten`` on the card while the block runs.

    Each is given the operation, then the operation's arguments. Below torch 2.10, which does not tell an operation's
    kernel, nothing is replaced.
    """
    get_kernel = getattr(torch.library, "get_kernel", None)
    if get_kernel is None:
        yield
        return

    def called(replacement: Function, kernel: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(functools.partial(kernel.call_boxed, keys), *args, **kwargs)

    library = torch.library.Library("aten", "IMPL")
    for name, replacement in replacements.items():
        key = "SparseCUDA" if name in _OF_SPARSE else "CUDA"
        operation = functools.partial(called, replacement, get_kernel(f"aten::{name}", key))
        library.impl(name, operation, key, with_keyset=True, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def answers_are_known() -> AbstractContextManager[None]:
    """Answer what these operations read back while the block runs."""
    return operations_replaced(_ANSWERING)


def _nonzero(run: Function, mask: torch.Tensor) -> torch.Tensor:
    kept = HeldOperands()
    places = _places_in(mask, kept)
    if places is None:
        return run(mask)  # type: ignore[no-any-return]
    with virtual.expecting(struct.pack("i", len(places))):
        result: torch.Tensor = run(mask)
    kept.put_back()
    write_values(result.T, places.T.contiguous())  # the card writes one dimension after the other
    return result


def _index(run: Function, tensor: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    kept = HeldOperands()
    on_card = [each for each in (tensor, *indices) if each is not None and each.is_cuda]
    is_known = all(is_followed(each) and kept.take(each) for each in on_card)
    result: torch.Tensor = run(tensor, indices)
    if is_known:
        kept.put_back()
        chosen = [each if each is None or not each.is_cuda else kept.on_host(each) for each in indices]
        write_values(result, torch.ops.aten.index(kept.on_host(tensor), chosen))
    return result


def _copy(run: Function, to: torch.Tensor, source: torch.Tensor, *how: Any) -> torch.Tensor:
    """Run ``copy_``: with it C++ makes a tensor contiguous, or of another type, before it reads it.

    All copies from and to the host are made by it too; the card holds small ones from there by itself. C++ may go on to
    write into its own copies on the card, and versions do not tell: their values are not noted.
    """
    kept = HeldOperands(are_noted=False)
    is_known = is_followed(source) and kept.take(source)
    if not is_followed(to):
        kept.put_back()
        run(to, source, *how)
        return to
    run(to, source, *how)
    if (is_known or is_on_host(source)) and start_of(to) not in kept.addresses:
        kept.put_back()
        if not virtual.is_held(to.data_ptr(), to.nbytes):
            values = kept.on_host(source) if is_known else source.detach()
            write_values(to, values.to(to.dtype).expand(to.shape), are_noted=not is_known)
    return to


def _resize(run: Function, tensor: torch.Tensor, *how: Any, **more: Any) -> torch.Tensor:
    """Run ``resize_``, which counts as a change of the tensor, though it changes no byte of memory that stays."""
    kept = HeldOperands()
    is_known = is_followed(tensor) and kept.take(tensor)
    run(tensor, *how, **more)
    if is_known and start_of(tensor) in kept.addresses:
        kept.put_back()
    return tensor


def _bincount(
    run: Function, numbers: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> torch.Tensor:
    kept = HeldOperands()
    if not is_followed(numbers) or not numbers.numel() or not kept.take(numbers):
        return run(numbers, weights, minlength)  # type: ignore[no-any-return]
    on_host = kept.on_host(numbers)
    asked = [on_host.max()] if numbers.dtype is torch.uint8 else [on_host.min(), on_host.max()]
    with virtual.expecting(*map(_bytes_of, asked)):
        result: torch.Tensor = run(numbers, weights, minlength)
    kept.put_back()
    if weights is None:
        write_values(result, torch.bincount(on_host, minlength=minlength))
    return result


def _unique(run: Function, numbers: torch.Tensor, *how: Any, on_host: Function, counts_true: bool = False) -> Any:
    """Run ``_unique2``, which reads of booleans how many are true, or what reads how many numbers there are."""
    kept = HeldOperands()
    if not is_followed(numbers) or not numbers.numel() or not kept.take(numbers):
        return run(numbers, *how)
    expected = on_host(kept.on_host(numbers), *how)
    dim = next((each for each in how if type(each) is int), 0)
    is_counted = counts_true and numbers.dtype is torch.bool
    count = int(kept.on_host(numbers).sum()) if is_counted else expected[0].shape[dim]
    with virtual.expecting(struct.pack("q", count), struct.pack("i", count)):
        result = run(numbers, *how)
    kept.put_back()
    for one, value in zip(result, expected, strict=True):
        if one is not None:  # the kernel for bool leaves undefined what was not asked for
            write_shortened(one, value)
    return result


def _coalesce(run: Function, tensor: torch.Tensor) -> torch.Tensor:
    """Run ``_coalesce``, which reads how many indices of a sparse tensor there are without repetitions."""
    kept = HeldOperands()
    indices = tensor._indices()
    if not is_followed(indices) or not kept.take(indices):
        return run(tensor)  # type: ignore[no-any-return]
    expected = torch.unique(kept.on_host(indices), dim=1)
    count = expected.shape[1]
    with virtual.expecting(struct.pack("i", count), struct.pack("q", count)):
        result: torch.Tensor = run(tensor)
    kept.put_back()
    write_values(result._indices(), expected)
    return result


def _repeat_interleave(run: Function, repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    kept = HeldOperands()
    if not is_followed(repeats) or not kept.take(repeats):
        return run(repeats, output_size=output_size)  # type: ignore[no-any-return]
    on_host = kept.on_host(repeats)
    expected = torch.repeat_interleave(on_host)
    lowest = [on_host.min()] if len(on_host) else []  # before torch 2.12 it asks whether none is negative
    with virtual.expecting(struct.pack("q", len(expected)), *map(_bytes_of, lowest), struct.pack("?", True)):
        result: torch.Tensor = run(repeats, output_size=output_size)
    kept.put_back()
    write_values(result, expected)
    return result


def _bytes_of(number: torch.Tensor) -> bytes:
    return bytes(number.reshape(1).view(torch.uint8).tolist())


def _linalg_check_errors(run: Function, info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    kept = HeldOperands()
    if not is_followed(info) or not kept.take(info):
        run(info, api_name, is_matrix=is_matrix)
        return
    with virtual.expecting(struct.pack("?", bool(kept.on_host(info).any()))):
        run(info, api_name, is_matrix=is_matrix)
    kept.put_back()


def _places_in(mask: torch.Tensor, kept: HeldOperands) -> torch.Tensor | None:
    """Return where ``mask``, which is then among the ``kept``, is set, one row each; None where that is not known."""
    if not is_followed(mask) or not kept.take(mask):
        return None
    places: torch.Tensor = kept.on_host(mask).nonzero()
    return places


_ANSWERING: Final[dict[str, Callable[..., Any]]] = {
    "copy_": _copy,
    "nonzero": _nonzero,
    "index.Tensor": _index,
    "_unique2": functools.partial(_unique, on_host=torch.ops.aten._unique2, counts_true=True),
    "unique_consecutive": functools.partial(_unique, on_host=torch.ops.aten.unique_consecutive),
    "unique_dim": functools.partial(_unique, on_host=torch.ops.aten.unique_dim),
    "bincount": _bincount,
    "_coalesce": _coalesce,
    "resize_": _resize,
    "repeat_interleave.Tensor": _repeat_interleave,
    "_linalg_check_errors": _linalg_check_errors,
}
"""Of operations of aten, what runs in their place."""
_OF_SPARSE: Final = frozenset({"_coalesce"})
"""Of them, those of sparse tensors."""
