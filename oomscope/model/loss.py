"""Cross-entropy over a vocabulary that is split over the ranks, with Megatron-Core's memory shape.

The 16-bit logits and their fp32 copy are alive together (6 bytes a logit: the peak of many runs). The copy becomes
the softmax in place and is kept; backward turns it into the gradient in place and casts it
(Megatron-Core ``tensor_parallel/cross_entropy.py``).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from oomscope.model.autograd import Function
from oomscope.model.tensor_parallel import TensorParallel, all_reduce


class _VocabParallelCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        ctx.dtype = logits.dtype
        softmax = logits.float()
        largest = softmax.amax(dim=-1, keepdim=True)
        if tp.size > 1:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=tp.group)
        softmax.sub_(largest)
        columns = softmax.shape[-1]
        local = (labels - tp.rank * columns).unsqueeze(-1)
        elsewhere = (local < 0) | (local >= columns)
        local.masked_fill_(elsewhere, 0)
        predicted = all_reduce(softmax.gather(-1, local).masked_fill_(elsewhere, 0.0), tp)
        total = all_reduce(torch.exp(softmax, out=softmax).sum(dim=-1, keepdim=True), tp)
        softmax.div_(total)
        ctx.save_for_backward(softmax, local, elsewhere)
        return (total.log_() - predicted).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        softmax, local, elsewhere = ctx.saved_tensors
        softmax.scatter_add_(-1, local, elsewhere.float() - 1.0)
        return softmax.mul_(grad.unsqueeze(-1)).to(ctx.dtype), None, None


def vocab_parallel_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Return the loss [s, b] in fp32 of each token.

    Args:
        logits: this rank's columns [s, b, V/t]. In fp32 they are consumed: overwritten by the softmax.
        labels: [s, b], over the whole vocabulary.
        tp: how the vocabulary is split.
    """
    return _VocabParallelCrossEntropy.apply(logits, labels, tp)  # type: ignore[no-any-return]
