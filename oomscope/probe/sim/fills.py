"""Puts off the filling of tensors on the host with random numbers until somebody looks at them.

Programs build their model on the host and move it to the device, and the simulated one needs no values. So a fill
(``normal_``, ``uniform_``, plain arithmetic on what they filled) is only noted, with the state that torch's generator
had; the memory is not even touched. Who does look gets the very numbers that there would have been: an operation on
such a tensor fills it first, and one that draws random numbers finds the generator where all the fills would have left
it (:mod:`oomscope.probe.sim.mersenne`). What reads memory behind torch's back, by ``data_ptr`` or in a file of
``torch.save``, finds none of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Self

import torch
from torch.utils._python_dispatch import _disable_current_modes

from oomscope.probe.sim.mersenne import advanced
from oomscope.probe.sim.replace import replaced

aten = torch.ops.aten

FILLS: Final = {aten.normal_.default, aten.uniform_.default}
LATER: Final = {
    aten.add_.Scalar,
    aten.add_.Tensor,
    aten.clamp_.default,
    aten.div_.Scalar,
    aten.div_.Tensor,
    aten.erfinv_.default,
    aten.fill_.Scalar,
    aten.mul_.Scalar,
    aten.mul_.Tensor,
    aten.zero_.default,
}
"""What may be put off as well, where a fill that was put off is all it works on: ``trunc_normal_`` consists of it."""

LEAST: Final = 64
"""Elements below which a fill is done at once: kernels take another way with a handful."""

COPIES: Final = {aten._to_copy.default, aten.clone.default}
"""What makes a tensor that waits of one that waits."""

_CONVERT: Final = aten._to_copy.default
_HOST: Final = torch.default_generator

_TRIED: Final = (LEAST, LEAST + 1, LEAST + 15, 2 * LEAST, 70_003)


def _each(count: int) -> int:
    return count


def _last_16_again(count: int) -> int:
    return count + (16 if count % 16 else 0)


def _by_16(count: int) -> int:
    return -(-count // 16) * 16


def _twice(rule: Callable[[int], int]) -> Callable[[int], int]:
    return lambda count: 2 * rule(count)


DRAWS: Final = (_each, _last_16_again, _by_16, _twice(_each), _twice(_last_16_again), _twice(_by_16))
"""Draws of 32 bits by the number of elements, for floats and for doubles: one each; the same and the last 16 anew where
there is a remainder; 16 for each 16 that are begun. Source: PyTorch
aten/src/ATen/native/cpu/DistributionTemplates.h, ``normal_fill`` and ``uniform_kernel``."""

Step = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""An operation with what it is given besides the tensor."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a tensor will hold."""

    epoch: Epoch
    drawn: int
    """Draws of the epoch before the first of this tensor's."""
    draws: int
    """Draws of this tensor's."""
    filled: torch.dtype
    """Of what is filled."""
    dtype: torch.dtype
    """Of the tensor, which may be a copy of what is filled."""
    steps: tuple[Step, ...]
    """The fill first."""

    def then(self, step: Step) -> Waiting:
        """Return it with one more step."""
        return replace(self, steps=(*self.steps, step))

    def into(self, storage: torch.UntypedStorage) -> None:
        """Work it out, into the storage of the tensor."""
        generator = torch.Generator()
        generator.set_state(self.epoch.state_after(self.drawn))
        with _disable_current_modes(), torch.no_grad():
            whole = torch.empty(0, dtype=self.dtype, device="cpu").set_(storage)
            copies = any(step[0] is _CONVERT for step in self.steps)
            made = torch.empty(whole.numel(), dtype=self.filled, device="cpu") if copies else whole
            for func, rest, kwargs in self.steps:
                made = func(made, *rest, **({**kwargs, "generator": generator} if func in FILLS else kwargs))
            if made is not whole:
                whole.copy_(made)
            self.epoch.known = self.drawn + self.draws, generator.get_state()


@dataclass(slots=True)
class Epoch:
    """A stretch in which fills alone drew random numbers on the host."""

    mark: torch.Tensor
    """State that the generator has meanwhile; nothing else brings it about, so another one was set by the program."""
    known: tuple[int, torch.Tensor]
    """A number of draws since the beginning, and the state that the generator would have after them."""
    began: torch.Tensor
    """That state at the beginning."""
    drawn: int = 0
    """Draws of all fills so far."""

    @classmethod
    def begun(cls) -> Self:
        """Begin one now."""
        began = _HOST.get_state()
        with _disable_current_modes():
            torch.rand(1, device="cpu")
        return cls(_HOST.get_state(), (0, began), began)

    def lasts(self) -> bool:
        """Whether nobody drew or set the generator since it began."""
        return torch.equal(_HOST.get_state(), self.mark)

    def state_after(self, draws: int) -> torch.Tensor:
        """Return the state that the generator would have after so many draws."""
        at, state = self.known if self.known[0] <= draws else (0, self.began)
        self.known = draws, advanced(state, draws - at)
        return self.known[1]


