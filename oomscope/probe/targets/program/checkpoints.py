"""Notes which files a program saves on a virtual card, which computes no values to save.

The program writes its files as always: a checkpoint that it replaces holds meaningless numbers afterwards. Why nothing
protects it: docs/design/probe.md.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from oomscope.capture.arming import AroundImport
from oomscope.probe.recording.compiled import untraced

_SAFETENSORS: Final = "safetensors.torch"


def follow_saves(torch: Any, on_save: Callable[[str], None]) -> None:
    """Call ``on_save`` with the absolute path of each file that ``torch.save`` or safetensors writes."""
    torch.save = torch.serialization.save = _followed(torch.serialization.save, "f", on_save)

    def follow_safetensors() -> None:
        module: Any = sys.modules[_SAFETENSORS]
        module.save_file = _followed(module.save_file, "filename", on_save)

    if _SAFETENSORS not in sys.modules:
        AroundImport(_SAFETENSORS, then=follow_safetensors).install()
    elif hasattr(sys.modules[_SAFETENSORS], "save_file"):  # else it is importing torch: what it saves is not noticed
        follow_safetensors()


def _followed(save: Callable[..., Any], name: str, on_save: Callable[[str], None]) -> Callable[..., Any]:
    """Return ``save(what, where)``, which tells where; ``name`` is that of its second parameter."""

    @untraced
    @functools.wraps(save)
    def followed(*args: Any, **kwargs: Any) -> Any:
        saved = save(*args, **kwargs)
        where = args[1] if len(args) > 1 else kwargs.get(name)
        if isinstance(where, str | os.PathLike):
            on_save(str(Path(where).absolute()))
        return saved

    return followed
