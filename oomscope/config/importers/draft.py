"""A configuration in the making: settings with their origin, what was assumed, and what a schedule of batches means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oomscope.config.settings import Setting


@dataclass
class Draft:
    """What a dialect's own arithmetic works on."""

    source: str
    given: dict[str, Any]
    """The foreign names that were given, and their values as the rows convert them."""
    wheres: Mapping[str, str]
    world_size: int | None = None
    settings: dict[str, Setting] = field(default_factory=dict)
    """Dotted key to value and origin."""
    assumed: list[str] = field(default_factory=list)
    """What was filled in or computed, in words."""
    refused: list[tuple[str, Any, str]] = field(default_factory=list)
    """Names that together with others are not modelled, their value, and the reason."""

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value that ``key`` has so far."""
        setting = self.settings.get(key)
        return default if setting is None else setting.value

    def is_set(self, key: str) -> bool:
        """Whether ``key`` has a value."""
        return key in self.settings

    def set(self, key: str, value: Any, *, because: str, name: str | None = None) -> None:
        """Set ``key`` to what was computed; ``name`` is the argument that it was computed from."""
        where = self.wheres.get(name or "", self.source)
        self.settings[key] = Setting(value, f"{where} ({because})")

    def default(self, key: str, value: Any, *, because: str) -> None:
        """Set ``key`` where nothing has set it."""
        if key not in self.settings:
            self.set(key, value, because=because)

    def assume(self, text: str) -> None:
        """Note something that the user should know."""
        self.assumed.append(text)

    def refuse(self, name: str, value: Any, reason: str) -> None:
        """Note that ``name`` means something that is not modelled."""
        self.refused.append((name, value, reason))

    @property
    def is_whole(self) -> bool:
        """Whether this is a job with a model, and not only some of its settings."""
        return self.is_set("model.num_layers")


def share_world(draft: Draft) -> None:
    """Set ``parallel.data_parallel_size`` to what the world leaves for it.

    The world is split as Megatron-Core parallel_state.py does: TP * CP * PP ranks hold one replica.
    """
    if not draft.is_whole or draft.is_set("parallel.data_parallel_size"):
        return
    replica = 1
    for size in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        value = draft.value(f"parallel.{size}", 1)
        replica *= value if isinstance(value, int) and value > 0 else 1
    if draft.world_size is None:
        draft.assume("the number of GPUs is not given: one replica (give --world-size N)")
    elif draft.world_size % replica:
        draft.assume(f"{draft.world_size} GPUs cannot be cut into replicas of {replica} (TP * PP * CP): one replica")
    else:
        draft.set(
            "parallel.data_parallel_size",
            draft.world_size // replica,
            because=f"{draft.world_size} GPUs over {replica} of a replica",
        )


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_ENTRY = re.compile(r"(\d+(?:\.\d+)?)([KMBT]?):(\d+(?:\.\d+)?)([KMBT]?)", re.IGNORECASE)


def batch_steps(value: Any) -> list[int]:
    """Return the batches of ``0:768 250B:1536``, in the order in which they come.

    Source: Megatron-Core ``num_microbatches_calculator.py``, ``StepBatchsizeNumMicroBatchesCalculator``.

    Raises:
        ValueError: it is no such schedule, or does not begin with the first sample.
    """
    entries = [_ENTRY.fullmatch(word) for word in str(value).strip("'\"").replace(",", " ").split()]
    steps = [(_number(entry[1], entry[2]), _number(entry[3], entry[4])) for entry in entries if entry is not None]
    thresholds = [threshold for threshold, _ in sorted(steps)]
    if len(steps) < max(1, len(entries)) or thresholds != sorted(set(thresholds)):
        raise ValueError("must be thresholds and batches like 0:768 250B:1536")
    if thresholds[0] != 0 or not all(batch > 0 for _, batch in steps):
        raise ValueError("must begin with the threshold 0, and have batches of at least 1")
    return [batch for _, batch in sorted(steps)]


def take_batch_steps(draft: Draft) -> None:
    """Set the batch to the first of a schedule, and say what becomes of it and of a ramp."""
    steps = draft.given.get("step_batch_size_schedule")
    if steps:
        name = "step_batch_size_schedule"
        draft.set("data.global_batch_size", steps[0], because="the first of its batches", name=name)
        if steps[1:]:
            later = ", ".join(map(str, steps[1:]))
            draft.assume(
                f"the batch is that of the first steps, {steps[0]}; it grows to {later} (override "
                "data.global_batch_size), which keeps more microbatches in flight only where a pipeline lacks them now"
            )
    if any(draft.given.get(f"{prefix}rampup_batch_size") for prefix in ("", "train.", "model.")):
        draft.assume("rampup_batch_size is left out, as Megatron-Core does: the batch has its final size")


def _number(digits: str, unit: str) -> int:
    return int(float(digits) * _UNITS[unit.upper()])
