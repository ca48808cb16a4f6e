# ruff: noqa: D103, N812
"""Twenty training programs that are measured on both backends. Fixed before the first run.

Each function builds a model and says what one training step is (docs/harness.md). Together they have every operation in
which the simulated device was found wrong.
"""

import copy
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oomscope import Context, Target

VOCABULARY = 8000


def _train(model: nn.Module, loss: Callable[[], Tensor], parameters: Iterable[nn.Parameter] | None = None) -> Target:
    optimizer = torch.optim.AdamW(list(parameters or model.parameters()), lr=1e-4)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Target(step, model=model, optimizer=optimizer)


class _Tied(nn.Module):
    """An embedding whose weight is the output layer's as well."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 512)
        self.layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
        self.head = nn.Linear(512, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.embedding(tokens)))
        return out


def tied_weights(ctx: Context) -> Target:
    model = _Tied().to(ctx.device)
    tokens = torch.randint(0, VOCABULARY, (4, 513)).to(ctx.device)
    return _train(model, lambda: F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))


def cache_emptied_at_every_step(ctx: Context) -> Target:
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).to(ctx.device)
    sizes = iter([700, 1100, 900, 1300] * 100)

    def loss() -> Tensor:
        torch.cuda.empty_cache()
        out: Tensor = model(torch.randn(next(sizes), 1024, device=ctx.device)).square().mean()
        return out

    return _train(model, loss)


def autocast_where_the_device_is_cuda(ctx: Context) -> Target:
    model = _Tied().to(ctx.device)
    tokens = torch.randint(0, VOCABULARY, (4, 513)).to(ctx.device)
    kind = "cuda" if "cuda" in str(ctx.device) else "cpu"

    def loss() -> Tensor:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return _train(model, loss)


def attention_with_broadcast_heads(ctx: Context) -> Target:
    query = nn.Linear(512, 2048, dtype=torch.bfloat16).to(ctx.device)
    key = nn.Linear(512, 128, dtype=torch.bfloat16).to(ctx.device)
    x = torch.randn(2, 1024, 512, dtype=torch.bfloat16).to(ctx.device)

    def loss() -> Tensor:
        q = query(x).unflatten(-1, (16, 128)).transpose(1, 2)
        k = key(x).unflatten(-1, (1, 128)).transpose(1, 2).expand(-1, 16, -1, -1)
        return F.scaled_dot_product_attention(q, k, k).square().mean()

    return _train(nn.ModuleList([query, key]), loss)


def attention_with_a_mask(ctx: Context) -> Target:
    qkv = nn.Linear(512, 1536, dtype=torch.bfloat16).to(ctx.device)
    x = torch.randn(2, 1024, 512, dtype=torch.bfloat16).to(ctx.device)
    mask = torch.zeros(1024, 1024, dtype=torch.bfloat16).to(ctx.device)

    def loss() -> Tensor:
        q, k, v = (part.unflatten(-1, (8, 64)).transpose(1, 2) for part in qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).square().mean()

    return _train(qkv, loss)


def softmax_of_half_in_single_precision(ctx: Context) -> Target:
    layer = nn.Linear(2048, 2048, dtype=torch.float16).to(ctx.device)
    x = torch.randn(2048, 2048, dtype=torch.float16).to(ctx.device)
    return _train(layer, lambda: F.softmax(layer(x), dim=-1, dtype=torch.float32).square().mean())


def losses_of_many_kinds(ctx: Context) -> Target:
    layer = nn.Linear(1024, 4096).to(ctx.device)
    x, y = torch.randn(1024, 1024).to(ctx.device), torch.randn(1024, 4096).to(ctx.device)

    def loss() -> Tensor:
        out = layer(x)
        return F.mse_loss(out, y) + F.huber_loss(out, y) + out.logsumexp(-1).mean() + F.smooth_l1_loss(out, y)

    return _train(layer, loss)


def drawing_and_indexing(ctx: Context) -> Target:
    layer = nn.Linear(512, VOCABULARY).to(ctx.device)
    x, rows = torch.randn(1024, 512).to(ctx.device), torch.randint(0, 1024, (2048,)).to(ctx.device)

    def loss() -> Tensor:
        out = layer(x)
        drawn = torch.multinomial(out.detach().softmax(-1), 2)
        return out[rows].square().mean() + out.gather(1, drawn).mean()

    return _train(layer, loss)


def lstm(ctx: Context) -> Target:
    model = nn.LSTM(256, 512, num_layers=2, batch_first=True).to(ctx.device)
    x = torch.randn(16, 128, 256).to(ctx.device)
    return _train(model, lambda: model(x)[0].square().mean())


def gru(ctx: Context) -> Target:
    model = nn.GRU(256, 512, num_layers=2, batch_first=True).to(ctx.device)
    x = torch.randn(16, 128, 256).to(ctx.device)
    return _train(model, lambda: model(x)[0].square().mean())


def convolutions(ctx: Context) -> Target:
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)]
    model = nn.Sequential(*layers).to(ctx.device)
    x = torch.randn(8, 3, 64, 64).to(ctx.device)
    return _train(model, lambda: model(x).square().mean())


def printed_loss(ctx: Context) -> Target:
    model = nn.Linear(1024, 1024).to(ctx.device)
    x = torch.randn(512, 1024).to(ctx.device)

    def loss() -> Tensor:
        out: Tensor = model(x).square().mean()
        print(f"loss {out:.3f}")
        return out

    return _train(model, loss)


def copied_to_the_host(ctx: Context) -> Target:
    model = nn.Linear(1024, 1024).to(ctx.device)
    x = torch.randn(512, 1024).to(ctx.device)

    def loss() -> Tensor:
        out: Tensor = model(x).square().mean()
        out.detach().cpu().numpy()
        return out

    return _train(model, loss)


def pinned_batches(ctx: Context) -> Target:
    data = torch.utils.data.TensorDataset(torch.randn(64, 1024))
    batches = iter(torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True))
    model = nn.Linear(1024, 4096).to(ctx.device)
    return _train(model, lambda: model(next(batches)[0].to(ctx.device, non_blocking=True)).square().mean())


def transformer_encoder(ctx: Context) -> Target:
    """Its layers are deep copies of one."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6).to(ctx.device)
    x = torch.randn(4, 128, 512).to(ctx.device)
    return _train(model, lambda: model(x).square().mean())


