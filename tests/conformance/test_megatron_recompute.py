"""What Megatron-Core's recomputation means, claim by claim (K1 to K7). Expected values are derived
from Megatron's and Megatron-Bridge's own formulas and tests, or by brute force, never from this project's ledger.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from oomscope.config.rules.check import RULES, check
from oomscope.config.rules.layer_split import stage_layers
from oomscope.config.schema import RecomputeConfig
from oomscope.model.base.random import ModelParallelRandom
from oomscope.model.memory.layer_groups import layer_groups
from oomscope.model.memory.recompute import DiscardedOutput, checkpoint
from oomscope.model.parallel.parallel_state import ParallelState, Place
from tests.conformance.megatron_stages import CARD, CPU, FULL, UNFUSED, config_of, live, stage_of, trained


class TestK1:
    """An ordinary checkpoint gives the same outputs and gradients, and draws the same random numbers."""

    @pytest.mark.parametrize("split", [1, 2])
    def test_dropout_of_both_kinds_is_drawn_again(self, split: int) -> None:
        def run(wrap: bool) -> list[torch.Tensor]:
            random = ModelParallelRandom(CPU, seed=5, tp_rank=split - 1, tp_size=split)
            torch.manual_seed(7)
            x = torch.linspace(-1, 1, 4096).view(64, 64).requires_grad_()

            def region(x: torch.Tensor) -> torch.Tensor:
                out = nn.functional.dropout(x.sin(), 0.3)
                with random.fork():
                    return nn.functional.dropout(out, 0.5)

            out = checkpoint(region, random, x) if wrap else region(x)
            between = torch.rand(3)
            (out * out).sum().backward()
            with random.fork():
                after = torch.rand(3)
            assert x.grad is not None
            return [out.detach(), x.grad, between, torch.rand(3), after]

        for one, two in zip(run(False), run(True), strict=True):
            assert torch.equal(one, two)

    def test_it_cannot_be_differentiated_by_grad(self) -> None:
        """Gradients flow by ``backward`` alone (``CheckpointFunction.backward`` raises)."""
        x = torch.ones(3, requires_grad=True)
        weight = torch.ones(3, requires_grad=True)
        out = checkpoint(lambda x: x * weight, ModelParallelRandom(CPU, seed=0), x)
        with pytest.raises(RuntimeError, match=r"not compatible with \.grad"):
            torch.autograd.grad(out.sum(), x)


class TestK2:
    """distribute_saved_activations keeps input/t in a buffer of its own and drops the input's storage."""

    def test_a_hidden_state_of_16_elements_is_kept_as_8(self, fake_world: None) -> None:
        """Megatron-Core tests/unit_tests/tensor_parallel/test_random.py: [4, 4] becomes (8,) between the passes."""
        config = config_of(
            model={"num_layers": 1},
            parallel={"tensor_model_parallel_size": 2},
            recompute={
                **FULL,
                "recompute_method": "uniform",
                "recompute_num_layers": 1,
                "distribute_saved_activations": True,
            },
        )
        state = ParallelState(world_size=8, tp=Place(size=2, group=dist.new_group([0, 1])))
        kept: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor)
            return tensor

        stage = stage_of(config, CARD, state)
        hidden = torch.empty(16, 2, 64, device=CARD, dtype=torch.bfloat16, requires_grad=True) + 0
        before = live()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = stage._run_layers(hidden)
        resident = live() - before
        assert [tensor.shape for tensor in kept] == [(16 * 2 * 64 // 2,)]
        assert hidden.untyped_storage().nbytes() == 0
        assert resident == out.nbytes + hidden.numel() * 2 // 2 - hidden.numel() * 2
        out.backward(torch.empty_like(out))


class TestK3:
    """Between the passes the output of an output-discarding checkpoint has no bytes: inputs alone are live."""

    def test_live_bytes_are_the_inputs(self) -> None:
        x = torch.empty(1024, 512, device=CARD, requires_grad=True)
        weight = torch.empty(512, 512, device=CARD, requires_grad=True)
        before = live()
        region = DiscardedOutput(lambda x: x.sin().exp())
        inner = region.run(x)
        assert live() - before == x.nbytes
        out = inner @ weight
        region.discard(refill_before=out)
        assert inner.untyped_storage().nbytes() == 0
        assert live() - before == out.nbytes
        out.sum().backward()
        assert inner.untyped_storage().nbytes() == x.nbytes


class TestK4:
    """Views that a consumer took of a discarded output are whole again in backward."""

    def test_the_split_of_a_grouped_product(self) -> None:
        def run(discard: bool) -> list[torch.Tensor | None]:
            x = torch.linspace(0, 1, 60).view(6, 10).requires_grad_()
            weights = [torch.full((5, 2), float(index + 1), requires_grad=True) for index in range(3)]
            region = DiscardedOutput(lambda x: x.sin())
            inner = region.run(x) if discard else x.sin()
            parts = inner.reshape(12, 5).split([2, 7, 3])
            out = torch.cat([part @ weight for part, weight in zip(parts, weights, strict=True)]).tanh()
            if discard:
                region.discard(refill_before=out)
                assert all(part.untyped_storage().nbytes() == 0 for part in parts)
            out.sum().backward()
            return [x.grad, *(weight.grad for weight in weights)]

        for one, two in zip(run(False), run(True), strict=True):
            assert one is not None
            assert two is not None
            assert torch.equal(one, two)


class TestK5:
    """uniform cuts consecutive groups of N, the last may be shorter; block takes the first N of each model chunk."""

    @pytest.mark.parametrize(
        ("method", "number", "again"),
        [
            ("uniform", 1, [4, 3, 2, 1, 0]),
            ("uniform", 3, [3, 4, 0, 1, 2]),  # Megatron-LM issue 2294: five layers in groups of three
            ("uniform", 9, [0, 1, 2, 3, 4]),
            ("block", 2, [1, 0]),
            ("block", 9, [4, 3, 2, 1, 0]),
        ],
    )
    def test_which_layers_run_again_and_when(self, method: str, number: int, again: list[int]) -> None:
        config = config_of(
            model={"num_layers": 5, **UNFUSED},
            recompute={**FULL, "recompute_method": method, "recompute_num_layers": number},
        )
        stage = stage_of(config)
        calls: list[int] = []
        for index, layer in enumerate(stage.layers):
            layer.register_forward_pre_hook(lambda *_, index=index: calls.append(index))
        tokens = torch.arange(32).view(2, 16)
        loss = stage(tokens, tokens)
        assert calls == [0, 1, 2, 3, 4]
        calls.clear()
        loss.backward()
        assert calls == again

    def test_layers_are_counted_in_each_model_chunk(self) -> None:
        """PP 4, VPP 5, 80 layers: chunks of four, so that block with one layer recomputes five of a rank's twenty."""
        config = config_of(
            model={"num_layers": 80},
            parallel={"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 5},
        )
        recompute = RecomputeConfig(recompute_granularity="full", recompute_method="block", recompute_num_layers=1)
        chunks = stage_layers(config, 0)
        assert [len(chunk) for chunk in chunks] == [4] * 5
        groups = [group for chunk in chunks for group in layer_groups(recompute, len(chunk))]
        assert sum(len(group.layers) for group in groups if group.recompute) == 5


class TestK6:
    """Every rule on recomputation exists and is named in upstream's order; what upstream accepts is accepted."""

    def test_each_number_has_its_rule(self) -> None:
        """tests/unit/config/test_rules.py breaks and keeps each. The schema checks R1, R2 and R7; R10, R15
        and R16 are in N-variant; R11, R14, R17 and R22 are of keys that only imports know, and refuse."""
        ids = {rule.id.rstrip("abcdefghijkl") for rule in RULES}
        elsewhere = {1, 2, 7, 10, 11, 14, 15, 16, 17}
        assert {f"R{number}" for number in range(1, 22) if number not in elsewhere} <= ids
        assert "N-variant" in {rule.id for rule in RULES}

    @pytest.mark.parametrize(
        "sections",
        [
            {"recompute": {"recompute_granularity": "fully"}},
            {"recompute": {**FULL, "recompute_method": "uniformly"}},
            {"recompute": {"recompute_granularity": "selective", "recompute_modules": ["mpl"]}},
            {"recompute": {"recompute_granularity": "selective", "recompute_modules": ["gdn_norm_out"]}},
            {"recompute": {"recompute_granularity": "selective", "recompute_modules": ["mhc"]}},
        ],
        ids=str,
    )
    def test_what_no_number_stands_for_is_refused(self, sections: dict[str, Any]) -> None:
        try:
            assert self.broken(**sections) != []
        except ValueError:
            return  # the schema's own choices

    @staticmethod
    def broken(**sections: dict[str, Any]) -> list[str]:
        return [finding.rule for finding in check(config_of(**sections)) if finding.is_fatal]

    def test_offloading_is_refused_before_recomputation(self) -> None:
        """``__post_init__`` looks at cpu_offloading first: R21 is named although R3 and R4 are broken as well."""
        recompute = {"recompute_granularity": "full"}
        offload = {"cpu_offloading": True, "cpu_offloading_num_layers": 1}
        found = self.broken(recompute=recompute, offload=offload)
        assert found.index("R21") < found.index("R3") < found.index("R4")

    @pytest.mark.parametrize(
        "recompute",
        [
            {"recompute_granularity": "selective", "recompute_modules": []},
            {**FULL, "recompute_method": "uniform", "recompute_num_layers": 100},
            {**FULL, "recompute_method": "block", "recompute_num_layers": 100},
            {**FULL, "recompute_method": "block", "recompute_num_layers": 0},
        ],
        ids=str,
    )
    def test_what_upstream_does_not_check_passes(self, recompute: dict[str, Any]) -> None:
        assert self.broken(recompute=recompute) == []

    def test_what_would_hang_upstream_is_refused(self) -> None:
        assert self.broken(recompute={**FULL, "recompute_method": "uniform", "recompute_num_layers": 0}) != []

    @pytest.mark.parametrize(
        "sections",
        [
            {"recompute": {"recompute_granularity": "selective", "recompute_modules": ["layernorm"]}},
            {"recompute": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}},
            {"offload": {"cpu_offloading_weights": True, "cpu_offloading": True, "cpu_offloading_num_layers": 1}},
            {"optimizer": {"optimizer_cpu_offload": True}},
        ],
        ids=str,
    )
    def test_what_does_nothing_upstream_is_warned_of(self, sections: dict[str, Any]) -> None:
        assert [finding for finding in check(config_of(**sections)) if finding.severity == "warning"]


class TestK7:
    """Recomputing more never raises the peak: full ≤ a superset of modules ≤ a subset ≤ nothing."""

    def test_peaks_fall(self) -> None:
        modes: list[dict[str, Any]] = [
            {},
            {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
            {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp"]},
            {**FULL, "recompute_method": "uniform", "recompute_num_layers": 1},
        ]
        model = {"num_layers": 4, "hidden_size": 128, "vocab_size": 64, **UNFUSED}
        data = {"seq_length": 256, "micro_batch_size": 4}
        peaks = [trained(config_of(model=model, data=data, recompute=mode))[1] for mode in modes]
        assert peaks == sorted(peaks, reverse=True)
        assert peaks[0] > peaks[1] > peaks[2] > peaks[3]

    @pytest.mark.parametrize("modules", [["layernorm"], ["moe_act"], ["layernorm", "moe_act"], ["mla_up_proj"]])
    def test_discarded_outputs_are_gone_with_their_microbatch(self, modules: list[str]) -> None:
        """With several microbatches too, the peak falls and the state between steps stays."""
        experts = {"num_moe_experts": 4, "moe_ffn_hidden_size": 256, "moe_grouped_gemm": True, "add_bias_linear": False}
        latent = {"multi_latent_attention": True, "kv_lora_rank": 32, "position_embedding_type": "rope"}
        model = {"hidden_size": 128, "vocab_size": 64, **(latent if modules == ["mla_up_proj"] else experts)}
        data = {"seq_length": 256, "micro_batch_size": 4, "num_microbatches": 3}
        recompute = {"recompute_granularity": "selective", "recompute_modules": modules}
        held, peak = trained(config_of(model=model, data=data))
        held_after, peak_after = trained(config_of(model=model, data=data, recompute=recompute))
        assert held_after == held
        assert peak_after < peak
