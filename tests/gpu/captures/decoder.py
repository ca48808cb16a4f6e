"""A small decoder, written with torch alone, that trains on any device in each of the ways that captures compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the model and of its batch."""

    num_layers: int = 4
    hidden_size: int = 1024
    num_attention_heads: int = 16
    num_query_groups: int = 16
    ffn_hidden_size: int = 4096
    vocab_size: int = 32000
    seq_length: int = 2048
    micro_batch_size: int = 2
    num_microbatches: int = 1


@dataclass(frozen=True, kw_only=True)
class Way:
    """How it is trained."""

    attention: Literal["flash", "cudnn", "efficient", "unfused"] = "flash"
    activation: Literal["gelu", "swiglu"] = "gelu"
    norm: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    recompute: Literal["none", "full"] = "none"
    optimizer: Literal["foreach", "fused", "single", "sgd"] = "foreach"
    precision: Literal["bf16", "autocast", "fp32"] = "bf16"
    dropout: float = 0.0
    clip_grad: float = 1.0


def named(kind: type[Shape] | type[Way], values: dict[str, Any]) -> dict[str, Any]:
    """Return those of ``values`` that are fields of ``kind``."""
    return {name: value for name, value in values.items() if name in {each.name for each in fields(kind)}}


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: Shape, way: Way) -> None:
        super().__init__()
        self.shape, self.way = shape, way
        head = shape.hidden_size // shape.num_attention_heads
        self.head = head
        self.qkv = nn.Linear(shape.hidden_size, (shape.num_attention_heads + 2 * shape.num_query_groups) * head)
        self.out = nn.Linear(shape.hidden_size, shape.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the same shape: ``[batch, sequence, hidden]``."""
        batch, length, _ = hidden.shape
        heads, groups = self.shape.num_attention_heads, self.shape.num_query_groups
        query, key, value = (
            part.view(batch, length, -1, self.head).transpose(1, 2)
            for part in self.qkv(hidden).split((heads * self.head, groups * self.head, groups * self.head), dim=-1)
        )
        if groups != heads:
            key, value = (each.repeat_interleave(heads // groups, dim=1) for each in (key, value))
        context = (
            self._unfused(query, key, value) if self.way.attention == "unfused" else self._fused(query, key, value)
        )
        return self.out(context.transpose(1, 2).reshape(batch, length, -1))

    def _fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        kernel = {
            "flash": SDPBackend.FLASH_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION,
        }[self.way.attention]
        with sdpa_kernel(kernel):
            dropout = self.way.dropout if self.training else 0.0
            return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)

    def _unfused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = query.shape[2]
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        scores = (query @ key.transpose(-1, -2)) * self.head**-0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return functional.dropout(weights, self.way.dropout, self.training) @ value


class Mlp(nn.Module):
    """Two products with an activation between them."""

    def __init__(self, shape: Shape, way: Way) -> None:
        super().__init__()
        self.gated = way.activation == "swiglu"
        self.up = nn.Linear(shape.hidden_size, shape.ffn_hidden_size * (2 if self.gated else 1))
        self.down = nn.Linear(shape.ffn_hidden_size, shape.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the same shape."""
        wide = self.up(hidden)
        if self.gated:
            gate, wide = wide.chunk(2, dim=-1)
            return self.down(functional.silu(gate) * wide)
        return self.down(functional.gelu(wide))


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, shape: Shape, way: Way) -> None:
        super().__init__()
        norm = nn.LayerNorm if way.norm == "LayerNorm" else nn.RMSNorm
        self.input_norm, self.mlp_norm = norm(shape.hidden_size), norm(shape.hidden_size)
        self.attention, self.mlp = Attention(shape, way), Mlp(shape, way)
        self.dropout = nn.Dropout(way.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the same shape."""
        hidden = hidden + self.dropout(self.attention(self.input_norm(hidden)))
        return hidden + self.dropout(self.mlp(self.mlp_norm(hidden)))


class Decoder(nn.Module):
    """Embedding, layers, norm and the product with the vocabulary."""

    def __init__(self, shape: Shape, way: Way) -> None:
        super().__init__()
        self.way = way
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, way) for _ in range(shape.num_layers))
        self.norm = (nn.LayerNorm if way.norm == "LayerNorm" else nn.RMSNorm)(shape.hidden_size)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits ``[batch, sequence, vocabulary]`` for tokens ``[batch, sequence]``."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False) if self.way.recompute == "full" else layer(hidden)
        return self.head(self.norm(hidden))


@dataclass(frozen=True, kw_only=True)
class Training:
    """One model with what trains it."""

    model: Decoder
    optimizer: torch.optim.Optimizer
    step: Callable[[], None]
    """Runs one iteration of all microbatches."""


def training(shape: Shape, way: Way, device: torch.device | str) -> Training:
    """Return the training of a decoder on ``device``."""
    torch.manual_seed(1234)
    dtype = torch.bfloat16 if way.precision == "bf16" else torch.float32
    model = Decoder(shape, way).to(device=device, dtype=dtype)
    optimizer = _optimizer(model, way)

    def step() -> None:
        for _ in range(shape.num_microbatches):
            tokens = torch.randint(shape.vocab_size, (shape.micro_batch_size, shape.seq_length + 1), device=device)
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=way.precision == "autocast"):
                logits = model(tokens[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
        if way.clip_grad:
            nn.utils.clip_grad_norm_(model.parameters(), way.clip_grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Training(model=model, optimizer=optimizer, step=step)


def _optimizer(model: nn.Module, way: Way) -> torch.optim.Optimizer:
    if way.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    chosen = {way.optimizer: True} if way.optimizer in {"foreach", "fused"} else {"foreach": False, "fused": False}
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **chosen)
