"""``pipeline_model_parallel_layout``: what each stage holds, sign by sign, as in ``Et*3|(tt|)*6L``.

``E`` is the embedding, ``t`` a transformer layer, ``m`` one of multi-token prediction, ``L`` the loss with the final
norm and the output layer; ``|`` ends a stage, ``x*n`` and ``(…)*n`` repeat, commas say nothing. Stages are virtual:
number c·p + r is model chunk c of pipeline rank r (Megatron-Core ``transformer/pipeline_parallel_layer_layout.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

_TERM = re.compile(r"\((?P<group>[^()]+)\)\*(?P<groups>\d+)|(?P<sign>[EtmL|])(?:\*(?P<signs>\d+))?")
_SIGNS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_LONGEST = 65_536
"""Signs of a layout; no model has as many layers."""


@lru_cache
def stages_of(layout: str) -> tuple[str, ...]:
    """Return the stages of a layout, each as its signs: ``Et*2|tL`` has ``Ett`` and ``tL``.

    Raises:
        ValueError: it is no layout; the message says where it goes wrong.
    """
    return tuple(_unrolled(layout.replace(",", "")).split("|"))


def _unrolled(text: str) -> str:
    parts: list[str] = []
    size = 0
    for term in _terms(text):
        of_group = term["group"] is not None
        part = _unrolled(term["group"]) if of_group else term["sign"]
        times = int(term["groups" if of_group else "signs"] or 1)
        size += len(part) * times
        if size > _LONGEST:
            raise ValueError(f"it has more than {_LONGEST} signs")
        parts.append(part * times)
    return "".join(parts)


def _terms(text: str) -> Iterator[re.Match[str]]:
    position = 0
    while position < len(text):
        term = _TERM.match(text, position)
        if term is None:
            raise ValueError(f"at {text[position : position + 12]!r}: write E, t, m, L and |, x*n or (...)*n")
        yield term
        position = term.end()


def _written(value: Any) -> Any:
    """Return a layout as text, also where it is a list of stages, each a list of names such as ``decoder``.

    Raises:
        ValueError: it is no layout.
    """
    if isinstance(value, list | tuple):
        value = "|".join(map(_written_stage, value))
    if isinstance(value, str):
        stages_of(value)
    return value


def _written_stage(stage: Any) -> str:
    if not isinstance(stage, list | tuple):
        raise ValueError("a layout is text such as Et*3|t*2L, or a list of stages, each a list of layers")
    names = [str(layer).strip().lower() for layer in stage]
    for name in names:
        if name not in _SIGNS:
            raise ValueError(f"{name!r} is none of {', '.join(_SIGNS)}")
    return "".join(_SIGNS[name] for name in names)


StageLayout = Annotated[
    str,
    BeforeValidator(_written),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^[EtmL|(),*\d]+$"},
                {"type": "array", "items": {"type": "array", "items": {"enum": list(_SIGNS)}}},
            ],
            "format": "layout",
        }
    ),
]
"""Text that :func:`stages_of` reads."""
