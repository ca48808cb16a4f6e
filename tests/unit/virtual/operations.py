"""Operations of PyTorch that call NVIDIA's libraries, as rows: what is run, and the shape that comes out.

Each row is a few statements that leave a tensor in ``y``; ``random(*sizes)`` makes one on the card. The names that a
row may use are those of ``library_program``. The peak of reserved memory stays below ``peak_mib``: what a library asks
for in workspace must be sane.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Operation:
    """Statements that leave a tensor in ``y``, and what is known of it."""

    code: str
    shape: tuple[int, ...]
    peak_mib: int = 96
    unsupported: tuple[str, ...] = ()
    """Functions that may answer "not supported" for the first time."""
    unknown_reads: int | None = None
    """How often bytes are read that the card does not hold; None: however often."""


def _products() -> dict[str, Operation]:
    rows = {}
    for kind in ("float32", "float16", "bfloat16", "float64", "complex64"):
        k = f"dtype=torch.{kind}"
        rows |= {
            f"matmul {kind}": Operation(f"y = random(128, 256, {k}) @ random(256, 512, {k})", (128, 512)),
            f"bmm {kind}": Operation(
                f"y = torch.bmm(random(4, 128, 256, {k}), random(4, 256, 512, {k}))", (4, 128, 512)
            ),
            f"baddbmm {kind}": Operation(
                f"y = torch.baddbmm(random(4, 8, 16, {k}), random(4, 8, 32, {k}), random(4, 32, 16, {k}))", (4, 8, 16)
            ),
            f"addmm {kind}": Operation(
                f"y = torch.addmm(random(512, {k}), random(128, 256, {k}), random(256, 512, {k}))", (128, 512)
            ),
            f"matrix times vector {kind}": Operation(f"y = random(128, 256, {k}) @ random(256, {k})", (128,)),
            f"dot {kind}": Operation(f"y = torch.dot(random(256, {k}), random(256, {k}))", ()),
        }
    fp8 = "a, b = random(128, 256).to(torch.float8_e4m3fn), random(512, 256).to(torch.float8_e4m3fn).t()\n"
    one = "ones = lambda *sizes: torch.ones(*sizes, device='cuda')\n"
    return rows | {
        "matmul tf32": Operation(
            "torch.backends.cuda.matmul.allow_tf32 = True\ny = random(64, 64) @ random(64, 64)", (64, 64)
        ),
        "int8": Operation("a = random(128, 64).to(torch.int8)\ny = torch._int_mm(a, a.t())", (128, 128)),
        "fp8": Operation(
            fp8 + one + "y = torch._scaled_mm(a, b, scale_a=ones(()), scale_b=ones(()), out_dtype=torch.bfloat16)",
            (128, 512),
        ),
        "fp8 by row": Operation(
            fp8
            + one
            + "y = torch._scaled_mm(a, b, scale_a=ones(128, 1), scale_b=ones(1, 512), out_dtype=torch.bfloat16)",
            (128, 512),
        ),
        "grouped": Operation(
            "k = dict(dtype=torch.bfloat16)\nends = torch.tensor([16, 32, 48, 64], device='cuda', dtype=torch.int32)\n"
            "y = torch._grouped_mm(random(64, 64, **k), random(4, 64, 64, **k), offs=ends)",
            (64, 64),
        ),
        "addmm with gelu": Operation(
            "y = torch._addmm_activation(random(512), random(128, 256), random(256, 512), use_gelu=True)", (128, 512)
        ),
        "linear, gelu, backward": Operation(
            "m = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 8)).cuda()\n"
            "m(random(16, 256)).sum().backward()\ny = m[0].weight.grad",
            (512, 256),
        ),
    }


def _networks() -> dict[str, Operation]:
    rows = {}
    for name, sizes, out in (
        ("Conv1d", (2, 8, 64), (2, 16, 64)),
        ("Conv2d", (2, 8, 32, 32), (2, 16, 32, 32)),
        ("Conv3d", (2, 8, 8, 16, 16), (2, 16, 8, 16, 16)),
        ("ConvTranspose1d", (2, 8, 64), (2, 16, 64)),
        ("ConvTranspose2d", (2, 8, 32, 32), (2, 16, 32, 32)),
        ("ConvTranspose3d", (2, 8, 8, 16, 16), (2, 16, 8, 16, 16)),
    ):
        for kind in ("float32", "bfloat16"):
            for search in (False, True):
                rows[f"{name} {kind}{' benchmark' if search else ''}"] = Operation(
                    f"torch.backends.cudnn.benchmark = {search}\n"
                    f"m = torch.nn.{name}(8, 16, 3, padding=1).to('cuda', torch.{kind})\n"
                    f"x = random(*{sizes}, dtype=torch.{kind}, requires_grad=True)\ny = m(x)\ny.sum().backward()\n"
                    "torch.backends.cudnn.benchmark = False\n"
                    "assert x.grad.shape == x.shape and m.weight.grad.shape == m.weight.shape",
                    out,
                )
    for name, output in (("LSTM", 64), ("GRU", 64), ("RNN", 64)):
        for directions in (1, 2):
            for bias in (True, False):
                rows[f"{name} {directions} directions{'' if bias else ' no bias'}"] = Operation(
                    f"m = torch.nn.{name}(32, 64, 2, dropout=0.1, bias={bias}, bidirectional={directions == 2})\n"
                    "m = m.cuda()\n"
                    "x = random(10, 4, 32, requires_grad=True)\ny, _ = m(x)\ny.sum().backward()\n"
                    "assert x.grad.shape == x.shape\n"
                    "assert all(p.grad.shape == p.shape for p in m.parameters())\n"
                    # One buffer holds all weights, without gaps: the size that cuDNN states is that of the parameters
                    # (and of biases, which torch always asks for).
                    "assert len({p.untyped_storage().data_ptr() for p in m.parameters()}) == 1\n"
                    "stored = m.weight_ih_l0.untyped_storage().nbytes()\n"
                    f"assert {not bias} or stored == sum(p.nbytes for p in m.parameters())",
                    (10, 4, output * directions),
                )
    image = "x = random(4, 8, 16, 16, requires_grad=True)\n"
    return rows | {
        "LSTM with projection": Operation(
            "m = torch.nn.LSTM(32, 64, 2, proj_size=16).cuda()\ny, _ = m(random(10, 4, 32, requires_grad=True))\n"
            "y.sum().backward()\n"
            "assert m.weight_ih_l0.untyped_storage().nbytes() == sum(p.nbytes for p in m.parameters())",
            (10, 4, 16),
        ),
        "LSTM of packed sequences": Operation(
            "m = torch.nn.LSTM(32, 64).to('cuda', torch.half)\n"
            "x, lengths = random(10, 4, 32, dtype=torch.half), torch.tensor([10, 8, 5, 2])\n"
            "x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)\n"
            "y = m(x)[0].data\ny.sum().backward()",
            (25, 64),
        ),
        "grouped convolution, channels last": Operation(
            "m = torch.nn.Conv2d(8, 16, 3, groups=8, stride=2, dilation=2, bias=False)\n"
            "m = m.to('cuda', memory_format=torch.channels_last)\n"
            "x = random(2, 8, 32, 32).to(memory_format=torch.channels_last).requires_grad_()\n"
            "m(x).sum().backward()\ny = x.grad",
            (2, 8, 32, 32),
        ),
        "deterministic convolution": Operation(
            "torch.backends.cudnn.deterministic = True\nm = torch.nn.Conv2d(8, 16, 3).cuda()\n"
            "x = random(2, 8, 16, 16, requires_grad=True)\nm(x).sum().backward()\n"
            "torch.backends.cudnn.deterministic = False\ny = x.grad",
            (2, 8, 16, 16),
        ),
        "convolution with relu": Operation(
            "x, w, b = random(2, 8, 16, 16), random(8, 8, 3, 3), random(8)\n"
            "y = torch.cudnn_convolution_relu(x, w, b, (1, 1), (1, 1), (1, 1), 1)",
            (2, 8, 16, 16),
        ),
        "batch norm": Operation(
            image + "torch.nn.BatchNorm2d(8).cuda()(x).sum().backward()\ny = x.grad", (4, 8, 16, 16)
        ),
        "batch norm, channels last": Operation(
            "x = random(4, 8, 16, 16, dtype=torch.bfloat16).to(memory_format=torch.channels_last).requires_grad_()\n"
            "torch.nn.BatchNorm2d(8).cuda()(x).sum().backward()\ny = x.grad",
            (4, 8, 16, 16),
        ),
        "batch norm, evaluation": Operation(
            "y = torch.nn.BatchNorm2d(8).cuda().eval()(random(4, 8, 16, 16))", (4, 8, 16, 16)
        ),
        "layer norm": Operation(
            "x = random(4, 64, requires_grad=True)\ntorch.nn.LayerNorm(64).cuda()(x).sum().backward()\ny = x.grad",
            (4, 64),
        ),
        "pooling": Operation(
            image + "F.max_pool2d(x, 2).sum().backward()\nF.adaptive_avg_pool2d(x, 4).sum().backward()\ny = x.grad",
            (4, 8, 16, 16),
        ),
        "spatial transformer of cuDNN": Operation(
            "x, theta = random(2, 3, 16, 16, requires_grad=True), random(2, 2, 3, requires_grad=True)\n"
            "y = torch.cudnn_grid_sampler(x, torch.cudnn_affine_grid_generator(theta, 2, 3, 16, 16))\n"
            "y.sum().backward()\nassert theta.grad.shape == theta.shape",
            (2, 3, 16, 16),
        ),
        "embedding": Operation(
            "m = torch.nn.Embedding(100, 16).cuda()\n"
            "m(torch.arange(32, device='cuda')).sum().backward()\ny = m.weight.grad",
            (100, 16),
        ),
        "cross entropy": Operation(
            "x = random(8, 100, requires_grad=True)\n"
            "F.cross_entropy(x, torch.arange(8, device='cuda')).backward()\ny = x.grad",
            (8, 100),
        ),
        "CTC loss, labels on the host": Operation(_CTC.format(where="cpu"), (20, 4, 10)),
        "CTC loss, labels on the card": Operation(
            _CTC.format(where="cuda").replace("(20,) * 4", "full(20)").replace("(6,) * 4", "full(6)"), (20, 4, 10)
        ),
    }


_CTC = (
    "full = lambda n: torch.full((4,), n, dtype=torch.int32, device='cuda')\n"
    "x = random(20, 4, 10).log_softmax(-1).detach().requires_grad_()\n"
    "labels = torch.ones(24, dtype=torch.int32, device='{where}')\n"
    "assert torch._use_cudnn_ctc_loss(x, labels, (20,) * 4, (6,) * 4, 0)\n"
    "F.ctc_loss(x, labels, (20,) * 4, (6,) * 4).backward()\ny = x.grad"
)


def _attention() -> dict[str, Operation]:
    rows = {}
    modes = {
        "": "",
        "causal": "is_causal=True",
        "masked": "attn_mask=random(128, 128, dtype=torch.bfloat16)",
        "with dropout": "dropout_p=0.125",
        "grouped": "enable_gqa=True",
    }
    for backend in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
        for mode, arguments in modes.items():
            if (backend, mode) == ("FLASH_ATTENTION", "masked"):
                continue  # torch has no such kernel
            if (backend, mode) == ("EFFICIENT_ATTENTION", "grouped"):
                continue
            heads = 2 if mode == "grouped" else 8
            rows[f"attention {backend} {mode}".strip()] = Operation(
                "q = random(2, 8, 128, 64, dtype=torch.bfloat16, requires_grad=True)\n"
                f"k, v = (random(2, {heads}, 128, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))\n"
                f"with sdpa_kernel(SDPBackend.{backend}):\n"
                f"    y = F.scaled_dot_product_attention(q, k, v, {arguments})\n"
                "    y.sum().backward()\n"
                "assert q.grad.shape == q.shape and k.grad.shape == k.shape",
                (2, 8, 128, 64),
            )
    # cudnn-frontend's own part of the workspace: dq of [8, 16, 1024, 64] in float32, and a float for each row of it.
    # On Hopper the engine adds 256 bytes, and takes as many in the forward.
    rows["attention backward's workspace"] = Operation(
        "torch.cuda.memory._record_memory_history()\n"
        "q, k, v = (random(8, 16, 1024, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))\n"
        "with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):\n"
        "    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        "    y.sum().backward()\n"
        "(events,) = torch.cuda.memory._snapshot()['device_traces']\n"
        "sizes = [e['size'] for e in events if e['action'] == 'alloc']\n"
        "assert (sizes.count(256), sizes.count(34_078_720 + 256)) == (1, 1)",
        (8, 16, 1024, 64),
        peak_mib=320,
    )
    # The gradients of keys and values for each head of the queries come in addition, 8 MiB each here: as an H100 asked.
    rows["attention backward's workspace with grouped keys"] = Operation(
        "torch.cuda.memory._record_memory_history()\n"
        "q = random(4, 16, 1024, 64, dtype=torch.bfloat16, requires_grad=True)\n"
        "k, v = (random(4, 4, 1024, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))\n"
        "with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):\n"
        "    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)\n"
        "    y.sum().backward()\n"
        "(events,) = torch.cuda.memory._snapshot()['device_traces']\n"
        "assert 33_816_832 in [e['size'] for e in events if e['action'] == 'alloc']",
        (4, 16, 1024, 64),
        peak_mib=320,
    )
    rows["attention's workspace with dropout"] = Operation(
        "torch.cuda.memory._record_memory_history()\n"
        "q, k, v = (random(2, 8, 128, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))\n"
        "with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):\n"
        "    y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.125)\n"
        "(events,) = torch.cuda.memory._snapshot()['device_traces']\n"
        "assert 256 in [e['size'] for e in events if e['action'] == 'alloc']",
        (2, 8, 128, 64),
    )
    return rows


def _transforms() -> dict[str, Operation]:
    rows = {
        f"fft of {n}": Operation(f"y = torch.fft.fft(random(4, {n}))", (4, n)) for n in (64, 63, 127, 32768, 100_003)
    }
    return rows | {
        "fft in two dimensions": Operation("y = torch.fft.fft2(random(4, 64, 64))", (4, 64, 64)),
        "fft in three dimensions": Operation("y = torch.fft.fftn(random(16, 16, 16))", (16, 16, 16)),
        "real fft and back": Operation("y = torch.fft.irfft(torch.fft.rfft(random(4, 64)), 64)", (4, 64)),
        "fft in half precision": Operation("y = torch.fft.fft(random(4, 64, dtype=torch.half))", (4, 64)),
        "fft in double precision": Operation("y = torch.fft.fft(random(4, 64, dtype=torch.double))", (4, 64)),
        "fft backward": Operation(
            "x = random(4, 64, requires_grad=True)\ntorch.fft.fft(x).abs().sum().backward()\ny = x.grad", (4, 64)
        ),
        "short-time fft": Operation(
            "y = torch.stft(random(1600), 64, return_complex=True, window=torch.ones(64, device='cuda'))", (33, 101)
        ),
    }


def _linear_algebra() -> dict[str, Operation]:
    rows = {}
    calls = {
        "qr": ("torch.linalg.qr(a)[1]", (8, 8)),
        "svd": ("torch.linalg.svd(a)[1]", (8,)),
        "svdvals": ("torch.linalg.svdvals(a)", (8,)),
        "eigh": ("torch.linalg.eigh(s)[1]", (8, 8)),
        "cholesky": ("torch.linalg.cholesky(s)", (8, 8)),
        "solve": ("torch.linalg.solve(s, b)", (8, 2)),
        "inv": ("torch.linalg.inv(s)", (8, 8)),
        "lstsq": ("torch.linalg.lstsq(a, c)[0]", (8, 2)),
        "det": ("torch.linalg.det(s)", ()),
        "slogdet": ("torch.linalg.slogdet(s)[1]", ()),
        "lu": ("torch.linalg.lu(s)[2]", (8, 8)),
        "lu_solve": ("torch.linalg.lu_solve(*torch.linalg.lu_factor(s), b)", (8, 2)),
        "ldl_solve": ("torch.linalg.ldl_solve(*torch.linalg.ldl_factor(s), b)", (8, 2)),
        "cholesky_solve": ("torch.cholesky_solve(b, s)", (8, 2)),
        "cholesky_inverse": ("torch.cholesky_inverse(s)", (8, 8)),
        "solve_triangular": ("torch.linalg.solve_triangular(s, b, upper=True)", (8, 2)),
        "pinv": ("torch.linalg.pinv(a)", (8, 16)),
        "householder_product": ("torch.linalg.householder_product(a, b[..., 0])", (16, 8)),
        "ormqr": ("torch.ormqr(a, b[..., 0], c)", (16, 2)),
    }
    for batch in ((), (3,)):
        for kind in ("float32", "float64", "complex64"):
            for name, (call, shape) in calls.items():
                rows[f"{name} {kind}{' batched' if batch else ''}"] = Operation(
                    f"make = lambda *sizes: random(*{batch}, *sizes, dtype=torch.{kind})\n"
                    f"a, s, b, c = make(16, 8), make(8, 8), make(8, 2), make(16, 2)\ny = {call}",
                    (*batch, *shape),
                )
    return rows | {
        "eigh of 700": Operation("y = torch.linalg.eigh(random(700, 700))[1]", (700, 700)),
        "inv of 600": Operation("y = torch.linalg.inv(random(600, 600))", (600, 600)),
        "svd by gesvd": Operation("y = torch.linalg.svd(random(700, 300), driver='gesvd')[1]", (300,)),
        "svd by gesvdj": Operation("y = torch.linalg.svd(random(300, 200), driver='gesvdj')[1]", (200,)),
        "svd by gesvda": Operation(
            "y = torch.linalg.svd(random(3, 300, 200), driver='gesvda', full_matrices=False)[1]", (3, 200)
        ),
        "svd of many small": Operation("y = torch.linalg.svd(random(5, 20, 20))[1]", (5, 20)),
        "inv backward": Operation(
            "x = random(8, 8, requires_grad=True)\ntorch.linalg.inv(x).sum().backward()\ny = x.grad", (8, 8)
        ),
    }


def _sparse() -> dict[str, Operation]:
    return {
        "csr times matrix": Operation("y = csr() @ random(4, 5)", (3, 5)),
        "csr times vector": Operation("y = csr() @ random(4)", (3,)),
        # How many entries the product has only the card would know.
        "csr times csr": Operation("y = csr() @ csr(4, 3)\nassert y._nnz() == 0", (3, 3), unknown_reads=1),
        "csr plus csr": Operation("y = csr() + csr()", (3, 4)),
        "csr to dense": Operation("y = csr().to_dense()", (3, 4)),
        "addmm of csr": Operation("y = torch.addmm(random(3, 5), csr(), random(4, 5))", (3, 5)),
        "sampled addmm": Operation("y = torch.sparse.sampled_addmm(csr(), random(3, 8), random(8, 4))", (3, 4)),
        "triangular solve of csr": Operation("y = torch.triangular_solve(random(3, 2), csr(3, 3)).solution", (3, 2)),
        "coo times matrix": Operation("y = torch.sparse.mm(coo(), random(4, 5))", (3, 5)),
        "coo times coo": Operation("y = torch.sparse.mm(coo(), coo().t())", (3, 3)),
        "coo coalesced": Operation("y = coo().coalesce()", (3, 4)),
        "bsr times matrix": Operation("y = torch.ones(16, 16).to_sparse_bsr((4, 4)).cuda() @ random(16, 5)", (16, 5)),
        "two of four": Operation(
            "half = torch.tensor([0, 0, 1, 1]).tile((128, 64)).half().cuda()\n"
            "sparse = torch.sparse.to_sparse_semi_structured(half)\n"
            "y = torch.mm(sparse, random(256, 128, dtype=torch.half))",
            (128, 128),
        ),
    }


def _reads() -> dict[str, Operation]:
    held = "a = torch.eye(8).cuda()\n"
    ones = "ones = lambda *sizes: torch.ones(*sizes).cuda()\n"
    return {
        "read what a product only read": Operation(
            held + "y = a @ a\nassert a.cpu().sum() == 8", (8, 8), unknown_reads=0
        ),
        "read what a product wrote": Operation(held + "y = (a @ a).cpu()", (8, 8), unknown_reads=1),
        "read what a product wrote over": Operation(
            held + ones + "torch.mm(ones(8, 8), ones(8, 8), out=a)\ny = a.cpu()", (8, 8), unknown_reads=1
        ),
        "a factorisation says that it succeeded": Operation(
            held + "y, info = torch.linalg.cholesky_ex(a)\nassert info.item() == 0", (8, 8), unknown_reads=0
        ),
        "read what a convolution wrote": Operation(
            ones + "y = F.conv2d(ones(1, 1, 4, 4), ones(1, 1, 3, 3)).cpu()", (1, 1, 2, 2), unknown_reads=1
        ),
        "read what a transform wrote": Operation(
            ones + "y = torch.fft.ifft(torch.fft.fft(ones(8))).cpu()", (8,), unknown_reads=1
        ),
    }


def _values() -> dict[str, Operation]:
    special = (
        "bessel_j0",
        "bessel_y0",
        "i0e",
        "i1",
        "ndtri",
        "log_ndtr",
        "erfcx",
        "gammaln",
        "digamma",
        "entr",
        "airy_ai",
    )
    rows = {f"special.{name}": Operation(f"y = torch.special.{name}(random(10))", (10,)) for name in special}
    return rows | {
        "special.zeta": Operation("y = torch.special.zeta(random(10), random(10))", (10,)),
        "kernel of the user's": Operation(
            "source = 'template <typename T> T kernel(T x, T y, T alpha) { return -x + alpha * y; }'\n"
            "y = torch.cuda.jiterator._create_jit_fn(source, alpha=1.0)(random(10), random(10))",
            (10,),
        ),
        "complex product": Operation("y = random(10, dtype=torch.complex64).prod()", ()),
        "gcd": Operation("y = torch.gcd(torch.tensor([4], device='cuda'), torch.tensor([6], device='cuda'))", (1,)),
        "dropout": Operation("y = F.dropout(random(1000))", (1000,)),
        "randperm": Operation("y = torch.randperm(100, device='cuda')", (100,)),
        "multinomial": Operation("y = torch.multinomial(torch.ones(10, device='cuda'), 3)", (3,)),
        "topk": Operation("y = random(1000).topk(5)[0].cpu()", (5,)),
        "sort": Operation("y = random(1000).sort()[0].cpu()", (1000,)),
        "ranges of NVTX": Operation(
            "torch.cuda.nvtx.range_push('a')\ntorch.cuda.nvtx.mark('b')\ntorch.cuda.nvtx.range_pop()\n"
            "torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start('c'))\ny = random(1)",
            (1,),
        ),
        "profiler": Operation(
            "from torch.profiler import ProfilerActivity, profile\n"
            "with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as told:\n"
            "    y = random(64, 64) @ random(64, 64)\n"
            "assert any('mm' in event.key for event in told.key_averages())",
            (64, 64),
            unsupported=("cuptiSubscribe",),
        ),
    }


OPERATIONS: dict[str, Operation] = {
    **_products(),
    **_networks(),
    **_attention(),
    **_transforms(),
    **_linear_algebra(),
    **_sparse(),
    **_reads(),
    **_values(),
}
