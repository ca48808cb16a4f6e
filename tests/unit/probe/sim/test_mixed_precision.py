"""Mixed precision asked for by the name cuda."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

BY_NAME = {
    "autocast": lambda: torch.autocast("cuda", dtype=torch.bfloat16),
    "keyword": lambda: torch.autocast(device_type="cuda", dtype=torch.bfloat16),
    "cuda.amp": lambda: torch.cuda.amp.autocast(dtype=torch.bfloat16),
}


@pytest.mark.parametrize("autocast", BY_NAME.values(), ids=BY_NAME)
def test_autocast_for_cuda_casts_on_the_simulated_device(simulate, autocast):
    with simulate() as session:
        x, weight = (torch.ones(8, 8, device=session.device) for _ in range(2))
        with autocast():
            assert torch.is_autocast_enabled()
            assert torch.get_autocast_dtype("cuda") is torch.bfloat16
            assert (x @ weight).dtype is torch.bfloat16
        assert not torch.is_autocast_enabled("cuda")
        assert (x @ weight).dtype is torch.float32


def test_autocast_is_switched_off_for_cuda_inside_that_of_the_device(simulate):
    with simulate() as session, torch.autocast("sim", dtype=torch.bfloat16):
        x = torch.ones(8, 8, device=session.device)
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype is torch.float32
        assert (x @ x).dtype is torch.bfloat16


def test_a_function_casts_its_arguments_under_autocast_for_cuda(simulate):
    class Exact(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(_ctx, x):
            assert not torch.is_autocast_enabled()
            return x.exp()

    with simulate() as session, torch.autocast("cuda", dtype=torch.float16):
        half = torch.ones(8, device=session.device, dtype=torch.float16)
        assert Exact.apply(half).dtype is torch.float32


@pytest.mark.parametrize("make", [torch.amp.GradScaler, torch.cuda.amp.GradScaler], ids=["amp", "cuda.amp"])
def test_a_scaler_for_cuda_scales_on_the_simulated_device(simulate, make):
    with simulate() as session:
        scaler = make()
        assert scaler.is_enabled()
        model = torch.nn.Linear(64, 64, device=session.device)
        optimizer = torch.optim.AdamW(model.parameters())
        loss = model(torch.randn(8, 64, device=session.device)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert len(optimizer.state) == 2


def test_torch_is_as_it_was_afterwards(simulate):
    before = torch.autocast.__init__, torch.is_autocast_enabled, torch.amp.GradScaler.__init__
    with simulate():
        assert torch.autocast.__init__ is not before[0]
    assert (torch.autocast.__init__, torch.is_autocast_enabled, torch.amp.GradScaler.__init__) == before
