"""Small training programs, one idea of PyTorch each, that run on a real card and on the virtual one.

python tests/gpu/programs.py NAME
"""

# mypy: ignore-errors

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 3
D = "cuda"
torch.manual_seed(0)


def train(model, batch, loss, *, dtype=None, opt=None):
    """Train for a few steps, under autocast where a dtype is given."""
    opt = opt or torch.optim.AdamW(model.parameters(), 1e-4)
    scaler = torch.amp.GradScaler("cuda") if dtype is torch.float16 else None
    for _ in range(STEPS):
        x = batch()
        with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
            value = loss(model, x)
        if scaler:
            scaler.scale(value).backward()
            scaler.step(opt)
            scaler.update()
        else:
            value.backward()
            opt.step()
        opt.zero_grad(set_to_none=True)
    torch.cuda.synchronize()


class Block(nn.Module):
    def __init__(self, h, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)
        self.heads = heads

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Gpt(nn.Module):
    def __init__(self, h=1024, layers=4, vocab=32000):
        super().__init__()
        self.e = nn.Embedding(vocab, h)
        self.b = nn.Sequential(*[Block(h, h // 64) for _ in range(layers)])
        self.head = nn.Linear(h, vocab, bias=False)

    def forward(self, x):
        return self.head(self.b(self.e(x)))


def tokens(b=4, s=1024):
    return torch.randint(0, 32000, (b, s), device=D)


def lm(model, x):
    y = model(x)
    return F.cross_entropy(y.flatten(0, 1).float(), x.flatten())


def gpt(dtype=torch.bfloat16, **how):
    train(Gpt().to(D), tokens, lm, dtype=dtype, **how)


def images(b=32, size=224):
    return torch.randn(b, 3, size, size, device=D)


def classify(model, x):
    return F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long, device=D))


def resnet(dtype=None, bench=False, last=False):
    import torchvision

    torch.backends.cudnn.benchmark = bench
    model = torchvision.models.resnet50().to(D)
    if last:
        model = model.to(memory_format=torch.channels_last)
    form = torch.channels_last if last else torch.contiguous_format
    train(model, lambda: images().to(memory_format=form), classify, dtype=dtype)


def convnet(dtype=None):
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.Conv2d(128, 256, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 10),
    ).to(D)
    train(model, lambda: images(16, 128), classify, dtype=dtype)


def conv1d():
    model = nn.Sequential(
        nn.Conv1d(80, 384, 3, padding=1), nn.GELU(), nn.Conv1d(384, 384, 3, stride=2, padding=1), nn.GELU()
    ).to(D)
    train(model, lambda: torch.randn(8, 80, 3000, device=D), lambda m, x: m(x).square().mean(), dtype=torch.float16)


def vit():
    import torchvision

    train(torchvision.models.vit_b_16().to(D), lambda: images(16), classify, dtype=torch.bfloat16)


def rnn(kind, dtype=None):
    model = getattr(nn, kind)(512, 512, 2, batch_first=True).to(D)
    train(model, lambda: torch.randn(16, 256, 512, device=D), lambda m, x: m(x)[0].float().square().mean(), dtype=dtype)


def attention(backend, dtype=torch.bfloat16):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(getattr(SDPBackend, backend)):
        gpt(dtype)


def flex():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    f = torch.compile(flex_attention)
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 1024, 1024, device=D)
    w = nn.Linear(512, 1536).to(D)

    def loss(m, x):
        q, k, v = m(x).view(4, 1024, 3, 8, 64).permute(2, 0, 3, 1, 4)
        return f(q, k, v, block_mask=mask).float().square().mean()

    train(w, lambda: torch.randn(4, 1024, 512, device=D), loss, dtype=torch.bfloat16)


def compiled(mode=None):
    model = torch.compile(Gpt().to(D), mode=mode)
    train(model, tokens, lm, dtype=torch.bfloat16)


def graphs():
    model = Gpt(layers=2).to(D)
    opt = torch.optim.AdamW(model.parameters(), 1e-4, capturable=True)
    x = tokens()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            opt.zero_grad(set_to_none=True)
            lm(model, x).backward()
            opt.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    opt.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        lm(model, x).backward()
        opt.step()
    for _ in range(STEPS):
        x.copy_(tokens())
        graph.replay()
    torch.cuda.synchronize()


def graphed_callable():
    model = torch.cuda.make_graphed_callables(
        Block(1024, 16).to(D), (torch.randn(4, 512, 1024, device=D, requires_grad=True),)
    )
    train(model, lambda: torch.randn(4, 512, 1024, device=D, requires_grad=True), lambda m, x: m(x).square().mean())


def fp8():
    w = torch.randn(4096, 4096, device=D, dtype=torch.bfloat16)
    one = torch.tensor(1.0, device=D)
    for _ in range(STEPS):
        x = torch.randn(4096, 4096, device=D, dtype=torch.bfloat16)
        y = torch._scaled_mm(
            x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn).t(), one, one, out_dtype=torch.bfloat16
        )
        z = torch._scaled_mm(
            y.to(torch.float8_e4m3fn),
            w.to(torch.float8_e4m3fn).t(),
            one,
            one,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        del y, z
    torch.cuda.synchronize()


def encoder():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, batch_first=True), 6).to(D)
    train(model, lambda: torch.randn(8, 512, 512, device=D), lambda m, x: m(x).square().mean())


