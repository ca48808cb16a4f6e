"""What Megatron-Core's memory options mean, claim by claim: K1 to K14, and the table of Korthikanti et al.

What is expected is derived from Megatron's and Megatron-Bridge's own formulas and tests, or by brute force, and never
from this project's ledger. K15, the bytes that Megatron-LM's CI recorded, is ``test_megatron_memory.py``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from oomscope.config.layer_split import stage_layers
from oomscope.config.rules import RULES, check
from oomscope.config.schema import Config, RecomputeConfig
from oomscope.model.grad_buffer import GradBuffer, build_grad_buffers
from oomscope.model.interleaved import InterleavedSchedule
from oomscope.model.ledger import expert_parameters, stage_parameters
from oomscope.model.mesh import ParallelState
from oomscope.model.observer import Silent
from oomscope.model.pipeline import one_forward_one_backward
from oomscope.model.random_state import ModelParallelRandom
from oomscope.model.recompute import DiscardedOutput, checkpoint, layer_groups
from oomscope.model.trainer import Trainer
from oomscope.model.transformer import GPTStage
from oomscope.probe.gpus import find_gpu
from oomscope.probe.sessions import SessionSettings
from oomscope.probe.sim.session import SimSession

CPU = torch.device("cpu")
FULL = {"recompute_granularity": "full"}
UNFUSED = {"attention_backend": "unfused"}


def config_of(**sections: dict[str, Any]) -> Config:
    """A GPT of two layers; ``sections`` override single keys."""
    model = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 1000}
    document = {"data": {"seq_length": 16, "micro_batch_size": 2}, **sections}
    return Config.model_validate({**document, "model": {**model, **sections.get("model", {})}})


def stage_of(config: Config, device: torch.device = CPU, state: ParallelState | None = None) -> GPTStage:
    return GPTStage(
        config,
        state or ParallelState(),
        layers=range(config.model.num_layers),
        pre_process=True,
        post_process=True,
        device=device,
        dtype=torch.bfloat16,
    )


def sim_session() -> SimSession:
    return SimSession(SessionSettings(gpu=find_gpu("h100-80gb"), op_temporaries=False))


def live(session: SimSession) -> int:
    """Return the requested bytes of all live blocks."""
    return session.memory.allocator.requested_bytes


def trained(config: Config, steps: int = 1) -> tuple[int, int]:
    """Return the requested bytes that a world of one holds after ``steps``, and the peak."""
    session = sim_session()
    with session:
        trainer = Trainer(config, ParallelState(), device=session.device, observer=session.observer)
        trainer.setup()
        for iteration in range(steps):
            with session.iteration(iteration):
                trainer.step(iteration)
        held = live(session)
    return held, session.memory.allocator.requested_peak


@pytest.fixture
def fake_world() -> Iterator[None]:
    """Rank 0 of eight whose collectives do nothing."""
    sim_session()  # names the device
    dist.init_process_group("sim:fake,cpu:fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


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
        """Inputs that ``torch.autograd.grad`` asks for get nothing: gradients flow by ``backward`` alone."""
        x = torch.ones(3, requires_grad=True)
        weight = torch.ones(3, requires_grad=True)
        out = checkpoint(lambda x: x * weight, ModelParallelRandom(CPU, seed=0), x)
        assert torch.autograd.grad(out.sum(), weight, allow_unused=True) == (None,)


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
        state = ParallelState(world_size=8, tp_size=2, tp_group=dist.new_group([0, 1]))
        kept: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor)
            return tensor

        session = sim_session()
        with session:
            stage = stage_of(config, session.device, state)
            hidden = torch.empty(16, 2, 64, device=session.device, dtype=torch.bfloat16, requires_grad=True) + 0
            before = live(session)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                out = stage._run_layers(hidden)
            resident = live(session) - before
            assert [tensor.shape for tensor in kept] == [(16 * 2 * 64 // 2,)]
            assert hidden.untyped_storage().nbytes() == 0
            assert resident == out.nbytes + hidden.numel() * 2 // 2 - hidden.numel() * 2
            out.backward(torch.empty_like(out))


class TestK3:
    """Between the passes the output of an output-discarding checkpoint has no bytes: inputs alone are live."""

    def test_live_bytes_are_the_inputs(self) -> None:
        session = sim_session()
        with session:
            x = torch.empty(1024, 512, device=session.device, requires_grad=True)
            weight = torch.empty(512, 512, device=session.device, requires_grad=True)
            before = live(session)
            region = DiscardedOutput(lambda x: x.sin().exp())
            inner = region.run(x)
            assert live(session) - before == x.nbytes
            out = inner @ weight
            region.discard(refill_before=out)
            assert inner.untyped_storage().nbytes() == 0
            assert live(session) - before == out.nbytes
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
        """tests/unit/config/test_rules.py breaks and keeps each of them."""
        ids = {rule.id.rstrip("abcdefghijkl") for rule in RULES}
        assert {f"R{number}" for number in range(1, 23)} <= ids

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
            {
                "offload": {
                    "cpu_offloading_double_buffering": True,
                    "cpu_offloading": True,
                    "cpu_offloading_num_layers": 1,
                }
            },
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


class TestK8:
    """Fine-grained offloading: what leaves the device is what the host pins; the last group of each name stays."""

    MODEL = {"num_layers": 3, "hidden_size": 256, "attention_dropout": 0.0, "hidden_dropout": 0.0}  # noqa: RUF012

    N, H = 512, 256
    GROUPS = (2 + 4) * 2 * N * H
    """Bytes of a layer: norm input and output (qkv_linear), Q, K, V and, with its projection, context (core_attn)."""

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
        session, held = sim_session(), []
        with session:
            stage = stage_of(config, session.device)
            tokens = torch.zeros(2, self.N // 2, dtype=torch.int64, device=session.device)
            for _ in range(2):
                before = live(session)
                loss = stage(tokens, tokens)
                held.append(live(session) - before)
                loss.backward()
                for parameter in stage.parameters():
                    parameter.grad = None
        return held, session._host.peak_pinned_bytes

    def test_bytes_are_conserved_and_the_last_of_each_name_stays(self) -> None:
        """The first iteration sends all away; then two of three layers' groups leave."""
        plain, nothing = self.forward(None)
        offloaded, pinned = self.forward(self.N * self.H)
        assert nothing == 0
        assert pinned == 3 * self.GROUPS
        assert [one - two for one, two in zip(plain, offloaded, strict=True)] == [3 * self.GROUPS, 2 * self.GROUPS]

    def test_the_least_size_counts_elements(self) -> None:
        assert self.forward(self.N * self.H + 1)[1] == 0


