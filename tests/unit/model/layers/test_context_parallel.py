"""A sequence on several ranks: who holds which tokens, and what attention keeps."""

from __future__ import annotations

import pytest

from oomscope.model.layers import context_attention
from tests.ledgers.layer import kept_layer_ledger
from tests.unit.model.conftest import config_of, saved_by_layer
from tests.unit.model.pairs import pairs


@pytest.mark.parametrize("communication", ["p2p", "a2a", "all_gather", "a2a+p2p"])
def test_attention_keeps_its_ledger(meta_stage, monkeypatch, communication):
    splits, options = [(1, 2), (1, 4), (2, 2)], (("rope", "learned_absolute"), (False, True), ([], ["core_attn"]))
    for case in pairs(splits, (False, True), *options, (0.0, 0.1)):
        (t, c), flash_attn, positions, normed, modules, dropout = case
        monkeypatch.setattr(context_attention, "capability", lambda device, old=flash_attn: (8, 0) if old else (9, 0))
        config = config_of(
            model={
                "num_query_groups": 8,
                "num_attention_heads": 16,
                "position_embedding_type": positions,
                "qk_layernorm": normed,
                "hidden_dropout": dropout,
                "attention_dropout": dropout,
            },
            parallel={
                "tensor_model_parallel_size": t,
                "sequence_parallel": t > 1,
                "context_parallel_size": c,
                "cp_comm_type": communication,
                "hierarchical_context_parallel_sizes": (2, c // 2) if communication == "a2a+p2p" else None,
            },
            recompute={"recompute_granularity": "selective", "recompute_modules": modules},
        )
        kept = sum(kept_layer_ledger(config, flash_attn=flash_attn).values())
        assert saved_by_layer(meta_stage(config), config) == kept, case
