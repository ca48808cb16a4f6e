"""Runs scripts of tests on a card of which the host computes values."""

from __future__ import annotations

import textwrap

from tests.unit.virtual.on_card import on_card

_BEGIN = """
from oomscope.probe.recording.values.known_values import values_are_computed, values_are_followed
d = 'cuda'
"""
_STRANGER = """
import ctypes
cudart, address = ctypes.CDLL(None), ctypes.c_void_p
code, host = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
cudart.__cudaRegisterFatBinary.restype = address
cudart.__cudaRegisterFunction(address(cudart.__cudaRegisterFatBinary(code)), host, None, b"kernel", 0, *[None] * 5)

class Size(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]

def launch_of_a_stranger(tensor):
    pointer, one = address(tensor.data_ptr()), Size(1, 1, 1)
    arguments = (address * 1)(ctypes.addressof(pointer))
    assert cudart.cudaLaunchKernel(host, one, one, arguments, ctypes.c_size_t(0), None) == 0
"""
"""A kernel that an extension registered, and its launch."""
_LABELS = "labels = torch.tensor([[-100, 5, 6, -100], [7, -100, -100, -100]], device=d)\n"


def followed(script: str, **settings: object) -> object:
    """Run a script on a card whose values are followed, with ``labels``; return what it said."""
    return _run("values_are_followed()", _STRANGER + _LABELS, script, settings)


def computed(script: str, **settings: object) -> object:
    """Run a script on a card whose values the host computes, with ``refused``; return what it said."""
    return _run("values_are_computed(refused)", "refused = {}\n", script, {"computed": 1} | settings)


def _run(within: str, before: str, script: str, settings: dict[str, object]) -> object:
    lines = textwrap.indent(script.strip(), "    ")
    return on_card(f"{_BEGIN}{before}with {within}:\n{lines}\n", preamble="torch", **settings)
