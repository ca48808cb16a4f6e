"""What a dialect is: a table of foreign names and the keys that they become, and of names that cost no memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Any

from oomscope.config.importers.command_lines import ENVIRONMENT
from oomscope.config.importers.draft import Draft
from oomscope.config.key_lookup import SECTIONS


class NotModelledError(ValueError):
    """A value means something that is not modelled; the text says what."""


Settings = Mapping[str, Any]
"""Dotted key of a configuration to its value."""


@dataclass(frozen=True)
class To:
    """The value goes into one key."""

    key: str
    convert: Callable[[Any], Any] = lambda value: value
    """Raises ValueError, in the user's words, for what cannot be; NotModelledError for what is not modelled."""


@dataclass(frozen=True)
class Switch:
    """A flag: what it sets when it is on, and what when it is off."""

    on: Settings
    off: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """One of several words, each of which sets keys; any other is not modelled."""

    choices: Mapping[str, Settings]
    alike: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Word to the choice that stands in for it, and the reason."""


@dataclass(frozen=True)
class ForFinish:
    """An argument without a key of its own: the dialect computes with it and others."""

    convert: Callable[[Any], Any] = lambda value: value
    """Raises ValueError, in the user's words, for what cannot be."""


@dataclass(frozen=True)
class Unmodelled:
    """An argument without a key that changes memory, unless it has one of the harmless values."""

    reason: str
    harmless: tuple[Any, ...] = ()
    beside: str | None = None
    """The key without which the argument does nothing; None if it needs none."""
    convert: Callable[[Any], Any] = lambda value: value
    """Converts the value before it is compared with the harmless ones."""


Row = To | Switch | Choice | ForFinish | Unmodelled


def is_on(value: Any) -> bool:
    """Return whether a flag with ``value`` is set.

    Raises:
        ValueError: it is no truth value.
    """
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if value is None or isinstance(value, bool):
        return bool(value)
    if value in (0, 1):
        return bool(value)
    raise ValueError("must be true or false")


def negated(value: Any) -> bool:
    """Return the opposite of a flag."""
    return not is_on(value)


def listed(value: Any) -> list[Any]:
    """Return a list that may be written as one word, or as words with commas or spaces in between."""
    if isinstance(value, str):
        return [word.strip("'\"") for word in value.strip("[]").replace(",", " ").split()]
    if not isinstance(value, list | tuple):
        return [value]
    return [word for item in value for word in (listed(item) if isinstance(item, str) else [item])]


def alone(value: Any) -> Any:
    """Return the element of a list that holds nothing else, as where one value is given for each layer."""
    return value[0] if isinstance(value, list | tuple) and value and value.count(value[0]) == len(value) else value


def named(value: Any) -> str:
    """Return the last name of ``torch.nn.functional.silu``, also as a mapping with ``_target_``, in lower case."""
    if isinstance(value, dict):
        value = value.get("_target_", "")
    return str(value).rpartition(".")[2].lower()


