"""A module under Lightning's Trainer."""

import lightning
import torch


class Encoder(lightning.LightningModule):
    """Four layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(256, 4, batch_first=True), 4)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        loss = self.layers(batch[0]).float().square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the one optimizer."""
        return torch.optim.AdamW(self.parameters())


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 128, 256)), batch_size=8)
trainer = lightning.Trainer(
    max_steps=6, precision="bf16-mixed", gradient_clip_val=1.0, logger=False, enable_checkpointing=False
)
trainer.fit(Encoder(), data)
