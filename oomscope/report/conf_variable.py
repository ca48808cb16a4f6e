"""Under which name a torch reads the allocator's settings: before 2.10 the new name is ignored without a word.

The old name is read by every version, and alone where both are set (``docs/doctor.md``).
"""

from __future__ import annotations

from typing import Final

from oomscope.allocator.settings import parse_version
from oomscope.snapshot.explain.explanation import DeviceExplanation

NEW: Final = "PYTORCH_ALLOC_CONF"
OLD: Final = "PYTORCH_CUDA_ALLOC_CONF"
_NEW_SINCE: Final = (2, 10)
_FOUND_BEFORE_2_12: Final = "2.11"
"""Stands for every torch up to 2.11, wherever rules were found by what repeats the recording best."""


def conf_variable(device: DeviceExplanation) -> str:
    """Return the name that the torch of a recording reads, whichever of those that it may be it was."""
    is_old = device.version_source == "found" and device.torch_version == _FOUND_BEFORE_2_12
    return OLD if is_old or parse_version(device.torch_version) < _NEW_SINCE else NEW
