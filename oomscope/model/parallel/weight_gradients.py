"""How a linear layer gives its weight's gradient: to autograd, or straight into the main gradients.

In the second way (``gradient_accumulation_fusion``) autograd is given a placeholder, so that what waits for the
parameter's gradient still hears of it: memory of the weight's shape that nobody reads, made once for each shape and
kept for the whole run (Transformer Engine ``pytorch/module/base.py``, ``get_dummy_wgrad``, which Megatron-Core
``tensor_parallel/layers.py`` uses too). Weights whose gradients nobody collects in buffers need none.
"""

from __future__ import annotations

import torch

from oomscope.model.base.observer import Observer


class Placeholders:
    """What autograd is given for weight gradients that are in their main gradients already."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._made: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}

    def of(self, weight: torch.Tensor, *, experts: bool = False) -> torch.Tensor | None:
        """Return the placeholder of ``weight``, None where no buffer collects its gradients.

        With ``experts`` the weight [E, …] is that of E experts, which upstream are E parameters of one shape.
        """
        if not hasattr(weight, "grad_added_to_main_grad"):
            return None
        weight.grad_added_to_main_grad = True
        shape = weight.shape[1:] if experts else weight.shape
        key = (shape, weight.dtype)
        if key not in self._made:
            self._made[key] = torch.empty(shape, dtype=weight.dtype, device=weight.device)
            self._observer.role("workspace", [self._made[key]])
        if getattr(weight, "zero_out_wgrad", False):
            self._made[key].zero_()
        return self._made[key].detach()


def weight_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, placeholders: Placeholders | None
) -> torch.Tensor | None:
    """Return gradᵀ · x, or with ``placeholders`` what stands for it once ``weight.main_grad`` has it.

    Args:
        grad: [..., out], of the layer's output.
        x: [..., in], the layer's input.
        weight: [out, in].
        placeholders: None gives the gradient to autograd.
    """
    grad_rows, x_rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    main_grad: torch.Tensor | None = getattr(weight, "main_grad", None) if placeholders is not None else None
    if main_grad is None or placeholders is None:
        return grad_rows.t().mm(x_rows)
    add_weight_gradient(main_grad, grad_rows, x_rows)
    return placeholders.of(weight)


def add_weight_gradient(main_grad: torch.Tensor, grad: torch.Tensor, x: torch.Tensor) -> None:
    """Add gradᵀ · x to ``main_grad`` without a temporary of its size (on accelerators)."""
    if main_grad.dtype == grad.dtype:
        main_grad.addmm_(grad.t(), x)
    elif main_grad.device.type == "cpu":  # torch has the kernel of mixed precision for accelerators only
        main_grad.addmm_(grad.t().to(main_grad.dtype), x.to(main_grad.dtype))
    else:
        torch.ops.aten.addmm.dtype_out(main_grad, grad.t(), x, main_grad.dtype, out=main_grad)
