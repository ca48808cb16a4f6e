"""Lets an error leave ``backward()`` on the simulated device without killing the process.

When a Python error crosses the C++ autograd engine, torch's Python device guard runs Python code while the error
is still set, and a ``noexcept`` frame above it ends the process. So no Python error ever crosses: the error is
kept here, the engine is handed a value that is no tensor (a C++ error, which unwinds in peace), and the wrapper
round the engine raises the kept error in its place. The engine stops at the very operation that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import graph
from torch.utils.hooks import BackwardHook

from oomscope.probe.sim.backend import module
from oomscope.probe.sim.replace import replaced

POISON = "the simulated device stopped this backward pass"
"""What the engine is given in place of a tensor."""

_engine_run = graph._engine_run_backward
ENGINE_CODE = _engine_run.__code__
"""The code object of the frame that the engine calls back from."""


class BackwardGuard:
    """Keeps the error that may not cross the engine, and knows whether a backward pass runs.

    Args:
        begin: called when the outermost backward pass begins.
        end: called when it has ended, also by an error.
    """

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin = begin
        self._end = end
        self._depth = 0
        self.stream = 0
        """The stream that was current when the outermost backward pass began."""
        self._kept: BaseException | None = None

    @property
    def active(self) -> bool:
        """Whether a backward pass runs."""
        return self._depth > 0

    @property
    def stopping(self) -> bool:
        """Whether an error waits for the engine to stop."""
        return self._kept is not None

    def keep(self, error: BaseException) -> str:
        """Keep ``error`` for the wrapper and return what to hand to the engine; the first error is the one kept."""
        if self._kept is None:
            self._kept = error
        return POISON

    def guard(self, function: Callable[..., Any], *, failed: Any) -> Callable[..., Any]:
        """Return ``function`` made safe for the engine: inside backward it keeps its error and returns ``failed``."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if not self.active:
                    raise
                self.keep(error)
                return failed

        return guarded

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the engine; raise what was kept instead of the engine's own complaint about the poison."""
        self._depth += 1
        if self._depth == 1:
            self.stream = module.current_stream().stream_id
            self._begin()
        try:
            result = _engine_run(*args, **kwargs)
        except Exception:
            if self._kept is None:
                raise
            raise self._take() from None
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._end()
        if self._kept is not None:
            raise self._take()
        return result

    def _take(self) -> BaseException:
        error, self._kept = self._kept, None
        if error is None:
            raise RuntimeError("no error was kept")
        return error

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Route every backward pass, unpack hook and tensor hook of the process through this guard."""
        saved = torch._C._autograd
        push = saved._push_saved_tensors_default_hooks
        on_tensor: Callable[..., Any] = torch.Tensor.register_hook
        on_accumulated: Callable[..., Any] = torch.Tensor.register_post_accumulate_grad_hook

        def push_guarded(pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
            push(pack, self.guard(unpack, failed=POISON))

        def register_hook(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
            return on_tensor(tensor, self.guard(hook, failed=None))

        def register_post_accumulate(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
            return on_accumulated(tensor, self.guard(hook, failed=None))

        begin_module_hooks = BackwardHook.__init__

        def guard_module_hooks(hook: BackwardHook, module: Any, after: Any, before: Any) -> None:
            guarded = [[self.guard(function, failed=None) for function in functions] for functions in (after, before)]
            begin_module_hooks(hook, module, *guarded)

        with (
            replaced(BackwardHook, __init__=guard_module_hooks),
            torch.autograd.set_multithreading_enabled(False),
            replaced(graph, _engine_run_backward=self.run),
            replaced(torch.autograd, _engine_run_backward=self.run),
            replaced(saved, _push_saved_tensors_default_hooks=push_guarded),
            replaced(
                torch.Tensor,
                register_hook=register_hook,
                register_post_accumulate_grad_hook=register_post_accumulate,
            ),
        ):
            yield
