"""Cross-entropy over a vocabulary that is split over the ranks, in the three ways of Megatron-Core.

Plain: the logits' fp32 copy becomes the softmax in place and is kept; backward turns it into the gradient in place and
casts it. Compiled: backward copies the softmax first. Transformer Engine's: forward leaves the gradient alone, in fp32
or, in older versions, in the place of the logits.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist

from oomscope.config.schema import Config
from oomscope.model.base.device import computes
from oomscope.model.base.operations import Function, all_gather
from oomscope.model.parallel.tensor_parallel import TensorParallel, all_reduce

_GRADIENT_IN_FP32 = (2, 18)
"""The first version of Transformer Engine that does not write gradients over the logits (its pull request 3193)."""


LossKernels = Literal["plain", "native", "te", "te over logits"]
"""As written, compiled (``cross_entropy_fusion_impl``), or Transformer Engine's, which may overwrite the logits."""


def loss_kernels(config: Config) -> LossKernels:
    """Return what the loss of ``config`` is made of; without a version, Transformer Engine is the newest.

    Source: Megatron-Core ``models/common/language_module/language_module.py``, ``compute_language_model_loss``.
    """
    if not config.model.cross_entropy_loss_fusion:
        return "plain"
    if config.model.cross_entropy_fusion_impl == "native":
        return "native"
    return "te over logits" if config.te_version is not None and config.te_version < _GRADIENT_IN_FP32 else "te"


def _into_softmax(
    softmax: torch.Tensor, labels: torch.Tensor, tp: TensorParallel
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Turn fp32 logits into their softmax in place; return the loss [s, b], the labels' columns and which lack here."""
    largest = softmax.amax(dim=-1, keepdim=True)
    if tp.size > 1:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=tp.group)
    softmax.sub_(largest)
    local = (labels - tp.rank * softmax.shape[-1]).unsqueeze(-1)
    elsewhere = (local < 0) | (local >= softmax.shape[-1])
    local = local.masked_fill_(elsewhere, 0)
    predicted = all_reduce(softmax.gather(-1, local).masked_fill_(elsewhere, 0.0), tp)
    total = all_reduce(torch.exp(softmax, out=softmax).sum(dim=-1, keepdim=True), tp)
    softmax.div_(total)
    return (total.log_() - predicted).squeeze(-1), local, elsewhere


class _VocabParallelCrossEntropy(Function):
    """Megatron-Core ``tensor_parallel/cross_entropy.py``; compiled, ``fusions/fused_cross_entropy.py``.

    The compiler keeps what is done in place in the forward regions. Its region for the gradients must not change the
    softmax that it is given, and scatters into a copy (Inductor's code for ``calculate_gradients``).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, tp: TensorParallel, is_compiled: bool
    ) -> torch.Tensor:
        ctx.dtype = logits.dtype
        ctx.is_compiled = is_compiled
        softmax = logits.float()
        loss, local, elsewhere = _into_softmax(softmax, labels, tp)
        ctx.save_for_backward(softmax, local, elsewhere)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        softmax, local, elsewhere = ctx.saved_tensors
        grad_logits = softmax.clone() if ctx.is_compiled else softmax
        grad_logits.scatter_add_(-1, local, elsewhere.float() - 1.0)
        return grad_logits.mul_(grad.unsqueeze(-1)).to(ctx.dtype), None, None, None


class _StoredGradient(Function):
    """Transformer Engine ``pytorch/triton/cross_entropy.py``: two kernels forward, the second of which writes the
    gradient, and one that scales it backward. Autograd casts an fp32 gradient to the logits' format.

    Between them each rank gathers three numbers a row of all ranks.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, tp: TensorParallel, overwrites: bool
    ) -> torch.Tensor:
        gradient = logits.detach() if overwrites else torch.empty_like(logits, dtype=torch.float32)
        loss = torch.zeros(labels.shape, dtype=torch.float32, device=logits.device)
        mine = torch.zeros((3, *labels.shape), dtype=torch.float32, device=logits.device)
        if tp.size > 1:
            all_gather(mine.new_zeros((tp.size * 3, *labels.shape)), mine, tp.group)
        if computes(logits.device):
            softmax = logits.to(torch.float32, copy=True)
            losses, local, elsewhere = _into_softmax(softmax, labels, tp)
            loss.copy_(losses)
            gradient.copy_(softmax.scatter_add_(-1, local, elsewhere.float() - 1.0))
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(grad.unsqueeze(-1)), None, None, None


def vocab_parallel_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, tp: TensorParallel, kernels: LossKernels
) -> torch.Tensor:
    """Return the loss [s, b] in fp32 of each token, from this rank's columns [s, b, V/t] and the labels [s, b].

    Logits in fp32 may be overwritten, by the softmax or by the gradient.
    """
    if kernels in ("plain", "native"):
        return _VocabParallelCrossEntropy.apply(logits, labels, tp, kernels == "native")  # type: ignore[no-any-return]
    return _StoredGradient.apply(logits, labels, tp, kernels == "te over logits")  # type: ignore[no-any-return]
