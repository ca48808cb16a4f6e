"""Stages of any split on the meta device, and what they save for backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from oomscope.config.schema import Config
from oomscope.model.gpt.stage import GPTStage
from oomscope.model.parallel.parallel_state import ParallelState, Place, expert_tensor_parallel_size


def config_of(**sections: dict) -> Config:
    """A GPT of two layers; ``sections`` override single keys."""
    model = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 1000}
    document = {"data": {"seq_length": 16, "micro_batch_size": 2}, **sections}
    return Config.model_validate({**document, "model": {**model, **sections.get("model", {})}})


def cpu_stage(
    config: Config,
    *,
    layers: range | None = None,
    pre_process: bool = True,
    post_process: bool = True,
    dtype: torch.dtype = torch.float32,
) -> GPTStage:
    """The stage of a world of one, all of the model unless something else is said."""
    return GPTStage(
        config,
        ParallelState(),
        layers=range(config.model.num_layers) if layers is None else layers,
        pre_process=pre_process,
        post_process=post_process,
        device=torch.device("cpu"),
        dtype=dtype,
    )


class Meter:
    """Saved bytes by storage, parameters left out."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
        self._kept: dict[int, torch.UntypedStorage] = {}

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self._kept.values())

    def __call__(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            return run()

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._parameters:
            self._kept[storage._cdata] = storage
        return tensor


def hidden_of(config: Config) -> torch.Tensor:
    """The part of the hidden states that a rank gives to a layer."""
    parallel, sizes = config.parallel, config.data
    parts = parallel.context_parallel_size * (parallel.tensor_model_parallel_size if parallel.sequence_parallel else 1)
    shape = (sizes.seq_length // parts, sizes.micro_batch_size, config.model.hidden_size)
    return torch.empty(shape, device="meta", dtype=torch.bfloat16, requires_grad=True)


def saved_by_layer(stage: GPTStage, config: Config) -> int:
    """Run the first layer of ``stage`` forward and backward; return the bytes that it saved in between."""
    meter, hidden = Meter(stage.layers[0]), hidden_of(config)
    out = meter(lambda: stage.layers[0](hidden))
    saved = meter.bytes
    out.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.shape == hidden.shape
    return saved


def loss_and_gradients(config: Config) -> dict[str, torch.Tensor]:
    """One pass in fp32 over 32 tokens."""
    stage, tokens = cpu_stage(config), torch.arange(32).view(2, 16)
    loss = stage(tokens, tokens.roll(-1, 1))
    loss.backward()
    return {"loss": loss.detach(), **{name: parameter.grad for name, parameter in stage.named_parameters()}}


@pytest.fixture
def fake_world() -> Iterator[None]:
    """Rank 0 of a world of eight whose collectives do nothing."""
    dist.init_process_group("cpu:fake,meta:fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.fixture
def meta_stage(fake_world: None) -> Callable[..., GPTStage]:
    """Make the stage that holds a whole configuration, on rank 0 of its TP group."""

    def make(config: Config, *, device: str = "meta") -> GPTStage:
        parallel = config.parallel
        sizes = {
            "tp": parallel.tensor_model_parallel_size,
            "cp": parallel.context_parallel_size,
            "ep": parallel.expert_model_parallel_size,
            "expert_tp": expert_tensor_parallel_size(config),
        }
        neighbours, ring = config.context_levels if config.cp_comm_type == "a2a+p2p" else (1, 1)
        sizes |= {"cp_a2a": neighbours, "cp_p2p": ring, "expert_tp_ep": sizes["ep"] * sizes["expert_tp"]}
        places = {
            axis: Place(size=size, group=dist.new_group(list(range(size)))) for axis, size in sizes.items() if size > 1
        }
        return GPTStage(
            config,
            ParallelState(world_size=8, **places),
            layers=range(config.model.num_layers),
            pre_process=True,
            post_process=True,
            device=torch.device(device),
            dtype=torch.bfloat16 if config.precision.bf16 else torch.float32,
        )

    return make
