"""GradScaler on a virtual card: fp16 gradients count as finite, so that no step is skipped.

Before each step torch's GradScaler reads from the card whether a gradient held an infinity. A virtual card computes no
gradients. Of the two answers a step that is taken needs more memory (the first one makes the optimizer's states), and
it is what all but a few steps of a real training do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from oomscope import virtual

NOTE: Final = "gradients in fp16 count as finite: GradScaler skipped no step"


@contextmanager
def no_step_skipped(note: Callable[[str], None]) -> Iterator[None]:
    """Let GradScaler take each step while the block runs on a virtual card; ``note`` is told, once, where it does."""
    if not virtual.is_loaded():
        yield
        return
    scaler = torch.amp.GradScaler
    asks = scaler._maybe_opt_step
    told: list[bool] = []

    def takes(self: object, optimizer: torch.optim.Optimizer, state: object, *args: Any, **kwargs: Any) -> Any:
        if not told:
            told.append(True)
            note(NOTE)
        return optimizer.step(*args, **kwargs)

    setattr(scaler, "_maybe_opt_step", takes)  # noqa: B010 - torch's own, and typed
    try:
        yield
    finally:
        setattr(scaler, "_maybe_opt_step", asks)  # noqa: B010
