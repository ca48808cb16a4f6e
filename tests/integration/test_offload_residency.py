"""On the simulated device, offloading N of L layers leaves L - N layers' worth of activations resident."""

from __future__ import annotations

import pytest
import torch

from oomscope.config.schema import Config
from oomscope.model.ledger import layer_ledger
from oomscope.model.mesh import ParallelState
from oomscope.model.transformer import GPTStage
from oomscope.probe.gpus import find_gpu
from oomscope.probe.sessions import SessionSettings
from oomscope.probe.sim.session import SimSession

LAYERS = 6


@pytest.mark.parametrize("offloaded", [0, 1, 3, 5])
def test_resident_layers(offloaded: int) -> None:
    config = Config.model_validate(
        {
            "model": {
                "num_layers": LAYERS,
                "hidden_size": 1024,
                "num_attention_heads": 8,
                "num_query_groups": 4,
                "position_embedding_type": "rope",
                "normalization": "RMSNorm",
                "gated_linear_unit": True,
                "activation_func": "silu",
                "attention_dropout": 0.0,
            },
            "data": {"seq_length": 1024, "micro_batch_size": 2},
            "offload": {"cpu_offloading": offloaded > 0, "cpu_offloading_num_layers": offloaded},
        }
    )
    session = SimSession(SessionSettings(gpu=find_gpu("h100-80gb"), op_temporaries=False))
    with session:
        stage = GPTStage(
            config,
            ParallelState(),
            layers=range(LAYERS),
            pre_process=False,
            post_process=False,
            device=session.device,
            dtype=torch.bfloat16,
        )
        hidden = torch.empty(1024, 2, 1024, device=session.device, dtype=torch.bfloat16, requires_grad=True)
        before = torch.get_device_module(session.device).memory_allocated()
        out = stage._run_layers(hidden)
        resident = torch.get_device_module(session.device).memory_allocated() - before
        out.backward(torch.empty_like(out))
    layer = sum(layer_ledger(config).values())
    assert resident == pytest.approx((LAYERS - offloaded) * layer, rel=0.06)
