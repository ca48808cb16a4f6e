"""Two gloo processes that share every matrix compute what one process computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from oomscope.config.schema import Config
from oomscope.model.base.dropout import dropout
from oomscope.model.base.random import ModelParallelRandom
from oomscope.model.gpt.stage import GPTStage
from oomscope.model.layers.cross_entropy import LossForm, vocab_parallel_cross_entropy
from oomscope.model.parallel.parallel_state import ParallelState
from oomscope.model.parallel.tensor_parallel import TensorParallel
from tests.ranks import run_ranks

CPU = torch.device("cpu")
TOKENS = torch.arange(32).view(2, 16)
BASE = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
LLAMA = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": "silu",
    "add_bias_linear": False,
    "num_query_groups": 2,
    "attention_backend": "flash",
    "share_embeddings_and_output_weights": False,
}
CASES = [
    (model, sequence_parallel, recompute)
    for model in ({}, LLAMA, {"qk_layernorm": True, "num_query_groups": 2, "transformer_impl": "local"})
    for sequence_parallel in (False, True)
    for recompute in (
        {},
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 2},
        {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp", "layernorm"]},
    )
]
DISTRIBUTED = (
    {},
    False,
    {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
        "distribute_saved_activations": True,
    },
)


def run(case, state: ParallelState) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model, sequence_parallel, recompute = case
    config = Config.model_validate(
        {
            "model": {**BASE, **model, "make_vocab_size_divisible_by": 64},
            "data": {"seq_length": 16, "micro_batch_size": 2},
            "precision": {"bf16": False},
            "parallel": {"tensor_model_parallel_size": state.tp_size, "sequence_parallel": sequence_parallel},
            "recompute": recompute,
        }
    )
    stage = GPTStage(
        config, state, layers=range(2), pre_process=True, post_process=True, device=CPU, dtype=torch.float32
    )
    loss = stage(TOKENS, TOKENS.roll(-1, 1))
    loss.backward()
    gradients = {}
    for name, parameter in stage.named_parameters():
        gradient = parameter.grad
        if parameter.sequence_parallel:
            dist.all_reduce(gradient, group=state.tp_group)
        gradients[name] = gradient
    return loss.detach(), gradients


def shard(name: str, whole: torch.Tensor, mine: torch.Tensor, rank: int) -> torch.Tensor:
    """Cut the single process's gradient as the ranks hold it: by rows block by block, or by columns."""
    if whole.shape == mine.shape:
        return whole
    if whole.shape[1:] != mine.shape[1:]:
        return whole.chunk(2, 1)[rank]
    if ".qkv." in name:
        d = 8
        g = (whole.shape[0] // d - 4) // 2
        blocks = whole.split([4 * d, g * d, g * d])
    elif ".fc1." in name and whole.shape[0] == 2 * 128:
        blocks = whole.chunk(2)
    else:
        blocks = (whole,)
    return torch.cat([block.chunk(2)[rank] for block in blocks])


def check_cases(rank: int) -> None:
    state = ParallelState(rank=rank, world_size=2, tp_rank=rank, tp_size=2, tp_group=dist.group.WORLD)
    for case in (*CASES, DISTRIBUTED):
        loss, gradients = run(case, state)
        expected_loss, expected = run((case[0], False, {}), ParallelState())
        torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=1e-6)
        for name, gradient in gradients.items():
            whole = shard(name, expected[name], gradient, rank)
            torch.testing.assert_close(gradient, whole, rtol=1e-5, atol=1e-6, msg=f"{case}: {name}")


LOSSES = (
    LossForm(),
    LossForm(kernels="native"),
    LossForm(kernels="te"),
    LossForm(kernels="te", overwrites_logits=True),
)


def check_loss(rank: int) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 3, 8, generator=generator, dtype=torch.float32)
    labels = torch.randint(0, 8, (5, 3), generator=generator)
    for dtype in (torch.float32, torch.bfloat16):
        whole = logits.to(dtype, copy=True).requires_grad_()
        expected = torch.nn.functional.cross_entropy(whole.float().flatten(0, 1), labels.flatten(), reduction="none")
        (expected * torch.arange(15)).sum().backward()
        tp = TensorParallel(group=dist.group.WORLD, rank=rank, size=2)
        for form in LOSSES:
            mine = logits.to(dtype).chunk(2, -1)[rank].clone().requires_grad_()
            loss = vocab_parallel_cross_entropy(mine * 1, labels, tp, form)
            (loss.flatten() * torch.arange(15)).sum().backward()
            torch.testing.assert_close(loss.flatten(), expected, rtol=1e-5, atol=1e-6)
            rounded_twice = 2e-2 if form.overwrites_logits and dtype == torch.bfloat16 else 1e-5
            gradient = whole.grad.chunk(2, -1)[rank]
            torch.testing.assert_close(mine.grad, gradient, rtol=rounded_twice, atol=1e-6, msg=f"{form} {dtype}")


def check_dropout(rank: int) -> None:
    """Masks agree outside the parallel region, differ inside, and the outer stream is not disturbed."""
    torch.manual_seed(9)
    random = ModelParallelRandom(CPU, seed=9, tp_rank=rank, tp_size=2)
    ones = torch.ones(256)
    masks = [dropout(ones, 0.5)]
    with random.fork():
        masks.append(dropout(ones, 0.5))
    masks.append(dropout(ones, 0.5))
    with random.fork():
        masks.append(dropout(ones, 0.5))
    gathered = [torch.empty(4, 256) for _ in range(2)]
    dist.all_gather(gathered, torch.stack(masks))
    same = [torch.equal(one, two) for one, two in zip(*gathered, strict=True)]
    assert same == [True, False, True, False]
    assert not torch.equal(masks[1], masks[3])
    torch.manual_seed(9)
    assert torch.equal(torch.stack([dropout(ones, 0.5) for _ in range(2)]), torch.stack(masks[::2]))


def check_main_gradients(rank: int) -> None:
    """Fused weight gradients land in ``main_grad``, summed over microbatches, and leave no ``grad``."""
    state = ParallelState(rank=rank, world_size=2, tp_rank=rank, tp_size=2, tp_group=dist.group.WORLD)
    config = Config.model_validate(
        {
            "model": BASE,
            "data": {"seq_length": 16, "micro_batch_size": 2},
            "precision": {"bf16": False, "gradient_accumulation_fusion": True},
            "parallel": {"tensor_model_parallel_size": 2},
        }
    )
    stages = [
        GPTStage(config, state, layers=range(2), pre_process=True, post_process=True, device=CPU, dtype=torch.float32)
        for _ in range(2)
    ]
    for parameter in stages[0].parameters():
        parameter.main_grad = torch.zeros_like(parameter)
    for stage in stages:
        for _ in range(2):
            stage(TOKENS, TOKENS).backward()
    for (name, fused), plain in zip(stages[0].named_parameters(), stages[1].parameters(), strict=True):
        if name.endswith(("qkv.weight", "projection.weight", "fc1.weight", "fc2.weight")):
            assert fused.grad is None
            torch.testing.assert_close(fused.main_grad, plain.grad)


@pytest.mark.parametrize("check", [check_cases, check_loss, check_dropout, check_main_gradients])
def test_two_ranks(tmp_path: Path, check):
    run_ranks(check, world=2, folder=tmp_path)
