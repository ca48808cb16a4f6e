"""Keeps oomscope out of what Dynamo makes of a program, so that its graphs are those of a run without oomscope.

Where torch has a builtin, a function that :mod:`~oomscope.probe.recording.replaced` puts in its place is Python. Dynamo
would trace through it, which it cannot everywhere, would write it into graphs, where a backend does not know it, and
would compile its frames, and those of our hooks, wherever they run between two graphs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, Final, ParamSpec, TypeVar

from torch._C._dynamo import eval_frame

import oomscope
from oomscope.probe.recording.replaced import Method, Place, replaced_in

P = ParamSpec("P")
R = TypeVar("R")
set_eval_frame: Final = eval_frame.set_eval_frame  # torch 2.4 has no module of that name to import from
_OUR_FILES: Final = f"{Path(oomscope.__file__).parent}{os.sep}"


def untraced(hook: Callable[P, R]) -> Callable[P, R]:
    """Let Dynamo neither trace through a hook nor compile what it calls: a step may be compiled, with its hooks.

    ``torch.compiler.disable`` does the same, and imports the compiler.
    """

    @functools.wraps(hook)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        compiling = set_eval_frame(None)
        try:
            return hook(*args, **kwargs)
        finally:
            set_eval_frame(compiling)

    vars(run)["_torchdynamo_disable"] = True
    return run


@contextmanager
def graphs_are_unchanged() -> Iterator[None]:
    """Let Dynamo see torch's functions in place of ours, and compile none of our frames, while the block runs.

    Ours call them with the same arguments while a compiler traces. Hooks are still traced through, but for
    :func:`untraced` ones.
    """
    rules = replaced_in("torch._dynamo.trace_rules", _frames_skipped)
    builders = replaced_in("torch._dynamo.variables.builder", _functions_traced)
    with rules, builders, replaced_in("torch._dynamo.output_graph", _functions_written):
        yield


def _frames_skipped(trace_rules: Any) -> list[Place]:
    check_file = trace_rules.check_file

    def checked(filename: str | None, is_inlined_call: bool = False) -> Any:
        if not is_inlined_call and filename is not None and filename.startswith(_OUR_FILES):
            return trace_rules.SkipResult(True, "a frame of oomscope")
        return check_file(filename, is_inlined_call)

    return [(trace_rules, "check_file", checked)]


def _functions_traced(builder: Any) -> list[Place]:
    """Let Dynamo see what a function of ours stands for where it would trace through it: where no table names it.

    Guards on a source look at what stands there, which is ours. They fail where Dynamo takes that for a function of
    Python with other defaults; so one of these is traced through ours.
    """
    with_source, without_source = builder.VariableBuilder, builder.SourcelessBuilder
    wrap, create = with_source._wrap, without_source.create

    def is_traced(variable: Any) -> bool:
        return isinstance(variable, builder.UserFunctionVariable)

    def wrapped(self: Any, value: Any) -> Any:
        original = _original_function(value)
        is_foreign = original is not value and not isinstance(original, FunctionType)
        if is_foreign and isinstance(value, Method):
            return wrap(self, original)
        variable = wrap(self, value)
        return wrap(self, original) if is_foreign and is_traced(variable) else variable

    def created(tx: Any, value: Any) -> Any:
        original = _original_function(value)
        if isinstance(value, Method):
            return create(tx, original)
        variable = create(tx, value)
        return create(tx, original) if original is not value and is_traced(variable) else variable

    return [(with_source, "_wrap", wrapped), (without_source, "create", staticmethod(created))]


def _functions_written(output_graph: Any) -> list[Place]:
    tracer = output_graph.SubgraphTracer
    create_node = tracer.create_node

    def created(self: Any, kind: str, target: Any, *args: Any, **kwargs: Any) -> Any:
        return create_node(self, kind, _original_function(target), *args, **kwargs)

    return [(tracer, "create_node", created)]


def _original_function(target: Any) -> Any:
    """Return the function that ``target`` stands for, if it is one of ours."""
    if isinstance(target, Method):
        return target.original
    while (
        isinstance(target, FunctionType)
        and target.__code__.co_filename.startswith(_OUR_FILES)
        and hasattr(target, "__wrapped__")
    ):
        target = target.__wrapped__
    return target.original if isinstance(target, Method) else target