def checkpointed():
    from torch.utils.checkpoint import checkpoint

    model = Gpt().to(D)

    def loss(m, x):
        h = m.e(x)
        for block in m.b:
            h = checkpoint(block, h, use_reentrant=False)
        return F.cross_entropy(m.head(h).flatten(0, 1).float(), x.flatten())

    train(model, tokens, loss, dtype=torch.bfloat16)


def accumulate(n):
    model = Gpt().to(D)
    opt = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    for _ in range(2):
        for _ in range(n):
            with torch.autocast("cuda", torch.bfloat16):
                (lm(model, tokens(2)) / n).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
    torch.cuda.synchronize()


def optimizer(make):
    model = Gpt().to(D)
    train(model, tokens, lm, dtype=torch.bfloat16, opt=make(model.parameters()))


def varying():
    model = Gpt(layers=2).to(D)
    opt = torch.optim.AdamW(model.parameters(), 1e-4)
    for s in (512, 900, 333, 1024, 700, 128, 1000, 450):
        with torch.autocast("cuda", torch.bfloat16):
            lm(model, tokens(4, s)).backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
    torch.cuda.synchronize()


def offloaded():
    model = Gpt(layers=2).to(D)

    def loss(m, x):
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return lm(m, x)

    train(model, tokens, loss, dtype=torch.bfloat16)


def unet():
    down = nn.ModuleList([nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 128, 3, padding=1)]).to(D)
    up = nn.ConvTranspose2d(128, 64, 2, stride=2).to(D)
    out = nn.Conv2d(128, 4, 1).to(D)
    model = nn.ModuleList([down, up, out])

    def loss(m, x):
        a = F.silu(down[0](x))
        b = F.silu(down[1](F.max_pool2d(a, 2)))
        return out(torch.cat([a, up(b)], 1)).square().mean()

    train(model, lambda: images(8, 256), loss, dtype=torch.float16)


def linalg():
    a = torch.randn(512, 512, device=D)
    for _ in range(STEPS):
        s = a @ a.T + 512 * torch.eye(512, device=D)
        torch.linalg.cholesky(s)
        torch.linalg.eigh(s)
        torch.linalg.svd(a)
        torch.linalg.solve(s, a)
        torch.linalg.qr(a)
    torch.fft.rfft2(torch.randn(16, 1024, 1024, device=D)).abs().sum()
    torch.cuda.synchronize()


def llama(lora=False):
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=4,
            num_attention_heads=16,
            num_key_value_heads=4,
            vocab_size=32000,
        )
    ).to(D, torch.bfloat16)
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
    train(model, tokens, lambda m, x: m(input_ids=x, labels=x).loss)


def bert():
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(num_hidden_layers=4)).to(D)
    train(
        model,
        lambda: torch.randint(0, 30000, (16, 256), device=D),
        lambda m, x: m(input_ids=x, labels=x).loss,
        dtype=torch.float16,
    )


PROGRAMS = {
    "gpt-bf16": gpt,
    "gpt-fp32": lambda: gpt(None),
    "gpt-fp16": lambda: gpt(torch.float16),
    "sdpa-flash": lambda: attention("FLASH_ATTENTION"),
    "sdpa-efficient": lambda: attention("EFFICIENT_ATTENTION"),
    "sdpa-math": lambda: attention("MATH"),
    "sdpa-cudnn": lambda: attention("CUDNN_ATTENTION"),
    "sdpa-efficient-fp32": lambda: attention("EFFICIENT_ATTENTION", None),
    "resnet50": resnet,
    "resnet50-bf16": lambda: resnet(torch.bfloat16),
    "resnet50-channels-last": lambda: resnet(torch.float16, last=True),
    "resnet50-benchmark": lambda: resnet(bench=True),
    "convnet": convnet,
    "convnet-fp16": lambda: convnet(torch.float16),
    "conv1d": conv1d,
    "unet": unet,
    "vit": vit,
    "lstm": lambda: rnn("LSTM"),
    "gru-fp16": lambda: rnn("GRU", torch.float16),
    "rnn": lambda: rnn("RNN"),
    "flex": flex,
    "compiled": compiled,
    "compiled-reduce-overhead": lambda: compiled("reduce-overhead"),
    "graphs": graphs,
    "graphed-callable": graphed_callable,
    "fp8": fp8,
    "encoder": encoder,
    "checkpointed": checkpointed,
    "accumulate-1": lambda: accumulate(1),
    "accumulate-2": lambda: accumulate(2),
    "accumulate-8": lambda: accumulate(8),
    "sgd": lambda: optimizer(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "adafactor": lambda: optimizer(torch.optim.Adafactor),
    "adamw-foreach-off": lambda: optimizer(lambda p: torch.optim.AdamW(p, foreach=False)),
    "varying": varying,
    "offloaded": offloaded,
    "linalg": linalg,
    "llama": llama,
    "llama-lora": lambda: llama(True),
    "bert": bert,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
