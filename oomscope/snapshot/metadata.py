"""What a snapshot's events say about training, as JSON in the ``user_metadata`` field that PyTorch gives them.

PyTorch's schema has no field for phase, category, module or forward stack; it defines ``user_metadata`` as free text
for the program's own use (PyTorch, ``torch/csrc/cuda/memory_snapshot.cpp``).
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from oomscope.snapshot.trace import UNKNOWN_MOMENT, Category, Frame, Moment, Stack

MAX_TEXT: Final = 64 * 1024
"""Most characters of a text that is parsed; longer ones come from elsewhere."""


class Metadata(NamedTuple):
    """What is known of one event."""

    moment: Moment = UNKNOWN_MOMENT
    category: Category = Category.UNKNOWN
    module: str = ""
    forward_stack: Stack = ()


UNKNOWN: Final = Metadata()
_CATEGORIES: Final = {category.label: category for category in Category}


def to_text(metadata: Metadata) -> str:
    """Return the JSON text of one event, in which a key is absent where its value is unknown; empty without any."""
    moment, category = metadata.moment, metadata.category
    known: dict[str, Any] = {
        "phase": moment.phase or None,
        "iter": moment.iteration if moment.iteration >= 0 else None,
        "mb": moment.microbatch if moment.microbatch >= 0 else None,
        "cat": category.label if category is not Category.UNKNOWN else None,
        "mod": metadata.module or None,
        "fwd": [list(frame) for frame in metadata.forward_stack] or None,
    }
    known = {key: value for key, value in known.items() if value is not None}
    return json.dumps(known, separators=(",", ":")) if known else ""


def from_text(text: str) -> Metadata:
    """Return the metadata in ``text``; what is not ours, or not well formed, counts as unknown and never fails."""
    if not text.startswith("{") or len(text) > MAX_TEXT:
        return UNKNOWN
    try:
        known = json.loads(text)
    except (ValueError, RecursionError):
        return UNKNOWN
    return Metadata(
        moment=Moment(_text(known.get("phase")), _count(known.get("iter")), _count(known.get("mb"))),
        category=_CATEGORIES.get(_text(known.get("cat")), Category.UNKNOWN),
        module=_text(known.get("mod")),
        forward_stack=_stack(known.get("fwd")),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int:
    """Return a count that fits the columns of all readers, or -1."""
    return value if type(value) is int and 0 <= value < 2**31 else -1


def _stack(value: Any) -> Stack:
    frames = []
    for frame in value if isinstance(value, list) else ():
        match frame:
            case [str(filename), int(line), str(name)]:
                frames.append(Frame(filename, line, name))
            case _:
                return ()
    return tuple(frames)
