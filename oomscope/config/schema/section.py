"""What all sections have in common: how strict they are, where their keys come from, and what counts and sizes are."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from oomscope.errors import InputError
from oomscope.units import parse_size


def _size(value: object) -> int:
    """Read a size; pydantic collects the ValueError with those of the other keys."""
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise ValueError  # what a key accepts says it all
    try:
        return parse_size(value)
    except InputError as error:
        raise ValueError from error


Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""A number of things; bounded so that no product of two leaves 64 bits."""

Size = Annotated[
    int,
    BeforeValidator(_size),
    Field(ge=0, le=2**63 - 1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {
                    "type": "string",
                    "pattern": r"^\s*\d+(?:[_,]\d{3})*(?:\.\d+)?\s*(?:[kKmMgGtT](?:[iI]?[bB])?|[bB])?\s*$",
                },
            ],
            "format": "size",
        }
    ),
]
"""Bytes; text such as ``80GiB`` is accepted."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values keep their type (``"8"`` is no number), none changes."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        protected_namespaces=(),
    )
