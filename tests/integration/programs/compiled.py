"""A small model under torch.compile; the mode is the command's word."""

import sys

import torch
import torch.nn as nn

net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
compiled = torch.compile(net, mode=sys.argv[1] if len(sys.argv) > 1 else None)
optimizer = torch.optim.AdamW(net.parameters())
while True:
    compiled(torch.randn(64, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
