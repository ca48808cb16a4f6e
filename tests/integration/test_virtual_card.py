"""PyTorch as it is installed, on the virtual card: it imports, trains, and runs out of memory as on a real one.

`make test-torch` runs this file under other versions of torch.
"""

from __future__ import annotations

import collections
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oomscope.units import GiB, MiB
from oomscope.virtual import CardSettings
from oomscope.virtual.cards import CARDS
from oomscope.virtual.installed_torch import find_torch
from oomscope.virtual.loading import LIBRARIES
from oomscope.virtual.sonames import CARD

TORCH = find_torch()
pytestmark = [
    pytest.mark.skipif(TORCH is None or TORCH.cuda is None, reason="torch is built without CUDA"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the virtual card needs Linux"),
]

IMPORT = """
import json, os
from oomscope import virtual
virtual.load()
import torch
"""
TRAIN = (
    IMPORT
    + """
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
given = torch.randn(512, 1024).cuda()
with torch.autocast("cuda", torch.bfloat16):
    loss = model(given).square().mean()
loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
torch.cuda.synchronize()
held = [*model.parameters(), *(parameter.grad for parameter in model.parameters())]
held += [value for state in optimizer.state.values() for value in state.values()]
print(json.dumps({
    "held": sum((tensor.nbytes + 511) // 512 * 512 for tensor in [*held, given, loss] if tensor.is_cuda),
    "allocated": torch.cuda.memory_stats()["allocated_bytes.all.current"],
    "peak": torch.cuda.max_memory_allocated(),
    "given": given.cpu().sum().item() == given.sum(0).cpu().sum().item(),
}), flush=True)
os._exit(0)  # autograd's thread may abort an interpreter that ends after a backward pass
"""
)
RUN_OUT = (
    IMPORT
    + """
first = torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
try:
    torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    said = str(error)
free, total = torch.cuda.mem_get_info()
del first
again = torch.empty(700 << 20, dtype=torch.uint8, device="cuda")
print(json.dumps({"said": said, "free": free, "total": total, "reserved": torch.cuda.memory_reserved()}))
"""
)


def run(program: str, settings: CardSettings, **environment: str) -> str:
    environment = {**os.environ, **settings.variables(), **environment}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_imports_and_finds_the_card_that_was_chosen() -> None:
    program = IMPORT + "print(json.dumps([torch.cuda.get_device_name(), *torch.cuda.get_device_capability()]))"
    assert json.loads(run(program, CardSettings(card=CARDS["a100-40gb"]))) == ["NVIDIA A100-SXM4-40GB", 8, 0]


def test_a_training_step_holds_parameters_gradients_and_states() -> None:
    told = json.loads(run(TRAIN, CardSettings()))
    workspaces = told["allocated"] - told["held"]
    assert told["held"] == 4 * 4 * (2 * 1024 * 4096 + 4096 + 1024) + 512 * 1024 * 4 + 512 + 4 * 512
    assert 0 <= workspaces <= 96 * MiB, "cuBLAS holds workspaces between products, or none"
    assert told["peak"] >= told["allocated"]


def test_memory_runs_out_with_torch_s_own_words_and_the_program_goes_on() -> None:
    told = json.loads(run(RUN_OUT, CardSettings(total_bytes=GiB)))
    assert "CUDA out of memory. Tried to allocate 600.00 MiB. GPU 0 has a total capacity of 1024.00 MiB" in told["said"]
    assert told["total"] == GiB
    assert told["free"] == GiB - 600 * MiB
    assert told["reserved"] == 700 * MiB


WHEELS = [folder for entry in sys.path for folder in Path(entry).glob("nvidia/*/lib")]
NVIDIA_S = re.compile(
    r"binding file (\S+/torch/\S+) \[0\] to (\S+) \[0\]: normal symbol `((?:cu|nccl|nvrtc|nvml|__cuda)\w+)'"
)


@pytest.mark.skipif(not WHEELS, reason="no nvidia-* wheel is installed")
@pytest.mark.parametrize("premapped", [False, True], ids=["as installed", "mapped by the program"])
def test_installed_wheels_of_nvidia_are_never_called(tmp_path: Path, premapped: bool) -> None:
    files = [str(path) for folder in WHEELS for path in sorted(folder.glob("*.so*"))]
    program = f"""
import contextlib, ctypes
from oomscope import virtual
virtual.load()
for file in {files if premapped else []}:
    with contextlib.suppress(OSError):  # one that needs another of them finds the card in its place
        ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
""" + TRAIN.removeprefix(IMPORT)
    program = program.replace("model =", "import json, os, torch\nprint(open('/proc/self/maps').read())\nmodel =", 1)
    maps = run(program, CardSettings(), LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(tmp_path / "bindings"))
    assert premapped == any(str(folder) in maps for folder in WHEELS)
    bound = collections.Counter()
    for path in tmp_path.iterdir():
        bound.update(library for _, library, _ in NVIDIA_S.findall(path.read_text()))
    assert bound[str(LIBRARIES / CARD)] > 400
    assert not [library for library in bound if "/nvidia/" in library]
