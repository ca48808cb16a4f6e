"""Megatron-Bridge's theoretical memory (K13) and the table of Korthikanti et al., held to the model, never to this
project's ledger. K15, the bytes that Megatron-LM's CI recorded, is ``test_megatron_memory.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from oomscope.config.schema import Config
from oomscope.model.cost.parameters import expert_parameters, stage_parameters
from oomscope.model.parallel.interleaved_schedule import InterleavedSchedule
from tests.conformance.megatron_stages import FULL, UNFUSED, actions_of, config_of, layer_kept


class TestK13:
    """The integers of Megatron-Bridge's tests/unit_tests/training/utils/test_theoretical_memory_utils.py.

    Where its formula says otherwise than the model is, the difference is written out.
    """

    TP2_PP2 = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "sequence_parallel": True}  # noqa: RUF012
    S, B, H, V = 8, 2, 16, 32

    def bridge(self, **sections: dict[str, Any]) -> Config:
        model = {
            "num_layers": 4,
            "hidden_size": 16,
            "ffn_hidden_size": 64,
            "num_attention_heads": 4,
            "vocab_size": 32,
            "make_vocab_size_divisible_by": 1,
            "position_embedding_type": "rope",
            "add_bias_linear": False,
            **UNFUSED,
            **sections.pop("model", {}),
        }
        data = {"seq_length": self.S, "micro_batch_size": self.B}
        return config_of(**{"data": data, **sections, "model": model})

    def test_parameters_of_the_model(self) -> None:
        assert stage_parameters(self.bridge(), 4, pre_process=True, post_process=True) == 13088

    def test_parameters_of_a_rank(self) -> None:
        """Bridge divides norms by t, and spreads the final norm over the stages: 3,400."""
        norms_of_a_stage, final_norm = 2 * 4 * 16, 2 * 16
        ours = stage_parameters(self.bridge(parallel=self.TP2_PP2), 2, pre_process=True, post_process=False)
        assert ours - norms_of_a_stage // 2 + final_norm // 4 == 3400

    def test_the_heaviest_of_uneven_stages(self) -> None:
        config = self.bridge(model={"num_layers": 8, "share_embeddings_and_output_weights": False})
        assert stage_parameters(config, 3, pre_process=False, post_process=True, first=5) == 9952

    def test_experts_by_a_pattern_of_layers(self) -> None:
        """Bridge counts no routers: 5,856 dense and 4,096 routed parameters."""
        config = self.bridge(
            model={
                "num_layers": 8,
                "share_embeddings_and_output_weights": False,
                "num_moe_experts": 2,
                "moe_layer_freq": [0, 1, 0, 0, 1, 0, 1, 1],
                "moe_ffn_hidden_size": 32,
            }
        )
        routed, routers = 2 * expert_parameters(config), 2 * 2 * 16
        assert routed == 4096
        assert stage_parameters(config, 3, pre_process=False, post_process=True, first=5) - routed - routers == 5856

    def test_experts_are_shared_out(self) -> None:
        model = {"num_moe_experts": 8, "moe_layer_freq": 2, "moe_ffn_hidden_size": 32}
        whole = self.bridge(model=model)
        shared = self.bridge(model=model, parallel={"expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1})
        assert 2 * expert_parameters(whole) == 16384
        assert 2 * expert_parameters(shared) == 4096
        dense = stage_parameters(whole, 4, pre_process=True, post_process=True) - 16384 - 2 * 8 * 16
        assert dense == 8992

    def test_activations_with_virtual_stages(self, fake_world: None) -> None:
        """22,240: five chunks of one layer in flight on the first rank, (embedding mask + token ids)·p·1.25/t."""
        actions = actions_of(InterleavedSchedule(2, 0, 4, 2, 2))
        chunks = max(itertools.accumulate(1 if action.direction == "forward" else -1 for action in actions))
        masks_and_ids = (self.S * self.B * self.H + 8 * self.S * self.B) * 2 * 5 // 4 // 2
        layer = 34 * self.S * self.B * self.H // 2
        assert chunks * layer + masks_and_ids == 22240
        longer = self.bridge(
            model={"position_embedding_type": "none"},  # the formula has no rotated queries and keys
            parallel={"tensor_model_parallel_size": 2, "sequence_parallel": True},
            recompute={"recompute_granularity": "selective"},
            data={"seq_length": 64 * self.S, "micro_batch_size": self.B},
        )
        statistics = 2 * 8 * 64 * self.S * self.B // 2
        assert layer_kept(longer) == 64 * layer + statistics


S, B, H, A = 512, 4, 512, 8
SELECTIVE = {"recompute_granularity": "selective"}
UNIFORM = {**FULL, "recompute_method": "uniform", "recompute_num_layers": 1}
SBH = S * B * H
SCORES = 5 * A * S * S * B
Formula = Callable[[int, int], int]
KORTHIKANTI: dict[str, tuple[dict[str, Any], dict[str, Any], Formula]] = {
    "no parallelism (equation 1)": ({}, {}, lambda t, c: 34 * SBH + SCORES),
    "tensor parallel (equation 2)": ({"tp": (2, 4, 8)}, {}, lambda t, c: 10 * SBH + 24 * SBH // t + SCORES // t),
    "tensor and sequence parallel (equation 4)": (
        {"tp": (2, 4, 8), "sp": True},
        {},
        lambda t, c: (34 * SBH + SCORES) // t,
    ),
    "tensor parallel, selective": ({"tp": (2, 4)}, SELECTIVE, lambda t, c: 10 * SBH + 24 * SBH // t),
    "tensor and sequence parallel, selective": ({"tp": (2, 4, 8), "sp": True}, SELECTIVE, lambda t, c: 34 * SBH // t),
    "full": ({"tp": (1, 2)}, UNIFORM, lambda t, c: 2 * SBH),
    "full, sequence parallel": ({"tp": (2, 4), "sp": True}, UNIFORM, lambda t, c: 2 * SBH // t),
    "context parallel, selective": ({"tp": (1,), "cp": 2}, SELECTIVE, lambda t, c: 34 * SBH // c),
    "context, tensor and sequence parallel, selective": (
        {"tp": (2,), "sp": True, "cp": 2},
        SELECTIVE,
        lambda t, c: 34 * SBH // (t * c),
    ),
}
"""Row of table 2 (arXiv:2205.05198) to its splits, recomputation and bytes a layer; context parallelism divides s."""


@pytest.mark.parametrize("row", KORTHIKANTI)
def test_a_layer_keeps_what_korthikanti_says(fake_world: None, row: str) -> None:
    """The formula, and the statistics of two LayerNorms that the paper leaves out: 8 bytes a token each."""
    split, recompute, formula = KORTHIKANTI[row]
    c = split.get("cp", 1)
    for t in split.get("tp", (1,)):
        kept = layer_kept(
            config_of(
                model={
                    "hidden_size": H,
                    "num_attention_heads": A,
                    "position_embedding_type": "none",
                    "attention_backend": "unfused" if c == 1 else "flash",
                    "attention_dropout": 0.1 if c == 1 else 0.0,
                },
                data={"seq_length": S, "micro_batch_size": B},
                parallel={
                    "tensor_model_parallel_size": t,
                    "sequence_parallel": split.get("sp", False),
                    "context_parallel_size": c,
                    "cp_comm_type": "a2a",
                },
                recompute=recompute,
            )
        )
        statistics = 0 if "full" in row else 2 * 8 * S * B // (c * (t if split.get("sp") else 1))
        assert kept == formula(t, c) + statistics, t
