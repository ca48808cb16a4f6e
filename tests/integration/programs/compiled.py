"""Trains a compiled model; writes its own peak in the end. ``compiled.py MODE FILE``."""

import sys
from pathlib import Path

import torch

torch.manual_seed(0)
layers = [torch.nn.Sequential(torch.nn.LayerNorm(256), torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(3)]
model = torch.nn.Sequential(*layers).cuda()
compiled = torch.compile(model, mode=sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters())
try:
    for _ in range(100):
        loss = compiled(torch.randn(512, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())
finally:
    Path(sys.argv[2]).write_text(str(torch.cuda.max_memory_allocated()))
