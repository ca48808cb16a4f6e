"""Trains a compiled function whose graph has constants; inductor computes them on the card and reads them back."""

import torch


@torch.compile
def loss(x: torch.Tensor) -> torch.Tensor:
    half = torch.full((4,), 0.5, device=x.device)
    three = torch.ones(4, device=x.device, dtype=torch.int64) * 3
    return (x * half + three).sum()


weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
optimizer = torch.optim.SGD([weight])
for _ in range(3):
    loss(weight).backward()
    optimizer.step()
    optimizer.zero_grad()
