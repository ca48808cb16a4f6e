"""Small models on the CPU or the simulated device, for what is claimed of Megatron-Core's memory options."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from oomscope.config.schema import Config
from oomscope.model.mesh import ParallelState
from oomscope.model.trainer import Trainer
from oomscope.model.transformer import GPTStage
from oomscope.probe.session import SessionSettings
from oomscope.probe.sim.session import SimSession
from oomscope.virtual.cards import find_card

CPU = torch.device("cpu")
FULL = {"recompute_granularity": "full"}
UNFUSED = {"attention_backend": "unfused"}


def config_of(**sections: dict[str, Any]) -> Config:
    """A GPT of two layers; ``sections`` override single keys."""
    model = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 1000}
    document = {"data": {"seq_length": 16, "micro_batch_size": 2}, **sections}
    return Config.model_validate({**document, "model": {**model, **sections.get("model", {})}})


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


def sim_session() -> SimSession:
    return SimSession(SessionSettings(gpu=find_card("h100-80gb"), op_temporaries=False))


def live(session: SimSession) -> int:
    """Return the requested bytes of all live blocks."""
    return session.memory.allocator.requested_bytes


def trained(config: Config, steps: int = 1) -> tuple[int, int]:
    """Return the requested bytes that a world of one holds after ``steps``, and the peak."""
    session = sim_session()
    with session:
        trainer = Trainer(config, ParallelState(), device=session.device, observer=session.observer)
        trainer.setup()
        for iteration in range(steps):
            with session.iteration(iteration):
                trainer.step(iteration)
        held = live(session)
    return held, session.memory.allocator.requested_peak


def layer_kept(config: Config) -> int:
    """Return what the second of two layers keeps on the simulated device, with its output in place of its input."""
    parallel = config.parallel
    sizes = {"tp": parallel.tensor_model_parallel_size, "cp": parallel.context_parallel_size}
    groups = {axis: dist.new_group(list(range(size))) if size > 1 else None for axis, size in sizes.items()}
    state = ParallelState(
        world_size=8,
        **{f"{axis}_size": size for axis, size in sizes.items()},  # type: ignore[arg-type]
        **{f"{axis}_group": group for axis, group in groups.items()},  # type: ignore[arg-type]
    )
    sigma = sizes["tp"] if parallel.sequence_parallel else 1
    rows = config.data.seq_length // (sizes["cp"] * sigma)
    session = sim_session()
    held: list[int] = []
    with session:
        stage = stage_of(config, session.device, state)
        shape = (rows, config.data.micro_batch_size, config.model.hidden_size)
        hidden = torch.empty(shape, device=session.device, dtype=torch.bfloat16, requires_grad=True)
        for layer in stage.layers:
            layer.register_forward_pre_hook(lambda *_: held.append(live(session)))
        out = stage._run_layers(hidden)
        held.append(live(session))
        del out
    return held[2] - held[1]
