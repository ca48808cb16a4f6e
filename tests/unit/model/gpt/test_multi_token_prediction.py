"""Multi-token prediction computes what its definition says, keeps what its ledger says, and is placed as upstream."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from oomscope.model.cost.parameters import stage_parameters
from oomscope.model.gpt.stage import GPTStage
from tests.ledgers.stage import stage_bytes
from tests.unit.model.conftest import Meter, config_of, cpu_stage

PLAIN = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "position_embedding_type": "rope"}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
CPU = torch.device("cpu")


def further_losses(stage: GPTStage, tokens: torch.Tensor, labels: torch.Tensor, depths: int) -> list[torch.Tensor]:
    """Return each depth's mean loss from its definition: depth k reads token i + k and guesses label i + k."""
    hidden = stage.embedding(tokens)
    for layer in stage.layers:
        hidden = layer(hidden)
    hidden, losses, s = stage.final_norm(hidden), [], tokens.shape[1]
    for depth in range(1, depths + 1):
        own = stage.mtp.layers[(depth - 1) % len(stage.mtp.layers)]
        ahead = F.pad(tokens[:, depth:], (0, depth))
        joined = torch.cat((own.enorm(stage.embedding(ahead)), own.hnorm(hidden)), -1)
        hidden = own.final_norm(own.layer(F.linear(joined, own.eh_proj.weight)))
        logits = F.linear(hidden, stage.output_layer.weight)[: s - depth]
        losses.append(F.cross_entropy(logits.flatten(0, 1), labels[:, depth:].t().flatten()))
    return losses


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("recompute", [{}, FULL])
def test_gradients_are_those_of_all_losses(tied, repeated, recompute):
    model = {"mtp_num_layers": 2, "mtp_use_repeated_layer": repeated, "mtp_loss_scaling_factor": 0.3}
    config = config_of(
        model={**PLAIN, **model, "share_embeddings_and_output_weights": tied},
        precision={"bf16": False},
        recompute=recompute,
        data={"num_microbatches": 4, "seq_length": 16, "micro_batch_size": 2},
    )
    stage = cpu_stage(config)
    assert len(stage.mtp.layers) == (1 if repeated else 2)
    tokens, labels = torch.randint(0, 1000, (2, 2, 16), generator=torch.Generator().manual_seed(6))
    loss = stage(tokens, labels)
    (loss / config.num_microbatches).backward()
    found = {name: weight.grad.clone() for name, weight in stage.named_parameters()}
    stage.zero_grad()
    logits = stage(tokens).flatten(0, 1)
    own = F.cross_entropy(logits, labels.t().flatten())
    further = sum(further_losses(stage, tokens, labels, 2))
    ((own + 0.3 / 2 * further) / config.num_microbatches).backward()
    torch.testing.assert_close(loss, own)
    for name, weight in stage.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("recompute", [{}, FULL, {"recompute_granularity": "selective", "recompute_modules": ["mlp"]}])
@pytest.mark.parametrize("split", [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("depths", [1, 2])
def test_a_stage_keeps_what_its_ledger_says(meta_stage, depths, split, recompute):
    t, sequence_parallel = split
    config = config_of(
        model={**PLAIN, "mtp_num_layers": depths, "hidden_dropout": 0.1, "add_bias_linear": False},
        parallel={"tensor_model_parallel_size": t, "sequence_parallel": sequence_parallel},
        recompute=recompute,
    )
    stage = meta_stage(config)
    assert sum(p.numel() for p in stage.parameters()) == stage_parameters(
        config, 2, pre_process=True, post_process=True
    )
    meter = Meter(stage)
    tokens = torch.zeros((2, 16), dtype=torch.int64, device="meta")
    meter(lambda: stage(tokens, tokens))
    assert meter.bytes == stage_bytes(config, 2, pre_process=True, post_process=True)
