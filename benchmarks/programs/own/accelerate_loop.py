"""A plain training loop under Hugging Face accelerate."""

import torch
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(256, 4, batch_first=True), 4)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 128, 256)), batch_size=8)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for _epoch in range(2):
    for (x,) in data:
        with accelerator.accumulate(model):
            loss = model(x).float().square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    print(loss.item())
