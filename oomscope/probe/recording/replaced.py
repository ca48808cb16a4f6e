"""Puts other functions in the place of torch's for the length of a block."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

import torch
from torch.autograd import graph
from torch.overrides import handle_torch_function

from oomscope.capture.arming import AroundImport

_ABSENT: Final = object()
Place = tuple[Any, str, Any]
"""Owner, name and value of an attribute."""


@contextmanager
def replaced(places: Iterable[Place]) -> Iterator[None]:
    """Set attributes while the block runs; afterwards all stand as they stood before.

    What a class inherits is looked up in its bases again.
    """
    before: list[Place] = []
    for owner, name, value in places:
        before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def replaced_in(module: str, places: Callable[[Any], Iterable[Place]]) -> Iterator[None]:
    """Replace what ``places`` returns for the module of that name, as soon as a program has imported it."""
    with ExitStack() as patched:

        def patch() -> None:
            patched.enter_context(replaced(places(sys.modules[module])))

        hook = AroundImport(module, then=patch)
        if module in sys.modules:
            patch()
        else:
            hook.install()
        try:
            yield
        finally:
            if hook in sys.meta_path:
                sys.meta_path.remove(hook)


def method(replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Return what replaces a method of ``torch.Tensor``, which ``replacement`` wraps.

    torch hands what stands at ``torch.Tensor`` to ``__torch_function__`` of a subclass, which looks for torch's own in
    tables (of what a parameter without a shape may do, or what keeps an image an image): it is given that.
    """
    original = inspect.unwrap(replacement)
    plain = (torch.Tensor, torch.nn.Parameter)

    @functools.wraps(replacement)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_own = type(self) in plain or type(self).__torch_function__ is torch._C._disabled_torch_function_impl
        if is_own or torch.compiler.is_compiling():
            return replacement(self, *args, **kwargs)
        return handle_torch_function(original, (self,), self, *args, **kwargs)

    return called


def backward_through(run: Callable[..., Any]) -> AbstractContextManager[None]:
    """Let ``run`` stand for the start of every backward pass; torch.autograd holds that under two names."""
    return replaced((owner, "_engine_run_backward", run) for owner in (graph, torch.autograd))


def creates_graph(arguments: Sequence[Any]) -> bool:
    """Whether a backward pass that is started with these arguments is to be differentiated itself."""
    return len(arguments) > 3 and bool(arguments[3])
