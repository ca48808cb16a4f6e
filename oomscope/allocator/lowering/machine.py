"""From a function to machine code for this processor, and from there to what Python can call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from oomscope.allocator.lowering.signature import Parameter, parameters_of, symbol_of
from oomscope.allocator.lowering.unit import Unit

OPTIMISED = 3
"""As in ``-O3``."""

_NUMBER = ctypes.c_int64
_ARRAY = np.ctypeslib.ndpointer(np.int64, ndim=1, flags="C_CONTIGUOUS")


def target() -> tuple[str, str, str]:
    """Return what machine code is made for: the kind of machine, the processor, and what this one can do."""
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def machine_code(entry: FunctionType) -> bytes:
    """Return an object file with ``entry`` and all functions that it reaches.

    Raises:
        SyntaxError: one of them does something that has no lowering.
    """
    module = llvm.parse_assembly(Unit(entry).assembly)
    module.verify()
    machine = _machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=OPTIMISED))
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


def loaded(code: bytes, entry: FunctionType) -> Callable[..., int]:
    """Return what calls ``entry`` in its machine code: with arrays of int64 where it takes lists."""
    parameters = parameters_of(entry)
    process = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    process.add_object_file(llvm.ObjectFileRef.from_data(code))
    process.finalize_object()
    kinds: list[Any] = [kind for each in parameters for kind in [_ARRAY, _NUMBER] * len(each.fields) or [_NUMBER]]
    function = ctypes.CFUNCTYPE(_NUMBER, *kinds)(process.get_function_address(symbol_of(entry)))

    def call(*arguments: Any) -> int:
        pairs = zip(parameters, arguments, strict=True)
        return int(function(*(word for parameter, argument in pairs for word in _words(parameter, argument))))

    call.process = process  # type: ignore[attr-defined]  # the code lives as long as this
    return call


def _words(parameter: Parameter, argument: Any) -> list[Any]:
    if not parameter.fields:
        return [argument]
    arrays = [argument] if parameter.fields == ("",) else argument
    return [word for array in arrays for word in (array, len(array))]


def _machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple, processor, features = target()
    kind = llvm.Target.from_triple(triple)
    return kind.create_target_machine(cpu=processor, features=features, opt=OPTIMISED, jit=True)
