"""What Megatron-Core's offloading means, claim by claim (K8, K9, K12, K14). Expected values are derived
from Megatron's and Megatron-Bridge's own formulas and tests, or by brute force, never from this project's ledger.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from oomscope.config.rules.check import check
from oomscope.model.base.device import SideStream
from oomscope.model.base.observer import NullObserver
from oomscope.model.parallel.parallel_state import ParallelState, build_parallel_state
from oomscope.model.trainer import Trainer
from tests.conformance.megatron_stages import (
    CARD,
    UNFUSED,
    begin,
    config_of,
    live,
    live_peak,
    pinned_peak,
    stage_of,
)


class TestK8:
    """Fine-grained offloading: what leaves the device is what the host pins; the last group of each name stays."""

    MODEL = {"num_layers": 3, "hidden_size": 256, "attention_dropout": 0.0, "hidden_dropout": 0.0}  # noqa: RUF012

    N, H = 512, 256
    GROUPS = (2 + 4) * 2 * N * H
    """Bytes of a layer: norm input and output (qkv_linear), Q, K, V and, with its projection, context (core_attn)."""
    CONTEXT = 2 * N * H
    """Bytes that core_attn and its projection both save, and so both send."""

    def forward(self, smallest: int | None) -> tuple[list[int], int]:
        """Return device bytes between forward and backward of two iterations, and the most pinned bytes."""
        offload = {"offload_modules": ["qkv_linear", "core_attn", "attn_proj"], "min_offloaded_tensor_size": smallest}
        if smallest is None:
            offload = {}
        config = config_of(
            model={"num_layers": 3, "hidden_size": self.H, "attention_dropout": 0.0, "hidden_dropout": 0.0},
            data={"seq_length": self.N // 2, "micro_batch_size": 2},
            offload={"fine_grained_activation_offloading": smallest is not None, **offload},
        )
        begin()
        held = []
        stage = stage_of(config, CARD)
        tokens = torch.zeros(2, self.N // 2, dtype=torch.int64, device=CARD)
        for _ in range(2):
            before = live()
            loss = stage(tokens, tokens)
            torch.cuda.synchronize()
            held.append(live() - before)
            loss.backward()
            for parameter in stage.parameters():
                parameter.grad = None
        return held, pinned_peak()

    def test_bytes_are_conserved_and_the_last_of_each_name_stays(self) -> None:
        """The first iteration sends all away; then two of three layers' groups leave."""
        plain, nothing = self.forward(None)
        offloaded, pinned = self.forward(self.N * self.H)
        assert nothing == 0
        assert pinned == 3 * (self.GROUPS + self.CONTEXT)
        assert [one - two for one, two in zip(plain, offloaded, strict=True)] == [3 * self.GROUPS, 2 * self.GROUPS]

    def test_the_least_size_counts_elements(self) -> None:
        assert self.forward(self.N * self.H + 1)[1] == 0

    def peak(self, rank: int, stages: int, chunks: int, *, offload: bool) -> int:
        """Return the peak of two iterations of four microbatches with two layers a chunk, on pipeline rank ``rank``."""
        modules = {"offload_modules": ["qkv_linear", "core_attn", "attn_proj"]} if offload else {}
        config = config_of(
            model={**self.MODEL, "num_layers": 2 * stages * chunks},
            data={"seq_length": self.N // 2, "micro_batch_size": 2, "num_microbatches": 4},
            parallel={
                "pipeline_model_parallel_size": stages,
                "virtual_pipeline_model_parallel_size": chunks if chunks > 1 else None,
            },
            offload={
                "fine_grained_activation_offloading": offload,
                "min_offloaded_tensor_size": self.N * self.H,
                **modules,
            },
        )
        before = begin()
        dist.init_process_group("cuda:fake,cpu:fake", store=FakeStore(), rank=rank, world_size=stages)
        try:
            state = build_parallel_state(config, rank=rank, world_size=stages)
            trainer = Trainer(config, state, device=CARD, observer=NullObserver())
            trainer.setup()
            for iteration in range(2):
                trainer.step(iteration)
        finally:
            dist.destroy_process_group()
        return live_peak() - before

    @pytest.mark.parametrize(
        ("stages", "chunks", "in_flight", "on_their_way"),
        [(4, 1, 4, 0), (2, 2, 5, 2)],  # interleaved, both contexts of a layer are back beside what is read
        ids=["1F1B", "interleaved"],
    )
    def test_the_first_stage_spares_one_layer_of_all_passes_in_flight(
        self, stages: int, chunks: int, in_flight: int, on_their_way: int
    ) -> None:
        """Only of the pass that is differentiated first a group of each name stays (``post_warmup_callback``)."""
        saved = self.peak(0, stages, chunks, offload=False) - self.peak(0, stages, chunks, offload=True)
        assert saved == (2 * in_flight - 1) * self.GROUPS - on_their_way * self.CONTEXT


class TestK9:
    """Optimizer offloading spares the moments, 8 bytes a parameter that moves.

    With the precision-aware optimizer the master goes as well; but what stays has an fp32 master and two fp32 moments,
    12 bytes, whatever dtypes of states are asked for: Megatron-Core optimizer/__init__.py makes the hybrid optimizer
    of plain Adams (``param_update_in_fp32=True``).
    """

    @staticmethod
    def held(optimizer: dict[str, Any], **precision: bool) -> tuple[int, int, int]:
        """Return bytes held after a step on device and host (pinned, as asked for), and the number of parameters."""
        asked: list[int] = []

        def pinned(stream: SideStream, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
            asked.append(shape.numel() * dtype.itemsize)
            return plain(stream, shape, dtype)

        plain = SideStream.pinned
        model = {"hidden_size": 256, "num_layers": 1, "vocab_size": 512}
        config = config_of(model=model, optimizer={"use_distributed_optimizer": True, **optimizer}, precision=precision)
        before = begin()
        trainer = Trainer(config, ParallelState(), device=CARD, observer=NullObserver())
        with mock.patch.object(SideStream, "pinned", pinned):
            trainer.setup()
            trainer.step(0)
        parameters = sum(parameter.numel() for chunk in trainer.model for parameter in chunk.parameters())
        return live() - before, sum(asked), parameters

    @pytest.mark.parametrize(
        ("optimizer", "precision", "before", "after"),
        [
            ({}, {}, 12, 12),
            ({"use_precision_aware_optimizer": True}, {}, 2 + 8, 12),
            ({"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, {}, 6, 12),
            (
                {"use_precision_aware_optimizer": True, "main_grads_dtype": "bf16"},
                {"grad_reduce_in_fp32": False},
                2 + 8,
                12 + 4,
            ),
        ],
        ids=["plain", "aware", "bf16 moments", "bf16 gradients"],
    )
    def test_bytes_a_parameter(
        self, optimizer: dict[str, Any], precision: dict[str, bool], before: int, after: int
    ) -> None:
        """``before`` is held on the device without offloading, ``after`` of a parameter that stays there."""
        alone, _, parameters = self.held(optimizer, **precision)
        for fraction in (0.0, 0.5, 1.0):
            offload = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": fraction}
            offloaded, pinned, _ = self.held({**optimizer, **offload}, **precision)
            moved = pinned / 8  # the host's fp32 weight and gradient
            assert moved == 0 if fraction == 0 else fraction * parameters <= moved < (fraction + 0.25) * parameters
            left_of_moved = 0 if optimizer else 4
            expected = before * parameters - after * (parameters - moved) - left_of_moved * moved
            assert alone - offloaded == pytest.approx(expected, abs=0.01 * 12 * parameters), fraction


class TestK12:
    """Layer offloading of N of L layers leaves L - N layers' activations resident (Transformer Engine's own test)."""

    LAYERS = 6

    @pytest.mark.parametrize("offloaded", [0, 1, 3, 5])
    def test_resident_layers(self, offloaded: int) -> None:
        """What is too small to go, statistics and masks of few elements, is within the tolerance."""
        n, h, f, g = 2048, 1024, 4096, 512
        config = config_of(
            model={
                "num_layers": self.LAYERS,
                "hidden_size": h,
                "num_query_groups": 4,
                "position_embedding_type": "rope",
                "normalization": "RMSNorm",
                "gated_linear_unit": True,
                "activation_func": "silu",
                "attention_dropout": 0.0,
                "hidden_dropout": 0.0,
            },
            data={"seq_length": n // 2, "micro_batch_size": 2},
            offload={"cpu_offloading": offloaded > 0, "cpu_offloading_num_layers": offloaded},
        )
        stage = stage_of(config, CARD)
        hidden = torch.empty(n // 2, 2, h, device=CARD, dtype=torch.bfloat16, requires_grad=True)
        before = live()
        out = stage._run_layers(hidden)
        torch.cuda.synchronize()
        resident = live() - before
        out.backward(torch.empty_like(out))
        norms, attention, mlp = 4 * n * h, n * (h + 2 * g) + n * h, n * (2 * f + f)
        layer = 2 * (norms + attention + mlp)
        assert resident == pytest.approx((self.LAYERS - offloaded) * layer, rel=0.06)


class TestK14:
    """Megatron-Bridge's tests/unit_tests/training/test_config.py on fine-grained offloading."""

    FINE = {"fine_grained_activation_offloading": True, "offload_modules": ["core_attn"]}  # noqa: RUF012

    @pytest.mark.parametrize(
        "sections",
        [
            {"offload": {**FINE, "cpu_offloading": True, "cpu_offloading_num_layers": 1}},
            {"offload": {**FINE, "offload_modules": []}},
            {"offload": {**FINE, "offload_modules": ["attn_proj"]}},
            {"offload": {**FINE, "activation_offload_fraction": 1.5}},
            {"offload": FINE, "model": {"transformer_impl": "local", **UNFUSED}},
            {"offload": FINE, "model": {"transformer_engine_version": "2.10.0"}},
        ],
        ids=str,
    )
    def test_refused(self, sections: dict[str, Any]) -> None:
        try:
            findings = check(config_of(**sections))
        except ValueError:
            return  # out of the schema's own bounds
        assert [finding.rule for finding in findings if finding.severity == "error"]

    @pytest.mark.parametrize(
        "sections",
        [
            {"offload": FINE},
            {"offload": {**FINE, "offload_modules": ["core_attn", "attn_proj"]}},
            {"offload": FINE, "model": {"transformer_engine_version": "2.9.0"}},
        ],
        ids=str,
    )
    def test_accepted(self, sections: dict[str, Any]) -> None:
        assert [finding.rule for finding in check(config_of(**sections)) if finding.is_fatal] == []
