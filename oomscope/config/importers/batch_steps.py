"""A batch that grows while training goes on: by a schedule of steps, of which the first is measured, or by a ramp,
which Megatron-Core no longer knows.

More microbatches a step cost memory only as far as a pipeline has more of them in flight: the note says what follows.
"""

from __future__ import annotations

import re
from typing import Any

from oomscope.config.importers.draft import Draft

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
