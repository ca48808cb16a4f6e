"""How many stage-boundary tensors a pipeline schedule keeps alive: torch.distributed.pipelining against our own.

One process plays one stage of a pipeline on the ``fake`` process group. The stage is one linear layer, which saves
its input, so that every tensor of the boundary's size is one that the schedule or the layer's input holds.

    python benchmarks/pipeline_schedules.py
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.pipelining.stage import InferenceMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oomscope.model.base.observer import NullObserver
from oomscope.model.parallel.p2p_communication import Action, StageLinks
from oomscope.model.parallel.parallel_state import ParallelState
from oomscope.model.parallel.schedules import in_flight_microbatches, run_one_forward_one_backward

TOKENS, HIDDEN = 384, 64
STAGES = 4
Step = Callable[[], Any]


class BoundaryTensors(TorchDispatchMode):
    """Counts live storages of one hidden state's size."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        if storage.nbytes() != TOKENS * HIDDEN * 4 or storage._cdata in self._seen:
            return
        self._seen.add(storage._cdata)
        self.live += 1
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, storage._cdata)

    def _forget(self, key: int) -> None:
        self._seen.discard(key)
        self.live -= 1


class LinearStage:
    """The stage as our schedule drives it."""

    def __init__(self, layer: torch.nn.Module) -> None:
        self.layer = layer

    def forward(self, action: Action, received: torch.Tensor | None) -> torch.Tensor:
        """Apply the layer to what was received."""
        hidden = received if received is not None else torch.zeros(TOKENS, HIDDEN)
        output: torch.Tensor = self.layer(hidden)
        return output

    def backward(self, action: Action, output: Any, output_grad: torch.Tensor | None) -> None:
        """Differentiate the layer."""
        torch.autograd.backward(output, output_grad)


class OutOfMemory(torch.nn.Module):
    """A layer whose forward goes out of memory."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Raise what the caching allocator raises."""
        raise torch.OutOfMemoryError("CUDA out of memory.")


def ours(layer: torch.nn.Module, rank: int, microbatches: int, *, deallocate: bool) -> Step:
    """Return one iteration of :mod:`oomscope.model.parallel.schedules`."""
    state = ParallelState(
        rank=rank, world_size=STAGES, pp_rank=rank, pp_size=STAGES, pp_group=dist.distributed_c10d._get_default_group()
    )
    links = StageLinks(
        state, shape=(TOKENS, HIDDEN), dtype=torch.float32, device=torch.device("cpu"), observer=NullObserver()
    )
    return lambda: run_one_forward_one_backward(
        LinearStage(layer), links, state=state, num_microbatches=microbatches, deallocate_outputs=deallocate
    )


def theirs(layer: torch.nn.Module, rank: int, microbatches: int) -> Step:
    """Return one iteration of torch.distributed.pipelining, its warm-up vote answered beforehand."""
    example = torch.empty(TOKENS, HIDDEN, device="meta")
    stage = PipelineStage(
        layer,
        rank,
        STAGES,
        torch.device("cpu"),
        input_args=(example.clone().requires_grad_(rank > 0),),
        output_args=(example.clone().requires_grad_(),),
    )
    schedule = Schedule1F1B(stage, microbatches, loss_fn=lambda output, target: (output - target).sum())

    stage._inference_mode = InferenceMode.STATIC
    schedule._warmup_p2p = lambda *_: None  # type: ignore[method-assign]
    batch = torch.zeros(TOKENS * microbatches, HIDDEN)
    return lambda: schedule.step(batch) if rank == 0 else schedule.step()


def measure(step: Step) -> tuple[int, int]:
    """Return the peak of live boundary tensors in an iteration, and those alive after two iterations."""
    with BoundaryTensors() as count:
        step()
        step()
    return count.peak, count.live


def error_of(step: Step) -> str:
    """Return the type that an error in forward arrives as."""
    try:
        step()
    except RuntimeError as error:
        return type(error).__name__
    return "none"


def main() -> None:
    """Print a row for each stage and number of microbatches, and what becomes of an OOM in forward."""
    print("peak of live boundary tensors / those alive after the step")
    print("stage  microbatches  in flight  ours (sent outputs freed)  ours (kept)  torch.distributed.pipelining")
    for rank in (1, 2):
        for microbatches in (4, 16, 64):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=STAGES)
            layer = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
            freed, kept, torchs = (
                "{:d} / {:d}".format(*measure(step))
                for step in (
                    ours(layer, rank, microbatches, deallocate=True),
                    ours(layer, rank, microbatches, deallocate=False),
                    theirs(layer, rank, microbatches),
                )
            )
            in_flight = in_flight_microbatches(STAGES, rank, microbatches)
            print(f"{rank:5d}  {microbatches:12d}  {in_flight:9d}  {freed:>25s}  {kept:>11s}  {torchs:>28s}")
            dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=STAGES)
    print("torch.OutOfMemoryError in forward arrives as:")
    print("  ours:", error_of(ours(OutOfMemory(), 1, 4, deallocate=True)))
    print("  torch.distributed.pipelining:", error_of(theirs(OutOfMemory(), 1, 4)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