class HostFills:
    """Runs the operations of the host, and puts off those that fill a tensor with random numbers."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[weakref.ref[torch.UntypedStorage], Waiting]] = {}
        self._epoch: Epoch | None = None

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run an operation of which no argument is on the simulated device."""
        if func in FILLS and self._puts_off(func, args, kwargs):
            return args[0]
        if self._waiting and not func.is_view:
            if func in LATER and self._adds(func, args, kwargs):
                return args[0]
            if func in COPIES and (copy := self._copy(func, args, kwargs)) is not None:
                return copy
            if func is aten.copy_.default and _is_whole(args[0]) and _key(args[0]) != _key(args[1]):
                self._waiting.pop(_key(args[0]), None)  # all of it is written over
            self._look_at((*args, *kwargs.values()))
        if self._epoch is not None and torch.Tag.nondeterministic_seeded in func.tags:
            self.settle()
        return func(*args, **kwargs)

    def settle(self) -> None:
        """Leave the generator where all fills so far would have left it."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None and epoch.lasts():
            _HOST.set_state(epoch.state_after(epoch.drawn))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Serve also what looks at tensors or at the generator without an operation, inside the block.

        What still waits at its end is never filled.
        """
        with (
            replaced(torch, get_rng_state=self._settling(torch.get_rng_state)),
            replaced(torch.random, get_rng_state=self._settling(torch.random.get_rng_state)),
            replaced(torch.Tensor, numpy=self._filling(torch.Tensor.numpy), tolist=self._filling(torch.Tensor.tolist)),
        ):
            try:
                yield
            finally:
                self.settle()
                self._waiting.clear()

    def _puts_off(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        tensor, *rest = args
        if kwargs.get("generator") is not None or not _is_whole(tensor):
            return False
        draws = draws_of(func, tensor.dtype)
        if draws is None:
            return False
        if self._epoch is None or not self._epoch.lasts():
            self._epoch = Epoch.begun()
        step = (func, tuple(rest), {name: value for name, value in kwargs.items() if name != "generator"})
        taken = draws(tensor.numel())
        self._wait(tensor, Waiting(self._epoch, self._epoch.drawn, taken, tensor.dtype, tensor.dtype, (step,)))
        self._epoch.drawn += taken
        return True

    def _adds(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        tensor, *rest = args
        waiting = self._waiting_of(tensor)
        if waiting is None or not all(value is None or isinstance(value, (int, float)) for value in rest):
            return False
        self._wait(tensor, waiting.then((func, tuple(rest), kwargs)))
        return True

    def _copy(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor | None:
        waiting = self._waiting_of(args[0])
        if waiting is None or not _is_plain_copy(**kwargs):
            return None
        copy = torch.empty_like(args[0], dtype=kwargs.get("dtype"))
        if not _is_whole(copy):
            return None
        self._wait(copy, replace(waiting.then((_CONVERT, (), {"dtype": copy.dtype})), dtype=copy.dtype))
        return copy

    def _wait(self, tensor: torch.Tensor, waiting: Waiting) -> None:
        storage, key = tensor.untyped_storage(), _key(tensor)
        self._waiting[key] = weakref.ref(storage, lambda _: self._waiting.pop(key, None)), waiting

    def _waiting_of(self, tensor: torch.Tensor) -> Waiting | None:
        """Return what a tensor waits for that is all of its storage."""
        entry = self._waiting.get(_key(tensor)) if _is_whole(tensor) else None
        return entry[1] if entry else None

    def _look_at(self, arguments: Iterable[Any]) -> None:
        """Fill what waits among the arguments of an operation."""
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                self._fill(argument)
            elif isinstance(argument, (tuple, list)):
                self._look_at(argument)

    def _fill(self, tensor: torch.Tensor) -> None:
        if tensor.layout is torch.strided and (entry := self._waiting.pop(_key(tensor), None)):
            entry[1].into(tensor.untyped_storage())

    def _settling(self, asked: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        def settled() -> torch.Tensor:
            self.settle()
            return asked()

        return settled

    def _filling(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def filled(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._waiting:
                self._fill(tensor)
            return read(tensor, *args, **kwargs)

        return filled


@cache
def draws_of(func: Any, dtype: torch.dtype) -> Callable[[int], int] | None:
    """Return how many draws ``func`` takes to fill so many elements; None where no known rule gives the number.

    Which of :data:`DRAWS` it is, is found by filling: the rule is not documented.
    """
    try:
        tried = [_states_around(func, dtype, count) for count in _TRIED]
    except (NotImplementedError, RuntimeError):  # no such kernel: the program will be told when it is run
        return None
    for rule in DRAWS:
        if all(
            torch.equal(advanced(before, rule(count)), after)
            for count, (before, after) in zip(_TRIED, tried, strict=True)
        ):
            return rule
    return None


def _states_around(func: Any, dtype: torch.dtype, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    with _disable_current_modes():
        generator = torch.Generator().manual_seed(count)
        before = generator.get_state()
        func(torch.empty(count, dtype=dtype, device="cpu"), generator=generator)
    return before, generator.get_state()


def _is_plain_copy(
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    memory_format: torch.memory_format | None = None,
    non_blocking: bool = False,
    **others: Any,
) -> bool:
    """Whether a copy of these arguments lies on the host in the order of what is copied."""
    return (
        layout in {None, torch.strided}
        and (device is None or device.type == "cpu")
        and memory_format in {None, torch.preserve_format, torch.contiguous_format}
        and not any(others.values())
    )


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether it lies on the host, and in order in all of a storage of its own."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.dtype.is_floating_point
        and tensor.numel() >= LEAST
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.nbytes
        and not tensor.is_shared()
    )


def _key(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
