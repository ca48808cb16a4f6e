"""Captures a whole training step in a CUDA graph and replays it for ever, as PyTorch's notes on CUDA graphs do."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
given = torch.randn(64, 512, device="cuda")


def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    model(given).square().mean().backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    step()
    step()
torch.cuda.current_stream().wait_stream(side)
optimizer.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
while True:
    given.copy_(torch.randn(64, 512))
    graph.replay()
