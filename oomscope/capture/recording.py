"""``oomscope.record``: records the allocator's history round any training code and keeps it where it matters.

A snapshot is written at the first failing allocation, before anything unwinds; when the block ends; when the process
is asked to end; and whenever the program wants one. The program comes first: recording never initialises CUDA, never
swallows an error, and what goes wrong with it becomes a line on standard error.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import ContextDecorator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from oomscope.capture import names, singleton
from oomscope.capture.messages import Messages
from oomscope.capture.settings import MAX_ENTRIES, Settings, Stacks
from oomscope.errors import InputError

if TYPE_CHECKING:
    from oomscope.capture.running import Running

Function = TypeVar("Function", bound=Callable[..., Any])


def record(
    path: str | os.PathLike[str] = "snap-{rank}.pickle",
    *,
    max_entries: int = MAX_ENTRIES,
    stacks: Stacks = "python",
    every: int | None = None,
    force: bool = False,
    strict: bool = False,
    quiet: bool = False,
    watch: bool = False,
) -> Recording:
    """Return a recording of the CUDA allocator, for a ``with`` statement or as a decorator of a function.

    The snapshot of the first out-of-memory error is ``snap-0.oom.pickle``, written at the failing allocation; that of
    the end ``snap-0.pickle``. ``oomscope explain`` reads them, and so does https://pytorch.org/memory_viz.

    Args:
        path: name of the snapshot, with the fields ``{rank}``, ``{time}``, ``{host}`` and ``{pid}``; ``.gz`` or
            ``.zst`` at its end compresses. A name that is taken gets a number.
        max_entries: how many events to keep for each device; the oldest are dropped.
        stacks: ``python``; ``all`` for C++ frames as well, which make writing take minutes; or ``none``.
        every: write a snapshot after each so many steps as well (``snap-0.step100.pickle``).
        force: replace files that are there.
        strict: raise where recording cannot start. Otherwise that is a line on standard error.
        quiet: print warnings only.
        watch: report live memory that keeps growing from step to step.

    Raises:
        InputError: an argument cannot be meant.
    """
    name: object = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(name, str):  # a function where ``@oomscope.record`` lacks its parentheses
        what = "a function" if callable(name) else f"{name!r}"
        remedy = 'write oomscope.record("snap-{rank}.pickle")'
        raise InputError(f"record takes the name of a file, not {what}", remedy=remedy)
    return Recording(
        Settings(
            path=name,
            max_entries=max_entries,
            stacks=stacks,
            every=every,
            force=force,
            strict=strict,
            quiet=quiet,
            watch=watch,
        )
    )


class Recording(ContextDecorator):
    """One recording; made by :func:`record`. Entered again it starts anew."""

    def __init__(self, settings: Settings) -> None:
        self._settings = replace(settings, path=names.anchored(settings.path))
        self._messages = Messages(quiet=settings.quiet, strict=settings.strict)
        self._now: Running | None = None
        self._wanted = False

    def __call__(self, function: Function) -> Function:
        """Return ``function``, each call of which is recorded.

        Raises:
            InputError: its body runs after the call has returned, as that of a coroutine or a generator does.
        """
        kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(is_of(function) for is_of in kinds):
            raise InputError(
                "a coroutine or generator runs after its call has returned",
                where=getattr(function, "__qualname__", repr(function)),
                remedy="use `with oomscope.record():` inside it",
            )
        return super().__call__(function)

    def _recreate_cm(self) -> Self:
        """Give every call of a decorated function a recording of its own (:class:`contextlib.ContextDecorator`)."""
        return type(self)(self._settings)

    def __enter__(self) -> Self:
        """Start to record, now or as soon as CUDA is used.

        Raises:
            MachineUnfitError: ``strict`` is set and there is no CUDA, or somebody else records.
        """
        try:
            import torch
        except (ImportError, OSError) as error:
            self._messages.refuse(f"torch cannot be imported ({error}); without a GPU, measure with oomscope probe")
            return self
        if (present := singleton.present_owner()) is not None:
            self._messages.refuse(f"{present} already records this process")
        elif not torch.cuda.is_available():
            self._messages.refuse("torch finds no CUDA device")
        else:
            self.arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Write the last snapshot and record no more; whatever leaves the block passes through."""
        if self._wanted and self._now is None:
            self._messages.say("nothing was recorded: the program did not use CUDA")
        if self._now is not None:
            self._now.end(error)
        self._wanted, self._now = False, None

    def arm(self) -> None:
        """Record as soon as CUDA is used, or from now on where it is in use."""
        import torch

        self._wanted = True
        if torch.cuda.is_initialized():
            self._begin()
        else:
            torch.cuda._lazy_call(self._begin)

    @property
    def is_active(self) -> bool:
        """Whether events are being recorded in this process."""
        return self._now is not None and self._now.is_of_this_process

    def step(self) -> None:
        """Count a training step. Without any call, one is counted whenever the first optimizer has stepped again."""
        if self._now is not None:
            self._now.steps.count_step()

    def dump(self, name: str = "now") -> Path | None:
        """Write a snapshot now, as ``snap-0.NAME.pickle``; return its path, or None where nothing could be written."""
        return None if self._now is None else self._now.keep("asked", name)

    def _begin(self) -> None:
        """Take torch's call: CUDA is in use, or is being initialised."""
        if not self._wanted or self._now is not None:
            return
        if (present := singleton.present_owner()) is not None:
            self._messages.refuse(f"{present} already records this process")
            return

        def start() -> Running:
            from oomscope.capture.running import Running

            return Running(self._settings, self._messages)

        self._now = self._messages.attempt("cannot record", start)
