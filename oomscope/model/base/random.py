"""Two streams of random numbers, as in Megatron-Core ``tensor_parallel/random.py``.

Outside the tensor-parallel region every TP rank must draw the same dropout masks, inside it each its own. The
default generator serves the first; ``ModelParallelRandom.fork`` swaps in the second. Recomputation replays both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from oomscope.model.base.operations import Function

_MODEL_PARALLEL_OFFSET = 2718
RandomStates = tuple[torch.Tensor, torch.Tensor | None]
"""Everything that dropout depends on: the states of the default and of the model-parallel stream."""


class ModelParallelRandom:
    """The random numbers of one rank; with a ``tp_size`` of 1 there is a single stream and ``fork`` does nothing."""

    def __init__(self, device: torch.device, *, seed: int, tp_rank: int = 0, tp_size: int = 1) -> None:
        self._device = device if device.type == "cuda" else torch.device("cpu")
        self._state: torch.Tensor | None = None
        if tp_size > 1:
            generator = torch.Generator(self._device)
            generator.manual_seed(seed + _MODEL_PARALLEL_OFFSET + tp_rank)
            self._state = generator.get_state()

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Draw from the stream that differs from TP rank to TP rank."""
        if self._state is None:
            yield
            return
        outside = self._get()
        self._set(self._state)
        try:
            yield
        finally:
            self._state = self._get()
            self._set(outside)

    def states(self) -> RandomStates:
        """Return the states of both streams, to be given to ``replay``."""
        return self._get(), self._state

    @contextmanager
    def replay(self, states: RandomStates) -> Iterator[None]:
        """Draw again what was drawn from ``states`` on, then go on as if nothing had happened."""
        now = self.states()
        self._restore(states)
        try:
            yield
        finally:
            self._restore(now)

    def _restore(self, states: RandomStates) -> None:
        state, self._state = states
        self._set(state)

    def _get(self) -> torch.Tensor:
        return torch.get_rng_state() if self._device.type == "cpu" else torch.cuda.get_rng_state(self._device)

    def _set(self, state: torch.Tensor) -> None:
        if self._device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, self._device)


class _DropoutAdd(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, residual: torch.Tensor, p: float) -> torch.Tensor:
        out, mask = torch.native_dropout(x, p, True)
        ctx.save_for_backward(mask)
        ctx.scale = 1.0 / (1.0 - p)
        return out.add_(residual)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (mask,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(grad, mask, ctx.scale), grad, None


def dropout_add(x: torch.Tensor, residual: torch.Tensor, p: float) -> torch.Tensor:
    """Return ``residual`` + dropout(``x``), both [s/σ, b, h]."""
    return _DropoutAdd.apply(x, residual, p) if p > 0 else residual + x


def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    """Drop elements of ``x``, saving a mask of one byte an element (on the CPU too, unlike ``F.dropout``)."""
    return torch.native_dropout(x, p, True)[0] if p > 0 else x