_DTYPES = {"float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "uint8": "fp8"}


def dtype(value: Any) -> str:
    """Return ``fp32`` for ``torch.float32``, also as a mapping with ``_target_``."""
    name = named(value)
    return _DTYPES.get(name, name)


def number_as_float(value: Any) -> float:
    """Return a number that may be a whole one.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError("must be a number")


def whole(value: Any) -> int:
    """Return a whole number that may be written as ``1e6`` or ``10000.0``.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise ValueError("must be a whole number")


def whole_numbers(value: Any) -> list[int]:
    """Return a list of whole numbers that may be written as words.

    Raises:
        ValueError: something in it is none.
    """
    words = listed(value)
    if not all(isinstance(word, int) or (isinstance(word, str) and word.isdecimal()) for word in words):
        raise ValueError("must be whole numbers")
    return [int(word) for word in words]


def positive_or_none(value: Any) -> Any:
    """Return the number, or None for values of at most 0, which other dialects use for null."""
    return value if isinstance(value, int | float) and value > 0 else None


def same_names(*sections: str, prefix: str = "") -> dict[str, Row]:
    """Return a row for each key of ``sections`` that the dialect calls by the same name, after ``prefix``."""
    return {
        f"{prefix}{key}": To(f"{section}.{key}", _reader(schema))
        for section in sections
        for key, schema in SECTIONS[section].model_json_schema()["properties"].items()
    }


def _reader(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return what reads a value of this JSON Schema from how others may write it."""
    options = schema.get("anyOf", [schema])
    if any("fp32" in option.get("enum", ()) for option in options):
        return dtype
    kinds = {option.get("type") for option in options} - {"null"}
    readers: dict[str, Callable[[Any], Any]] = {
        "string": alone,
        "boolean": is_on,
        "integer": whole,
        "number": number_as_float,
        "array": listed,
    }
    return readers.get(kinds.pop(), _as_it_is) if len(kinds) == 1 else _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


_CLOSE = 0.85
"""Least ratio of difflib at which a mistyped name counts as a row's."""

_ENVIRONMENT: dict[str, Row] = {
    "ENV:PYTORCH_CUDA_ALLOC_CONF": To("allocator.conf", str),
    "ENV:PYTORCH_ALLOC_CONF": To("allocator.conf", str),
    "ENV:CUBLAS_WORKSPACE_CONFIG": To("device.cublas_workspace_config", str),
    "ENV:NVTE_CPU_OFFLOAD_V1": To("offload.nvte_cpu_offload_v1", lambda value: is_on(int(value))),
    "ENV:WORLD_SIZE": ForFinish(),
    "ENV:NVTE_FLASH_ATTN": ForFinish(),
    "ENV:NVTE_FUSED_ATTN": ForFinish(),
    "ENV:NVTE_UNFUSED_ATTN": ForFinish(),
    "ENV:PYTORCH_NO_CUDA_MEMORY_CACHING": Unmodelled("without the caching allocator nothing is reserved", ("0",)),
}
"""Name to what it becomes (PyTorch docs, notes/cuda; Transformer Engine docs, envvars)."""

_ENVIRONMENT_WITHOUT_MEMORY = """
ENV:CUDA_DEVICE_MAX_CONNECTIONS ENV:CUDA_VISIBLE_DEVICES ENV:CUDA_LAUNCH_BLOCKING ENV:CUDA_MODULE_LOADING
ENV:NCCL_* ENV:TORCH_NCCL_* ENV:UCX_* ENV:GLOO_* ENV:NVTE_ALLOW_NONDETERMINISTIC_ALGO ENV:NVTE_*_SM_MARGIN
ENV:NVTE_DEBUG* ENV:NVTE_APPLY_QK_LAYER_SCALING ENV:OMP_NUM_THREADS ENV:MASTER_ADDR ENV:MASTER_PORT ENV:RANK
ENV:LOCAL_RANK ENV:NODE_RANK ENV:PYTHON* ENV:HF_* ENV:TOKENIZERS_PARALLELISM ENV:WANDB_* ENV:SKIP_PYTEST ENV:N_REPEAT
ENV:SLURM_* ENV:LOGLEVEL ENV:LD_LIBRARY_PATH ENV:PATH ENV:HOME ENV:TRITON_* ENV:TORCHINDUCTOR_* ENV:NVSHMEM_*
"""
"""Environment variables without effect on memory, in every dialect."""


@dataclass(frozen=True)
class Dialect:
    """One way of writing a training job's configuration."""

    name: str
    title: str
    table: Mapping[str, Row]
    without_memory: str
    """Names that cost no memory, separated by white space; ``*`` stands for any characters."""
    finish: Callable[[Draft], None]
    """Fills in the dialect's defaults, and what follows from several names together."""

    def costs_no_memory(self, name: str) -> bool:
        """Whether ``name`` has nothing to do with a GPU's memory."""
        names = self.without_memory if not name.startswith(ENVIRONMENT) else _ENVIRONMENT_WITHOUT_MEMORY
        return _pattern(names).fullmatch(name) is not None

    def row_of(self, name: str) -> Row | None:
        """Return the row of ``name``, also where it is an environment variable."""
        return self.table.get(name) or _ENVIRONMENT.get(name)

    def nearest(self, name: str) -> str | None:
        """Return the name of a row that the unknown ``name`` may have been meant for."""
        close = get_close_matches(name, [*self.table, *_ENVIRONMENT], n=1, cutoff=_CLOSE)
        return close[0] if close else None


@cache
def _pattern(names: str) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in names.split()))
