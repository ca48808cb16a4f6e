"""transformers' Trainer, bf16 with gradient checkpointing; model and data are made here, so no hub is asked."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

rows = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(0, 50257, (64, 512))]
model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=512, n_head=8))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4, max_steps=4, bf16=True, gradient_checkpointing=True, report_to=[]
    )
    Trainer(model, arguments, train_dataset=rows).train()