def averaged_copy(ctx: Context) -> Target:
    """An exponential moving average is kept in a deep copy."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).to(ctx.device)
    average = copy.deepcopy(model)
    x = torch.randn(256, 1024).to(ctx.device)

    def loss() -> Tensor:
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter, 0.01)
        out: Tensor = model(x).square().mean()
        return out

    return _train(model, loss)


def clipped_gradients(ctx: Context) -> Target:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(24))).to(ctx.device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(256, 512).to(ctx.device)

    def step() -> None:
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Target(step, model=model, optimizer=optimizer)


def checkpointed_layers(ctx: Context) -> Target:
    from torch.utils.checkpoint import checkpoint

    layers = nn.ModuleList(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(4)).to(ctx.device)
    x = torch.randn(4, 256, 512).to(ctx.device)

    def loss() -> Tensor:
        out = x
        for layer in layers:
            out = checkpoint(layer, out, use_reentrant=False)
        return out.square().mean()

    return _train(layers, loss)


def host_chosen_sizes(ctx: Context) -> Target:
    """Sequence lengths come from a list on the host, as a data loader gives them."""
    model = _Tied().to(ctx.device)
    lengths = iter([128, 512, 256, 384] * 100)

    def loss() -> Tensor:
        tokens = torch.randint(0, VOCABULARY, (4, next(lengths) + 1)).to(ctx.device)
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return _train(model, loss)


def norms_of_both_kinds(ctx: Context) -> Target:
    model = nn.Sequential(nn.Linear(1024, 1024), nn.RMSNorm(1024), nn.Linear(1024, 1024), nn.LayerNorm(1024))
    model.to(ctx.device, torch.bfloat16)
    x = torch.randn(2048, 1024, dtype=torch.bfloat16).to(ctx.device)
    return _train(model, lambda: model(x).float().square().mean())