class TestK9:
    """Optimizer offloading spares the moments, 8 bytes a parameter that moves.

    With the precision-aware optimizer the master goes as well; but what stays has an fp32 master and two fp32 moments,
    12 bytes, whatever dtypes of states are asked for: Megatron-Core optimizer/__init__.py makes the hybrid optimizer
    of plain Adams (``param_update_in_fp32=True``).
    """

    @staticmethod
    def held(optimizer: dict[str, Any], **precision: bool) -> tuple[int, int, int]:
        """Return bytes held after a step on device and host (pinned), and the number of parameters."""
        model = {"hidden_size": 256, "num_layers": 1, "vocab_size": 512}
        config = config_of(model=model, optimizer={"use_distributed_optimizer": True, **optimizer}, precision=precision)
        session = sim_session()
        with session:
            trainer = Trainer(config, ParallelState(), device=session.device, observer=session.observer)
            trainer.setup()
            with session.iteration(0):
                trainer.step(0)
            parameters = sum(parameter.numel() for chunk in trainer.model for parameter in chunk.parameters())
            return live(session), session._host.peak_pinned_bytes, parameters

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


class TestK10:
    """In flight: min(p - r, m) microbatches of 1F1B, min((p - r - 1)·2 + (v - 1)·G, m·v) + 1 chunks interleaved."""

    @staticmethod
    def most(steps: Iterator[int]) -> int:
        return max(itertools.accumulate(steps))

    def test_one_forward_one_backward(self) -> None:
        for p, m in itertools.product(range(1, 7), range(1, 10)):
            for r in range(p):
                actions = one_forward_one_backward(p, r, m)
                assert self.most(1 if action.direction == "forward" else -1 for action in actions) == min(p - r, m)

    def test_interleaved(self) -> None:
        cases = [
            (p, m, v, group)
            for p, v in itertools.product(range(2, 5), range(2, 4))
            for group in (p, p + 1)
            for m in (group, 2 * group, 3 * group)
        ]
        for p, m, v, group in cases:
            for r in range(p):
                warmup = min((p - r - 1) * 2 + (v - 1) * group, m * v)
                schedule = InterleavedSchedule(p, r, m, v, group)
                assert schedule.in_flight == min(warmup + 1, m * v), (p, m, v, group, r)


