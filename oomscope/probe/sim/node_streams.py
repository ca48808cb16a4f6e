"""On which stream a custom function's backward runs: the one that was current when the function was applied.

The engine keeps a node's stream; here an operation tells it, the first that is dispatched under the node's number.
Inside a custom ``torch.autograd.Function`` that first operation may be on a side stream, such as FSDP2's all-gather
under a checkpoint, so the function itself tells instead. Source: PyTorch torch/csrc/autograd/input_metadata.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from oomscope.probe.sim.backend import module
from oomscope.probe.sim.origins import Origins


@contextmanager
def told(origins: Origins) -> Iterator[None]:
    """Have every custom function tell ``origins`` on which stream it was applied."""
    owner: Any = torch.autograd.Function
    before = vars(owner)["apply"]

    def apply(kind: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        stream = module.current_stream().stream_id
        outputs = before.__get__(None, kind)(*args, **kwargs)
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            if isinstance(output, torch.Tensor) and output.grad_fn is not None:
                origins.runs_on(output.grad_fn, stream)
                break
        return outputs

    owner.apply = classmethod(apply)
    try:
        yield
    finally:
        owner.apply = before
