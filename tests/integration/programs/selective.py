"""A mixture of experts under selective checkpointing, an entry: the host reads by which counts to split tokens."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


def policy(_: object, operation: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    is_saved = operation is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE


def contexts() -> object:
    return create_selective_checkpoint_contexts(policy)


def setup(_: object) -> Callable[[], None]:
    router, experts = nn.Linear(256, 8).cuda(), nn.ModuleList(nn.Linear(256, 256) for _ in range(8)).cuda()
    optimizer = torch.optim.AdamW([*router.parameters(), *experts.parameters()])

    def layer(tokens: torch.Tensor) -> torch.Tensor:
        chosen = router(tokens).softmax(-1).topk(2).indices
        counts = torch.zeros(len(tokens), 8, dtype=torch.bool, device="cuda").scatter_(-1, chosen, True).sum(0)
        order = chosen.view(-1).argsort(stable=True) // 2
        parts = tokens[order].split(counts.tolist())
        return torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])

    def step() -> None:
        tokens = torch.randn(2048, 256, device="cuda", requires_grad=True)
        checkpoint(layer, tokens, use_reentrant=False, context_fn=contexts).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
