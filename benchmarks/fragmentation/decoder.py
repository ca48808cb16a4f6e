"""A small decoder of plain PyTorch modules in bf16, whose batches may have any shape."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Attention and a feed-forward part, each after a layer norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 128
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` with what both parts add."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, 2)
        q, k, v = (part.view(batch, length, self.heads, 128).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + cast("Tensor", self.down(functional.gelu(self.up(self.norm_2(x)))))


class Decoder(nn.Module):
    """Embedding, blocks and an output layer; made on the host, to be sent to the device."""

    def __init__(self, *, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        with torch.device("meta"):
            self.embedding = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)
        self.vocabulary = vocabulary

    def cuda(self) -> Decoder:  # type: ignore[override]
        """Allocate the weights on the device, without values: sizes alone matter here."""
        return self.to(torch.bfloat16).to_empty(device="cuda")

    def tokens(self, batch: int, length: int) -> Tensor:
        """Return a batch of token ids."""
        return torch.zeros(batch, length, dtype=torch.long, device="cuda")

    def forward(self, tokens: Tensor, *, checkpointing: bool = False) -> Tensor:
        """Return the logits."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if checkpointing else block(x)
        return cast("Tensor", self.head(self.norm(x)))

    def loss(self, batch: int, length: int, *, checkpointing: bool = False) -> Tensor:
        """Return the loss of one batch."""
        tokens = self.tokens(batch, length)
        logits = self(tokens, checkpointing=checkpointing)
        return functional.cross_entropy(logits.view(-1, self.vocabulary), tokens.view(-1))
