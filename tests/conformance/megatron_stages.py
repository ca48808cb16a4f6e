"""Small models on the CPU or a card, for what is claimed of Megatron-Core's memory options."""

from __future__ import annotations

import gc
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from oomscope.config.schema import Config
from oomscope.model.base.observer import NullObserver
from oomscope.model.gpt.stage import GPTStage
from oomscope.model.parallel.interleaved_schedule import InterleavedSchedule
from oomscope.model.parallel.p2p_communication import Action
from oomscope.model.parallel.parallel_state import ParallelState, Place, expert_tensor_parallel_size
from oomscope.model.trainer import Trainer

CPU = torch.device("cpu")
CARD = torch.device("cuda", 0)
FULL = {"recompute_granularity": "full"}
UNFUSED = {"attention_backend": "unfused"}


def config_of(**sections: dict[str, Any]) -> Config:
    """A GPT of two layers; ``sections`` override single keys."""
    model = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 1000}
    document = {"data": {"seq_length": 16, "micro_batch_size": 2}, **sections}
    return Config.model_validate({**document, "model": {**model, **sections.get("model", {})}})


def actions_of(schedule: InterleavedSchedule) -> list[Action]:
    """What a rank does, in order: warm-up forwards, a forward and a backward in turn, the backwards that are left."""
    forwards, backwards = schedule.passes("forward"), schedule.passes("backward")
    steady = zip(forwards[schedule.warmup :], backwards, strict=False)
    return [*forwards[: schedule.warmup], *chain(*steady), *backwards[len(forwards) - schedule.warmup :]]


def stage_of(config: Config, device: torch.device = CPU, state: ParallelState | None = None) -> GPTStage:
    return GPTStage(
        config,
        state or ParallelState(),
        layers=range(config.model.num_layers),
        pre_process=True,
        post_process=True,
        device=device,
        dtype=torch.bfloat16,
    )


def live() -> int:
    """Return the requested bytes of all live blocks of the card."""
    return int(torch.cuda.memory_stats(CARD)["requested_bytes.all.current"])


def live_peak() -> int:
    """Return the most of them since the statistics were reset."""
    return int(torch.cuda.memory_stats(CARD)["requested_bytes.all.peak"])


def pinned_peak() -> int:
    """Return the most pinned host bytes since the statistics were reset, in the blocks of torch's host allocator."""
    return int(torch.cuda.host_memory_stats()["active_bytes.peak"])


def begin() -> int:
    """Reset the statistics of the card and of pinned memory, and return what is live already."""
    gc.collect()
    torch.cuda.init()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # which also ends frees that waited for another stream
    torch.cuda.reset_peak_memory_stats(CARD)
    torch.cuda.reset_peak_host_memory_stats()
    return live()


def trained(config: Config, steps: int = 1) -> tuple[int, int]:
    """Return the requested bytes that a world of one holds after ``steps``, and the peak."""
    before = begin()
    trainer = Trainer(config, ParallelState(), device=CARD, observer=NullObserver())
    trainer.setup()
    for iteration in range(steps):
        trainer.step(iteration)
    return live() - before, live_peak() - before


def first_of(size: int) -> Place:
    """The first place on an axis of ``size`` ranks."""
    return Place(size=size, group=dist.new_group(list(range(size))) if size > 1 else None)


def layer_kept(config: Config) -> int:
    """Return what the second of two layers keeps on the card, with its output in place of its input."""
    parallel = config.parallel
    sizes = {
        "tp": parallel.tensor_model_parallel_size,
        "cp": parallel.context_parallel_size,
        "ep": parallel.expert_model_parallel_size,
        "expert_tp": expert_tensor_parallel_size(config),
    }
    sizes["expert_tp_ep"] = sizes["ep"] * sizes["expert_tp"]
    state = ParallelState(world_size=8, **{axis: first_of(size) for axis, size in sizes.items()})
    sigma = sizes["tp"] if parallel.sequence_parallel else 1
    rows = config.data.seq_length // (sizes["cp"] * sigma)
    held: list[int] = []
    stage = stage_of(config, CARD, state)
    shape = (rows, config.data.micro_batch_size, config.model.hidden_size)
    hidden = torch.empty(shape, device=CARD, dtype=torch.bfloat16, requires_grad=True)
    for layer in stage.layers:
        layer.register_forward_pre_hook(lambda *_: held.append(live()))
    out = stage._run_layers(hidden)
    held.append(live())
    del out
    return held[2] - held[1]
