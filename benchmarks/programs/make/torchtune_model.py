"""Write a small model of random weights in torchtune's own format."""

import sys

import torch
from torchtune.models.llama3 import llama3

model = llama3(vocab_size=128256, num_layers=4, num_heads=4, num_kv_heads=2, embed_dim=256, max_seq_len=1024)
torch.save({name: each.bfloat16() for name, each in model.state_dict().items()}, sys.argv[1])
