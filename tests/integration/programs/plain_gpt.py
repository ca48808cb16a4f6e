"""A GPT in plain PyTorch, written for ``cuda``, as people write it; trains on random tokens."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.ln_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.out(F.gelu(self.fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.reshape(-1))


class Trainer:
    """The model, its optimizer and one step."""

    def __init__(self, args: argparse.Namespace, device: str = "cuda") -> None:
        torch.manual_seed(0)
        self.args, self.device = args, device
        self.model = GPT(args.vocabulary, args.length, args.width, args.layers, args.heads).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)

    def step(self) -> None:
        args = self.args
        ids = torch.randint(args.vocabulary, (args.batch, args.length + 1)).to(self.device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.model(ids[:, :-1], ids[:, 1:])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, default in {
        "vocabulary": 1024,
        "length": 256,
        "width": 256,
        "layers": 3,
        "heads": 4,
        "batch": 8,
        "steps": 1000,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args(words)


if __name__ == "__main__":
    args = arguments()
    trainer = Trainer(args)
    for step in range(args.steps):
        trainer.step()
        print("step", step, "peak", torch.cuda.max_memory_allocated(), flush=True)
