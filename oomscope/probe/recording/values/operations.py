"""Replaces operations of torch where they are dispatched to the card.

There an operation is seen once, whoever calls it: the program, autograd, C++. Its kernel is called from ours, with what
it allocates. A ``TorchDispatchMode`` would be simpler, but autograd adds up gradients out of place where one is active,
and Dynamo compiles nothing. Below torch 2.10, which does not tell an operation's kernel, nothing is replaced.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from oomscope.probe.recording.compiled import set_eval_frame

Function = Callable[..., Any]
CARD: Final = "CUDA"
SPARSE_CARD: Final = "SparseCUDA"


@contextmanager
def operations_replaced(replacements: Mapping[str, Function], key: str = CARD) -> Iterator[None]:
    """Run other functions in place of operations of ``aten`` on the card while the block runs.

    Args:
        replacements: by the names of operations; each is given the operation, then the operation's arguments.
        key: of dispatch.
    """
    with ExitStack() as libraries:
        replace(libraries, {f"aten::{name}": function for name, function in replacements.items()}, key)
        yield


def replace(libraries: ExitStack, replacements: Mapping[str, Function], key: str = CARD) -> None:
    """Do the same until ``libraries`` is closed, with names such as ``aten::add.Tensor``."""
    get_kernel = getattr(torch.library, "get_kernel", None)
    if get_kernel is None:
        return
    ours: dict[str, torch.library.Library] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch up to 2.11 warns of a kernel that is overridden on purpose
        for name, function in replacements.items():
            namespace, _, rest = name.partition("::")
            if namespace not in ours:
                ours[namespace] = torch.library.Library(namespace, "IMPL")
                libraries.callback(ours[namespace]._destroy)
            called = _with_kernel(function, get_kernel(name, key), is_torchs=namespace == "aten")
            ours[namespace].impl(rest, called, key, with_keyset=True, allow_override=True)


def _with_kernel(function: Function, kernel: Any, *, is_torchs: bool) -> Function:
    def called(keys: Any, *args: Any, **kwargs: Any) -> Any:
        compiling = set_eval_frame(None)  # Dynamo compiles nothing of it
        try:
            return function(functools.partial(kernel.call_boxed, keys), *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - raised again
            del args, kwargs  # a caught error must not keep the operands, as our frames would
            raise error.with_traceback(None if is_torchs else error.__traceback__)  # noqa: B904 - the same error
        finally:
            set_eval_frame(compiling)

    return called


def names_on(key: str) -> set[str]:
    """Return the names of all operations that have a kernel for this key."""
    number = getattr(torch._C.DispatchKey, key)
    names = torch._C._dispatch_get_all_op_names()
    return {name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, number)}


def operation_of(name: str) -> Any:
    """Return the operation of a name such as ``aten::add.Tensor``; None where Python cannot call it."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except (AttributeError, RuntimeError):
        return None


class OnHost:
    """Lets a block of a replaced operation work on the host: nothing follows it, neither autograd nor a mode.

    Selective activation checkpointing counts the operations that it sees. A class: Dynamo would compile the frames of
    contextlib.
    """

    def __enter__(self) -> None:
        """Leave autograd and the modes."""
        self._below = torch._C._AutoDispatchBelowAutograd()
        self._below.__enter__()
        self._left = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else None
        if self._left is not None:
            self._left.__enter__()

    def __exit__(self, *error: object) -> None:
        """Enter them again."""
        if self._left is not None:
            self._left.__exit__(None, None, None)
        self._below.__exit__(None, None, None)
