"""Puts other functions in the place of torch's for the length of a block."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import MethodType
from typing import Any, Final

import torch
from torch.autograd import Variable

from oomscope.capture.arming import AroundImport

_ABSENT: Final = object()
Place = tuple[Any, str, Any]
"""Owner, name and value of an attribute."""


@contextmanager
def replaced(places: Iterable[Place]) -> Iterator[None]:
    """Set attributes while the block runs, and restore them afterwards.

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


class Method:
    """Stands for a method of ``torch.Tensor``, and is equal to it.

    torch hands what stands at ``torch.Tensor`` to ``__torch_function__`` of a subclass, which compares it with what
    stands there, or looks it up in a table that was made before (of what a parameter without a shape may do, or what
    keeps an image an image).

    Args:
        function: what is called.
        original: what it stands for, or another that stands for the same.
    """

    def __init__(self, function: Callable[..., Any], original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.__qualname__ = function.__qualname__
        self._function = function
        self.original: Callable[..., Any] = original.original if isinstance(original, Method) else original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        """Bind the function to a tensor."""
        return self if tensor is None else MethodType(self._function, tensor)

    def __eq__(self, other: object) -> bool:
        """Whether ``other`` is torch's own method, or stands for it."""
        return bool(self.original == (other.original if isinstance(other, Method) else other))

    def __hash__(self) -> int:
        """Return the hash of torch's own method."""
        return hash(self.original)

    def __reduce__(self) -> str:
        """Return its name, by which it is pickled."""
        return self.__qualname__


def backward_through(run: Callable[..., Any]) -> AbstractContextManager[None]:
    """Let ``run`` stand for ``run_backward`` of torch's engine, with which torch and Megatron-Core start backward."""

    def run_backward(
        tensors: Any, grad_tensors: Any, keep_graph: bool, create_graph: bool, *args: Any, **kwargs: Any
    ) -> Any:
        """Pass by position what :func:`creates_graph` reads; Megatron-Core gives all by name."""
        return run(tensors, grad_tensors, keep_graph, create_graph, *args, **kwargs)

    # A subclass: its other methods are torch's, and torch.compile recognises it.
    engine = type("FollowedEngine", (torch._C._ImperativeEngine,), {"run_backward": staticmethod(run_backward)})
    return replaced([(Variable, "_execution_engine", engine())])


def creates_graph(arguments: Sequence[Any]) -> bool:
    """Whether a backward pass that is started with these arguments is to be differentiated itself."""
    return len(arguments) > 3 and bool(arguments[3])
