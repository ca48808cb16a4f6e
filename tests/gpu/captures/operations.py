"""Operations that transformers train with, each ready to run on any device, so that what they take can be compared.

An operation is made by a function of the device and a scale: at 1 the sizes are those of a layer of some billions of
parameters, smaller ones are for trying it out. It returns a call whose result is what the operation leaves alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

Call = Callable[[], Any]
Make = Callable[["Place"], Call]
BF16, FP32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Place:
    """Where and how large."""

    device: str
    scale: float = 1.0

    def size(self, number: int) -> int:
        """Return ``number`` at this scale, a multiple of 64."""
        return max(64, int(number * self.scale) // 64 * 64)

    def random(self, *sizes: int, dtype: torch.dtype = BF16, grad: bool = False) -> Tensor:
        """Return normal numbers, the sizes scaled already."""
        return torch.randn(*sizes, dtype=dtype, device=self.device, requires_grad=grad)

    @property
    def rows(self) -> int:
        """Tokens of a microbatch."""
        return self.size(4096)

    @property
    def hidden(self) -> int:
        """The hidden size."""
        return self.size(4096)


def _forward(call: Callable[..., Any], *inputs: Any) -> Call:
    return lambda: call(*inputs)


def _backward(call: Callable[..., Tensor], *inputs: Any) -> Call:
    """Return the backward of ``call`` alone; its forward has run before, and its graph is kept."""
    output = call(*inputs)
    gradient = torch.randn_like(output)
    leaves = [each for each in inputs if isinstance(each, Tensor) and each.requires_grad]
    return lambda: torch.autograd.grad(output, leaves, gradient, retain_graph=True)


def _products(place: Place) -> Iterator[tuple[str, Call]]:
    rows, hidden = place.rows, place.hidden
    for dtype, name in ((BF16, "bf16"), (FP32, "fp32")):
        x = place.random(rows, hidden, dtype=dtype, grad=True)
        weight = place.random(4 * hidden, hidden, dtype=dtype, grad=True)
        bias = place.random(4 * hidden, dtype=dtype, grad=True)
        yield f"mm_{name}", _forward(torch.mm, x.detach(), weight.detach().t())
        yield f"linear_{name}", _forward(functional.linear, x.detach(), weight.detach(), bias.detach())
        yield f"linear_backward_{name}", _backward(functional.linear, x, weight, bias)
        yield f"linear_no_bias_backward_{name}", _backward(functional.linear, x, weight)
    heads, length, head = 32, place.size(2048), 128
    query, key = place.random(heads, length, head, grad=True), place.random(heads, length, head, grad=True)
    yield "bmm", _forward(torch.bmm, query.detach(), key.detach().transpose(1, 2))
    yield "bmm_backward", _backward(lambda a, b: torch.bmm(a, b.transpose(1, 2)), query, key)
    scores = place.random(heads, length, length)
    yield "baddbmm", _forward(torch.baddbmm, scores, query.detach(), key.detach().transpose(1, 2))
    expanded = query.detach()[:1].expand(heads, length, head)
    yield "matmul_of_expanded", _forward(torch.matmul, expanded, key.detach().transpose(1, 2))
    strided = place.random(length, heads, head).transpose(0, 1)
    yield "bmm_of_strided", _forward(torch.bmm, strided, key.detach().transpose(1, 2))


def _norms(place: Place) -> Iterator[tuple[str, Call]]:
    rows, hidden = place.rows, place.hidden
    for dtype, name in ((BF16, "bf16"), (FP32, "fp32")):
        x = place.random(rows, hidden, dtype=dtype, grad=True)
        weight, bias = place.random(hidden, dtype=dtype, grad=True), place.random(hidden, dtype=dtype, grad=True)
        layer = partial(_layer_norm, hidden)
        rms = partial(_rms_norm, hidden)
        yield f"layer_norm_{name}", _forward(layer, x.detach(), weight.detach(), bias.detach())
        yield f"layer_norm_backward_{name}", _backward(layer, x, weight, bias)
        yield f"rms_norm_{name}", _forward(rms, x.detach(), weight.detach())
        yield f"rms_norm_backward_{name}", _backward(rms, x, weight)
    mixed = place.random(hidden, dtype=FP32, grad=True)
    yield "rms_norm_mixed", _forward(partial(_rms_norm, hidden), place.random(rows, hidden), mixed.detach())


def _layer_norm(hidden: int, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, (hidden,), weight, bias)


def _rms_norm(hidden: int, x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (hidden,), weight)


def _pointwise(place: Place) -> Iterator[tuple[str, Call]]:
    rows, hidden = place.rows, place.hidden
    x = place.random(rows, 4 * hidden, grad=True)
    for name, call in (
        ("gelu", functional.gelu),
        ("gelu_tanh", partial(functional.gelu, approximate="tanh")),
        ("silu", functional.silu),
        ("relu", functional.relu),
        ("dropout", partial(functional.dropout, p=0.1, training=True)),
        ("glu", functional.glu),
        ("cast", lambda value: value.float()),
        ("square", lambda value: value.square()),
    ):
        yield name, _forward(call, x.detach())
        yield f"{name}_backward", _backward(call, x)
    yield "swiglu_chunks_backward", _backward(lambda value: _swiglu(*value.chunk(2, dim=-1)), x)
    yield "add_bias_backward", _backward(torch.add, x, place.random(4 * hidden, grad=True))
    yield (
        "expand_backward",
        _backward(lambda value: value.expand(rows, 4 * hidden), place.random(4 * hidden, grad=True)),
    )


def _swiglu(gate: Tensor, value: Tensor) -> Tensor:
    return functional.silu(gate) * value


def _attention(place: Place) -> Iterator[tuple[str, Call]]:
    heads, length = 32, place.size(4096)
    for head in (64, 128, 96):
        query, key, value = (place.random(1, heads, length, head, grad=True) for _ in range(3))
        for kernel, name in (
            (SDPBackend.FLASH_ATTENTION, "flash"),
            (SDPBackend.CUDNN_ATTENTION, "cudnn"),
            (SDPBackend.EFFICIENT_ATTENTION, "efficient"),
        ):
            for dropout in (0.0, 0.1):
                call = partial(_sdpa, kernel, dropout)
                title = f"sdpa_{name}_{head}{'_dropout' if dropout else ''}"
                yield title, partial(call, query.detach(), key.detach(), value.detach())
                yield f"{title}_backward", _late_backward(call, query, key, value)
    few = [place.random(1, number, length, 128, grad=True) for number in (heads, 8, 8)]
    grouped = partial(_sdpa, SDPBackend.FLASH_ATTENTION, 0.0, enable_gqa=True)
    yield "sdpa_flash_gqa", partial(grouped, *(each.detach() for each in few))
    yield "sdpa_flash_gqa_backward", _late_backward(grouped, *few)
    packed = place.random(1, length, 3, heads, 128, grad=True)
    unpacked = partial(_packed_sdpa, SDPBackend.FLASH_ATTENTION)
    yield "sdpa_flash_packed", partial(unpacked, packed.detach())
    yield "sdpa_flash_packed_backward", _late_backward(unpacked, packed)
    scores = place.random(1, 8, length, length, grad=True)
    for name, dtype in (("softmax_bf16", None), ("softmax_to_fp32", FP32)):
        call = partial(functional.softmax, dim=-1, dtype=dtype)
        yield name, _forward(call, scores.detach())
        yield f"{name}_backward", _backward(call, scores)
    mask = torch.ones(length, length, dtype=torch.bool, device=place.device).triu(1)
    yield "masked_fill", _forward(lambda value: value.masked_fill(mask, float("-inf")), scores.detach())


def _sdpa(kernel: SDPBackend, dropout: float, query: Tensor, key: Tensor, value: Tensor, **more: Any) -> Tensor:
    with sdpa_kernel(kernel):
        return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True, **more)


def _packed_sdpa(kernel: SDPBackend, packed: Tensor) -> Tensor:
    query, key, value = packed.unbind(2)
    return _sdpa(kernel, 0.0, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))


def _late_backward(call: Callable[..., Tensor], *inputs: Tensor) -> Call:
    """Return a backward whose forward runs on the first call, since not every kernel is there on every device."""
    ready: list[Call] = []

    def run() -> Any:
        if not ready:
            ready.append(_backward(call, *inputs))
        return ready[0]()

    return run


def _vocabulary(place: Place) -> Iterator[tuple[str, Call]]:
    rows, words, hidden = place.rows, place.size(32000), place.size(1024)
    labels = torch.randint(words, (rows,), device=place.device)
    table = place.random(words, hidden, grad=True)
    yield "embedding", _forward(functional.embedding, labels, table.detach())
    yield "embedding_backward", _backward(lambda weight: functional.embedding(labels, weight), table)
    for dtype, name in ((BF16, "bf16"), (FP32, "fp32")):
        logits = place.random(rows, words, dtype=dtype, grad=True)
        loss = partial(_loss, labels)
        yield f"cross_entropy_{name}", _forward(loss, logits.detach())
        yield f"cross_entropy_backward_{name}", _backward(loss, logits)
    logits = place.random(rows, words, grad=True)
    yield "cross_entropy_of_float", _forward(lambda value: _loss(labels, value.float()), logits.detach())
    yield "cross_entropy_of_float_backward", _backward(lambda value: _loss(labels, value.float()), logits)
    yield "log_softmax", _forward(partial(functional.log_softmax, dim=-1), logits.detach())
    yield "argmax", _forward(partial(torch.argmax, dim=-1), logits.detach())
    yield "logsumexp", _forward(partial(torch.logsumexp, dim=-1), logits.detach())


def _loss(labels: Tensor, logits: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels)


def _routing(place: Place) -> Iterator[tuple[str, Call]]:
    rows, hidden, experts = place.rows, place.size(2048), 64
    tokens = place.random(rows, hidden, grad=True)
    scores = place.random(rows, experts, dtype=FP32, grad=True)
    chosen = torch.randint(experts, (rows * 2,), device=place.device)
    order = chosen.argsort()
    to = order.remainder(rows)
    yield "topk", _forward(lambda value: torch.topk(value, 8, dim=-1), scores.detach())
    yield "topk_backward", _backward(lambda value: torch.topk(value, 8, dim=-1).values, scores)
    yield "sort", _forward(torch.sort, chosen)
    yield "argsort", _forward(torch.argsort, chosen)
    yield "argsort_stable", _forward(partial(torch.argsort, stable=True), chosen)
    yield "bincount", _forward(partial(torch.bincount, minlength=experts), chosen)
    yield "histc", _forward(partial(torch.histc, bins=experts, min=0, max=experts), chosen.float())
    yield "nonzero", _forward(torch.nonzero, chosen == 1)
    yield "masked_select", _forward(torch.masked_select, chosen, chosen > 1)
    yield "cumsum", _forward(partial(torch.cumsum, dim=0), scores.detach())
    yield "index_select", _forward(torch.index_select, tokens.detach(), 0, to)
    yield "index_select_backward", _backward(lambda value: value.index_select(0, to), tokens)
    yield "index_backward", _backward(lambda value: value[to], tokens)
    yield "gather_backward", _backward(lambda value: value.gather(1, chosen[:rows, None]), scores)
    wide = to[:, None].expand(-1, hidden)
    zeros, rows2 = torch.zeros_like(tokens), place.random(rows * 2, hidden)
    yield "scatter_add", _forward(lambda: zeros.scatter_add(0, wide, rows2))
    yield "index_add", _forward(lambda: zeros.index_add(0, to, rows2))
    yield "index_put_accumulate", _forward(lambda: zeros.index_put((to,), rows2, accumulate=True))
    yield "one_hot", _forward(functional.one_hot, chosen)
    yield "repeat_interleave", _forward(lambda value: value.repeat_interleave(4, dim=1), tokens.detach())


def _reductions(place: Place) -> Iterator[tuple[str, Call]]:
    rows, hidden = place.rows, place.hidden
    x = place.random(rows, 4 * hidden)
    yield "sum_all", _forward(torch.sum, x)
    yield "sum_rows", _forward(partial(torch.sum, dim=0), x)
    yield "sum_columns", _forward(partial(torch.sum, dim=1), x)
    yield "mean_to_fp32", _forward(partial(torch.mean, dtype=FP32), x)
    yield "norm", _forward(torch.linalg.vector_norm, x)
    yield "max", _forward(torch.max, x)
    yield "isfinite_all", _forward(lambda value: value.isfinite().all(), x)
    yield "cat", _forward(torch.cat, [x, x])
    yield "contiguous", _forward(lambda value: value.t().contiguous(), x)
    yield "einsum", _forward(partial(torch.einsum, "ij,kj->ik"), x[:512], x[512:1024])


def _optimizers(place: Place) -> Iterator[tuple[str, Call]]:
    sizes = [(place.hidden, place.hidden)] * 4 + [(place.hidden,)] * 4
    for name, options in (("foreach", {"foreach": True}), ("fused", {"fused": True}), ("single", {"foreach": False})):
        for dtype, kind in ((BF16, "bf16"), (FP32, "fp32")):
            parameters = [nn.Parameter(place.random(*size, dtype=dtype)) for size in sizes]
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer = torch.optim.AdamW(parameters, lr=1e-4, **options)
            optimizer.step()
            yield f"adamw_{name}_{kind}", optimizer.step
            if name == "foreach":
                yield f"clip_grad_norm_{kind}", partial(nn.utils.clip_grad_norm_, parameters, 1.0)
    sgd = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
    sgd.step()
    yield "sgd_momentum", sgd.step


FAMILIES: dict[str, Callable[[Place], Iterator[tuple[str, Call]]]] = {
    "products": _products,
    "norms": _norms,
    "pointwise": _pointwise,
    "attention": _attention,
    "vocabulary": _vocabulary,
    "routing": _routing,
    "reductions": _reductions,
    "optimizers": _optimizers,
}
