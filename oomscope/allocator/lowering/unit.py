"""All functions that one reaches, as one module of LLVM's, so that it can inline and simplify across them."""

from __future__ import annotations

from types import FunctionType

from llvmlite import ir

from oomscope.allocator.lowering.signature import symbol_of, type_of
from oomscope.allocator.lowering.statements import lower


class Unit:
    """The module with ``entry``, which alone can be called from outside.

    Raises:
        SyntaxError: a function does something that has no lowering.
    """

    def __init__(self, entry: FunctionType) -> None:
        self._module = ir.Module(name=entry.__module__)
        self._functions: dict[FunctionType, ir.Function] = {}
        self._waiting: list[FunctionType] = []
        self._declared(entry)
        while self._waiting:
            source = self._waiting.pop()
            lower(source, self._functions[source], self._declared)
        for source, function in self._functions.items():
            if source is not entry:
                function.linkage = "internal"

    @property
    def assembly(self) -> str:
        """The module as LLVM's assembly."""
        return str(self._module)

    def _declared(self, source: FunctionType) -> ir.Function:
        """Return what ``source`` is in the module, to be filled later where it is called for the first time."""
        if source not in self._functions:
            self._functions[source] = ir.Function(self._module, type_of(source), symbol_of(source))
            self._waiting.append(source)
        return self._functions[source]
