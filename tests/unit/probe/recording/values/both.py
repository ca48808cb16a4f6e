"""Compares what torch computes on the host with what a computed card holds of the same operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

Result = Any
Compared = tuple[Callable[..., Result], tuple[Any, ...]]
HALF, NARROW = torch.float16, torch.bfloat16


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def attention(backend: SDPBackend, dtype: torch.dtype, heads: int = 4, **how: Any) -> Compared:
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None) -> Result:
        if not query.is_cuda:
            return functional.scaled_dot_product_attention(query, key, value, mask, **how)
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(query, key, value, mask, **how)

    return attend, tuple(randn(2, each, 16, 8, dtype=dtype) for each in (4, heads, heads))


def masked_attention() -> Compared:
    attend, operands = attention(SDPBackend.EFFICIENT_ATTENTION, torch.float32)
    return attend, (*operands, randn(2, 4, 16, 16))


def optimizer(make: Callable[..., torch.optim.Optimizer], **how: Any) -> Compared:
    def steps(*start: torch.Tensor) -> Result:
        parameters = [nn.Parameter(each.detach().clone()) for each in start]
        optimizer = make(parameters, lr=0.1, **how)
        for _ in range(3):
            optimizer.zero_grad()
            sum((each - 1).square().sum() for each in parameters).backward()
            optimizer.step()
        return tuple(each.detach() for each in parameters)

    return steps, (torch.randn(5, 5), torch.randn(7))


def assigned(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y[:, :4] = x[:, :4]
    y[:, 4:] = 1
    y[0] = x[1]
    y[x > 1] = 0
    return y


def normed(function: Callable[..., Any], *shape: int, dtype: torch.dtype) -> Compared:
    return function, (randn(*shape, dtype=dtype), randn(4, dtype=dtype), randn(4, dtype=dtype))


def batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Result:
    mean, var = torch.zeros(4, device=x.device), torch.ones(4, device=x.device)
    return functional.batch_norm(x, mean, var, weight.float(), bias.float(), training=True), mean, var


def coalesced(places: torch.Tensor, numbers: torch.Tensor) -> Result:
    pairs = torch.sparse_coo_tensor(places, numbers, (4, 5)).coalesce()
    rows = pairs.to_sparse_csr()
    return pairs.indices(), pairs.values(), rows.crow_indices(), rows.values()


def counted(x: torch.Tensor) -> Result:
    """Return a histogram; the host makes none of integers."""
    x = x if x.is_cuda else x.double()
    return torch.histc(x, 8, 0, 7).long(), torch.histc(x, bins=3).long()


def numbers(least: int, below: int, *shape: int) -> torch.Tensor:
    return torch.randint(least, below, shape)


OPERATIONS: dict[str, Callable[[], dict[str, Compared]]] = {
    "attention": lambda: {
        "flash": attention(SDPBackend.FLASH_ATTENTION, NARROW, is_causal=True),
        "cudnn": attention(SDPBackend.CUDNN_ATTENTION, HALF, scale=0.5),
        "efficient": attention(SDPBackend.EFFICIENT_ATTENTION, torch.float32, is_causal=True),
        "efficient, a mask": masked_attention(),
        "math": attention(SDPBackend.MATH, torch.float32, is_causal=True),
        "grouped": attention(SDPBackend.FLASH_ATTENTION, NARROW, heads=2, enable_gqa=True),
    },
    "convolution": lambda: {
        "2d": (lambda x, w, b: functional.conv2d(x, w, b, 2, 1), (randn(2, 3, 8, 8), randn(4, 3, 3, 3), randn(4))),
        "depthwise": (lambda x, w: functional.conv2d(x, w, groups=4), (randn(2, 4, 8, 8), randn(4, 1, 3, 3))),
        "transposed": (
            lambda x, w: functional.conv_transpose2d(x, w, stride=2),
            (randn(2, 3, 4, 4), randn(3, 4, 2, 2)),
        ),
        "1d": (lambda x, w: functional.conv1d(x, w, dilation=2), (randn(2, 3, 16), randn(4, 3, 3))),
        "3d": (functional.conv3d, (randn(2, 3, 4, 4, 4), randn(4, 3, 3, 3, 3))),
        "narrow": (functional.conv2d, (randn(2, 3, 8, 8, dtype=HALF), randn(4, 3, 3, 3, dtype=HALF))),
        "pooling": (lambda x: functional.max_pool2d(x, 2), (randn(2, 4, 8, 8),)),
        "interpolation": (
            lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear"),
            (randn(1, 2, 4, 4),),
        ),
        "sampled": (
            lambda x, grid: functional.grid_sample(x, grid, align_corners=True),
            (randn(1, 2, 8, 8), randn(1, 4, 4, 2)),
        ),
        "unfold": (lambda x: functional.unfold(x, 3), (randn(1, 2, 8, 8),)),
    },
    "norm": lambda: {
        f"{name} {dtype}": normed(function, *shape, dtype=dtype)
        for dtype in (torch.float32, NARROW)
        for name, function, shape in (
            ("layer", lambda x, w, b: functional.layer_norm(x, (4,), w, b), (8, 4)),
            ("rms", lambda x, w, b: functional.rms_norm(x, (4,), w) + b, (8, 4)),
            ("group", lambda x, w, b: functional.group_norm(x, 2, w, b), (2, 4, 8)),
            ("batch", batch_norm, (8, 4, 6)),
        )
    },
    "count": lambda: {
        "nonzero": (torch.nonzero, (numbers(0, 2, 5, 6),)),
        "mask": (lambda x, mask: x[mask], (randn(5, 6), numbers(0, 2, 5, 6).bool())),
        "mask of columns": (lambda x, mask: x[:, mask], (randn(5, 6), numbers(0, 2, 6).bool())),
        "masked_select": (torch.masked_select, (randn(5, 6), numbers(0, 2, 5, 6).bool())),
        "where": (torch.where, (numbers(0, 2, 5, 6),)),
        "unique": (lambda x: x.unique(return_inverse=True, return_counts=True), (numbers(0, 5, 20),)),
        "unique booleans": (torch.unique, (numbers(0, 2, 20).bool(),)),
        "unique rows": (lambda x: x.unique(dim=0), (numbers(0, 2, 20, 2),)),
        "unique columns": (lambda x: x.unique(dim=1), (numbers(0, 2, 2, 20),)),
        "unique_consecutive": (torch.unique_consecutive, (numbers(0, 2, 20),)),
        "bincount": (torch.bincount, (numbers(0, 9, 20),)),
        "histc": (counted, (numbers(0, 9, 20),)),
        "repeat_interleave": (lambda x, n: x.repeat_interleave(n, 0), (randn(4, 2), torch.tensor([1, 0, 2, 3]))),
        "one_hot": (functional.one_hot, (numbers(0, 9, 20),)),
        "equal": (lambda x: (torch.equal(x, x + 0), torch.equal(x, x + 1)), (torch.randn(4),)),
        "read": (lambda x: (x.tolist(), x.sum().item(), bool((x > 7).any())), (numbers(0, 9, 20),)),
        "finite": (lambda x: torch.isfinite(x / 0).any().item(), (torch.randn(4),)),
        "factorised": (lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(4, device=x.device)), (randn(4, 4),)),
    },
    "sparse": lambda: {
        "coalesced": (coalesced, (numbers(0, 4, 2, 20), torch.randn(20))),
        "coalesced booleans": (coalesced, (numbers(0, 4, 2, 20), numbers(0, 2, 20).bool())),
        "of a dense one": (lambda x: x.to_sparse().values(), (numbers(0, 2, 5, 6),)),
    },
    "index": lambda: {
        "embedding": (functional.embedding, (numbers(0, 9, 4), randn(9, 3))),
        "gather": (lambda x, i: x.gather(1, i), (randn(4, 5), numbers(0, 5, 4, 2))),
        "scatter": (lambda x, i: torch.zeros(9, device=x.device).scatter_add(0, i, x), (randn(5), numbers(0, 9, 5))),
        "put": (
            lambda x, i: torch.zeros(9, device=x.device).index_put((i,), x, accumulate=True),
            (randn(5), numbers(0, 9, 5)),
        ),
        "assigned": (assigned, (torch.randn(4, 8),)),
        "topk": (lambda x: x.topk(3), (randn(4, 8),)),
        "sort": (torch.sort, (randn(4, 8),)),
        "loss": (functional.cross_entropy, (randn(8, 5), numbers(0, 5, 8))),
        "log-sigmoid": (functional.logsigmoid, (randn(8),)),
    },
    "arithmetic": lambda: {
        "numbers": (lambda x: 2 / x.abs().add(1.5).pow(2) - 1, (randn(3),)),
        "integers": (lambda x: ((x + 1) * 2 % 3, x * 1.5, x > 1.5, x.sum() * 2.5), (numbers(0, 9, 3),)),
        "halves": (lambda x: x * 1.5 + 2, (randn(3, dtype=HALF),)),
        "clamp": (lambda x: x.clamp(-0.5, 0.5), (randn(14),)),
        "in place": (lambda x: x.clone().add_(1).mul_(2).relu_(), (randn(8),)),
        "products": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (randn(2, 3, 4), randn(2, 5, 4))),
        "reduced": (lambda x: (x.std(), x.norm(), x.median(), x.cumsum(0), x.softmax(-1)), (randn(9),)),
        "complex": (
            lambda x: torch.stft(x, 16, window=torch.ones_like(x[:16]), return_complex=True).abs(),
            (randn(64),),
        ),
        "conjugated": (lambda x: (torch.complex(x, x).conj() * 2j).real + 0, (randn(4),)),
        "fp8": (lambda x: x.to(torch.float8_e4m3fn).float(), (torch.randn(8),)),
    },
    "optimizer": lambda: {
        "AdamW": optimizer(torch.optim.AdamW),
        "AdamW, fused": optimizer(torch.optim.AdamW, fused=True),
        "AdamW, one by one": optimizer(torch.optim.AdamW, foreach=False),
        "SGD": optimizer(torch.optim.SGD, momentum=0.9, nesterov=True),
        "Adafactor": optimizer(torch.optim.Adafactor),
    },
}
"""By group: operations and their operands on the host. Those that require gradients get them."""


def differing(group: str) -> list[str]:
    """Return the names of the operations whose results or gradients are not the same on the card."""
    torch.manual_seed(0)
    operations = OPERATIONS[group]()
    return [name for name, (function, operands) in operations.items() if not _is_same(function, operands)]


def _is_same(function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
    expected, found = (_outcome(function, operands, device) for device in ("cpu", "cuda"))
    return len(expected) == len(found) and all(map(_is_close, expected, found))


def _outcome(function: Callable[..., Any], operands: tuple[Any, ...], device: str) -> list[Any]:
    """Return results and gradients, on the host."""
    given = [each.detach().to(device).requires_grad_(each.requires_grad) for each in operands]
    result = function(*given)
    results = list(result) if isinstance(result, tuple) else [result]
    tracked = [each for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
    if tracked:
        sum(each.float().square().sum() for each in tracked).backward()
    everything = [*results, *(each.grad for each in given if each.grad is not None)]
    return [each.detach().cpu() if isinstance(each, torch.Tensor) else each for each in everything]


def _is_close(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    bound = 0.1 if one.dtype in (HALF, NARROW) else 1e-3
    return one.dtype == other.dtype and torch.allclose(one.double(), other.double(), atol=bound, rtol=bound)