class TestK11:
    """Shards to the byte: parameters start at multiples of 64 elements, buckets end at those of lcm(d, 128)."""

    SIZES = [17_000_001, 64, 100, 23_000_000, 5_000_063, 1, 39_999_999, 40_000_000, 12_345]  # noqa: RUF012

    @staticmethod
    def by_counting(sizes: list[int], dp: int, *, bucketed: bool) -> tuple[list[tuple[int, int]], list[int]]:
        """Return where parameters lie and where buckets end, elements laid one after the other.

        Megatron-Core ``distributed/param_and_grad_buffer.py`` and ``distributed_data_parallel.py``: a bucket is closed
        by the parameter that brings it to max(40e6, 1e6·d) elements.
        """
        most = max(40_000_000, 1_000_000 * dp) if bucketed else math.inf
        at, began, places, ends = 0, 0, [], []
        for number, size in enumerate(reversed(sizes)):
            while at % 64:
                at += 1
            places.append((at, at + size))
            at += size
            if at - began >= most or number == len(sizes) - 1:
                while at % dp or at % 128:
                    at += 1
                began = at
                ends.append(at)
        return places, ends

    def buffer(self, dp: int, rank: int, *, overlap: bool) -> GradBuffer:
        module = nn.ParameterList(
            nn.Parameter(torch.empty(size, device="meta", dtype=torch.bfloat16)) for size in self.SIZES
        )
        config = config_of(
            optimizer={"use_distributed_optimizer": True, "overlap_grad_reduce": overlap},
            parallel={"data_parallel_size": dp},
        )
        state = ParallelState(world_size=dp, rank=rank, dp_size=dp, dp_rank=rank, dp_cp_size=dp, dp_cp_rank=rank)
        (buffer,) = build_grad_buffers([module], config, state, Silent())
        return buffer

    @pytest.mark.parametrize("overlap", [False, True])
    @pytest.mark.parametrize("dp", [1, 2, 3, 7, 8, 48])
    def test_layout_and_bytes(self, dp: int, overlap: bool) -> None:
        places, ends = self.by_counting(self.SIZES, dp, bucketed=overlap)
        buffer = self.buffer(dp, 0, overlap=overlap)
        assert [tuple(span) for span in buffer.layout.params] == places
        assert [span.end for span in buffer.layout.buckets] == ends
        assert buffer.grads.nbytes == 4 * ends[-1]
        assert buffer.values is not None
        assert buffer.values.nbytes == 2 * ends[-1]

    @pytest.mark.parametrize("overlap", [False, True])
    @pytest.mark.parametrize("dp", [2, 3, 8])
    def test_a_rank_owns_its_part_of_every_bucket(self, dp: int, overlap: bool) -> None:
        """Rank r holds elements [r, r + 1)/d of each bucket; what it steps is that, without the padding."""
        places, ends = self.by_counting(self.SIZES, dp, bucketed=overlap)
        for rank in range(dp):
            buffer = self.buffer(dp, rank, overlap=overlap)
            expected = []
            for start, end in places:
                bucket = next(index for index, last in enumerate(ends) if end <= last)
                first = ends[bucket - 1] if bucket else 0
                share = (ends[bucket] - first) // dp
                mine = first + rank * share, first + (rank + 1) * share
                low, high = max(start, mine[0]) - start, min(end, mine[1]) - start
                expected.append(max(high - low, 0))
            assert [buffer.owned(index).numel for index in range(len(places))] == expected


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
        session = sim_session()
        with session:
            stage = stage_of(config, session.device)
            hidden = torch.empty(n // 2, 2, h, device=session.device, dtype=torch.bfloat16, requires_grad=True)
            before = live(session)
            out = stage._run_layers(hidden)
            resident = live(session) - before
            out.backward(torch.empty_like(out))
        norms, attention, mlp = 4 * n * h, n * (h + 2 * g) + n * h, n * (2 * f + f)
        layer = 2 * (norms + attention + mlp)
        assert resident == pytest.approx((self.LAYERS - offloaded) * layer, rel=0.06)


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
        """Bridge divides norms by t, and spreads the final norm over the stages: 3,400 at 9 bytes, 30,600 bytes."""
        norms_of_a_stage, final_norm = 2 * 4 * 16, 2 * 16
        ours = stage_parameters(self.bridge(parallel=self.TP2_PP2), 2, pre_process=True, post_process=False)
        assert ours - norms_of_a_stage // 2 + final_norm // 4 == 3400
        assert 3400 * (6 + 12 // 4) == 30600

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
        chunks = InterleavedSchedule(2, 0, 4, 2, 2).in_flight
        masks_and_ids = (self.S * self.B * self.H + 8 * self.S * self.B) * 2 * 5 // 4 // 2
        layer = 34 * self.S * self.B * self.H // 2
        assert chunks * layer + masks_and_ids == 22240
        longer = self.bridge(
            parallel={"tensor_model_parallel_size": 2, "sequence_parallel": True},
            recompute={"recompute_granularity": "selective"},
            data={"seq_length": 64 * self.S, "micro_batch_size": self.B},
        )
        statistics = 2 * 8 * 64 * self.S * self.B // 2
        assert layer_kept(longer) == 64 * layer + statistics

    def test_activations_with_tensor_and_context_parallelism(self) -> None:
        """9,568: four layers of 34·sbh, the ids, the embedding's mask, and 4·sbh·(1 + V/h) at the head, over t·c."""
        sbh = self.S * self.B * self.H
        assert (4 * 34 * sbh + 8 * self.S * self.B + sbh + 4 * sbh * (self.H + self.V) // self.H) // 4 == 9568


class TestK14:
    """Megatron-Bridge's tests/unit_tests/training/test_config.py on fine-grained offloading and CUDA graphs."""

    FINE = {"fine_grained_activation_offloading": True, "offload_modules": ["core_attn"]}  # noqa: RUF012
    GRAPH = {"cuda_graph_impl": "transformer_engine"}  # noqa: RUF012

    @pytest.mark.parametrize(
        "sections",
        [
            {"offload": {**FINE, "cpu_offloading": True, "cpu_offloading_num_layers": 1}},
            {"offload": {**FINE, "offload_modules": []}},
            {"offload": {**FINE, "offload_modules": ["attn_proj"]}},
            {"offload": {**FINE, "activation_offload_fraction": 1.5}},
            {"offload": FINE, "model": {"transformer_impl": "local", **UNFUSED}},
            {"offload": FINE, "model": {"transformer_engine_version": "2.10.0"}},
            {"cuda_graph": GRAPH, "recompute": {**FULL, "recompute_method": "block", "recompute_num_layers": 1}},
            {"cuda_graph": {**GRAPH, "cuda_graph_modules": ["moe", "moe_router"]}, "model": {"num_moe_experts": 8}},
            {"cuda_graph": {"cuda_graph_impl": "full_iteration", "cuda_graph_modules": ["attn"]}},
            {"cuda_graph": GRAPH, "offload": {"cpu_offloading": True, "cpu_offloading_num_layers": 1}},
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


def layer_kept(config: Config) -> int:
    """Return what the second of two layers keeps on the simulated device, with its output in place of its input."""
    parallel = config.parallel
    sizes = {"tp": parallel.tensor_model_parallel_size, "cp": parallel.context_parallel_size}
    groups = {axis: dist.new_group(list(range(size))) if size > 1 else None for axis, size in sizes.items()}
    state = ParallelState(
        world_size=8,
        **{f"{axis}_size": size for axis, size in sizes.items()},  # type: ignore[arg-type]
        **{f"{axis}_group": group for axis, group in groups.items()},  # type: ignore[arg-type]
    )
    sigma = sizes["tp"] if parallel.sequence_parallel else 1
    rows = config.data.seq_length // (sizes["cp"] * sigma)
    session = sim_session()
    held: list[int] = []
    with session:
        stage = stage_of(config, session.device, state)
        shape = (rows, config.data.micro_batch_size, config.model.hidden_size)
        hidden = torch.empty(shape, device=session.device, dtype=torch.bfloat16, requires_grad=True)
        for layer in stage.layers:
            layer.register_forward_pre_hook(lambda *_: held.append(live(session)))
        out = stage._run_layers(hidden)
        held.append(live(session))
        del out
    return held[2] - held[1]


S, B, H, A = 512, 2, 512, 8
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
