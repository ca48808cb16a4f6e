"""Lets a program do without torch's compiler until it compiles something.

A program's first optimizer imports the compiler, only to tell it what shall never be compiled: half of the time that a
small program takes. Where nothing is compiled, nobody needs to be told.
"""

from __future__ import annotations

import functools
import gc
import importlib
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final
from weakref import WeakSet

from oomscope.capture.arming import AroundImport

_COMPILER: Final = "torch._dynamo"
_STAND_IN: Final = "torch._compile"
"""Module that torch always has. It gets what the functions below need of the compiler."""
_DECORATORS: Final = ((_STAND_IN, "_disable_dynamo"), ("torch.optim.optimizer", "_use_grad_for_differentiable"))
"""Modules, and their decorators that make functions which import the compiler when they are called."""
_KEPT_ANSWER: Final = "__dynamo_disable"
"""The attribute of a function where torch keeps what the compiler made of it."""


def import_compiler_late() -> None:
    """Let the functions of these decorators ask the stand-in until something else imports the compiler.

    From then on each is as torch made it. To be called before torch is imported.
    """
    functions = _Functions()
    for module, name in _DECORATORS:
        AroundImport(module, then=functools.partial(functions.follow, module, name)).install()
    AroundImport(_COMPILER, before=functions.restore, then=lambda: None).install()


class _Functions:
    """The functions that ask the stand-in."""

    def __init__(self) -> None:
        self._by_code: dict[CodeType, WeakSet[FunctionType]] = {}
        self._answered: WeakSet[FunctionType] = WeakSet()
        self._collected = False

    def follow(self, module: str, name: str) -> None:
        """Let what the decorator makes from now on ask the stand-in."""
        answers = {"disable": self._disable, "graph_break": lambda *_: None, "__getattr__": _of_the_compiler}
        vars(sys.modules[_STAND_IN]).update(answers)
        decorator: Callable[..., Any] = getattr(sys.modules[module], name)

        @functools.wraps(decorator)
        def decorate(*args: Any, **kwargs: Any) -> Any:
            made = decorator(*args, **kwargs)
            if _COMPILER not in sys.modules and isinstance(made, FunctionType):
                code = made.__code__
                made.__code__ = _asking_the_stand_in(code)
                self._by_code.setdefault(code, WeakSet()).add(made)
            return made

        setattr(sys.modules[module], name, decorate)

    def restore(self) -> None:
        """Make each of them what torch made it."""
        for code, functions in self._by_code.items():
            for function in functions:
                function.__code__ = code
        for function in self._answered:
            if _KEPT_ANSWER in vars(function):
                delattr(function, _KEPT_ANSWER)

    def _disable(self, function: FunctionType, *_: Any, **__: Any) -> FunctionType:
        if not self._collected and gc.isenabled():
            gc.collect()  # as the import would: it makes 130,000 objects, and cycles may hold memory of the card
            self._collected = True
        self._answered.add(function)
        return function


@functools.cache
def _asking_the_stand_in(code: CodeType) -> CodeType:
    """Return ``code`` with the stand-in wherever it imports or names the compiler."""
    child = {whole: whole.rpartition(".")[2] for whole in (_COMPILER, _STAND_IN)}
    names = {_COMPILER: _STAND_IN, child[_COMPILER]: child[_STAND_IN]}
    return code.replace(co_names=tuple(names.get(name, name) for name in code.co_names))


def _of_the_compiler(name: str) -> Any:
    if name.startswith("__"):  # as the import system asks of every module
        raise AttributeError(name)
    return getattr(importlib.import_module(_COMPILER), name)
