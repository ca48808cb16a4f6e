"""Every parallelism trains as one process does: losses, gradients and parameters of two steps, on gloo, in fp32.

Sums are taken in another order, so the numbers agree to a tolerance: for each parameter and its gradient (clipped to
a global norm) the difference has at most 1e-5 of its norm. SGD, because Adam's first steps turn a gradient's
rounding error into a whole step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from oomscope.config.schema import (
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    ProbeConfig,
    RecomputeConfig,
)
from oomscope.model.parallel.parallel_state import ParallelState
from tests.integration.parity_worker import train, train_cases
from tests.ranks import run_ranks

TOLERANCE = 1e-5
CLIP = 0.1
SAMPLES = 4
WITHIN_LAYERS = {"layers": 2, "samples": 2}
"""The size for splits of the layers' insides: one layer follows another, and gradients add up. Pipelines, replicas and
shards of parameters have more to share out."""

SMALL = {"num_layers": 4, "hidden_size": 32, "vocab_size": 64, "make_vocab_size_divisible_by": 1, "hidden_dropout": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {**SMALL, "num_attention_heads": 4, "attention_dropout": 0.0},
    "llama": {
        **SMALL,
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "ffn_hidden_size": 48,
        "attention_dropout": 0.0,
        "normalization": "RMSNorm",
        "position_embedding_type": "rope",
        "activation_func": "silu",
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "share_embeddings_and_output_weights": False,
    },
}
MODELS["moe"] = {
    **MODELS["llama"],
    "num_moe_experts": 4,
    "moe_ffn_hidden_size": 24,
    "moe_layer_freq": 2,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_shared_expert_intermediate_size": 16,
    "moe_aux_loss_coeff": 0.1,
    "moe_z_loss_coeff": 0.01,
}
MODELS["gathered"] = {
    **MODELS["moe"],
    "moe_token_dispatcher_type": "allgather",
    "moe_permute_fusion": True,
    "moe_router_load_balancing_type": "seq_aux_loss",
}
FSDP2 = {"use_torch_fsdp2": True}
LEVELS = {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": (2, 2)}
DEFERRED = {"defer_embedding_wgrad_compute": True}
UNIT = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
"""Megatron-FSDP with a transformer layer as its unit."""
VPP2 = {"virtual_pipeline_model_parallel_size": 2}
ENDS_COUNT = {
    "virtual_pipeline_model_parallel_size": 3,
    "account_for_embedding_in_pipeline_split": True,
    "account_for_loss_in_pipeline_split": True,
}
MODELS["latent"] = {
    **MODELS["llama"],
    "num_query_groups": None,
    "multi_latent_attention": True,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_head_dim": 8,
    "qk_pos_emb_head_dim": 4,
    "v_head_dim": 8,
    "qk_layernorm": True,
}
MODELS["further"] = {**MODELS["llama"], "num_layers": 2, "mtp_num_layers": 2}
MODELS["deep"] = {**MODELS["llama"], "num_layers": 8}
OF_BOTH = {"tp2", "tp2-sp", "tp4-sp", "pp2", "pp2-vpp2", "tp2-sp-pp2"}
"""Splits under which both dense models are trained; under the others they take turns."""
ONE_PIECE = {"expert_tensor_parallel_size": 1}
CORE_RECOMPUTE = {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)}
FULL_RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
WORLDS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "tp2": {"tp": 2},
        "tp2-sp": {"tp": 2, "sp": True},
        "pp2": {"pp": 2},
        "pp2-vpp2": {"pp": 2, "parallel": VPP2},
        "pp2-vpp2-group4": {"pp": 2, "parallel": {**VPP2, "microbatch_group_size_per_vp_stage": 4}},
        "pp2-deferred": {"pp": 2, "fused": True, "parallel": DEFERRED},
        "pp2-vpp2-deferred": {"pp": 2, "fused": True, "parallel": {**VPP2, **DEFERRED, "wgrad_deferral_limit": 1}},
        "pp2-uneven": {"pp": 2, "parallel": {"num_layers_in_first_pipeline_stage": 1}},
        "pp2-layout": {"pp": 2, "parallel": {"pipeline_model_parallel_layout": "Ett|t||tL"}},
        "pp2-vpp3-ends": {"pp": 2, "parallel": ENDS_COUNT, "recompute": FULL_RECOMPUTE},
        "cp2": {"cp": 2},
        "cp2-a2a": {"cp": 2, "parallel": {"cp_comm_type": "a2a"}},
        "cp2-gather": {"cp": 2, "parallel": {"cp_comm_type": "all_gather"}, "recompute": CORE_RECOMPUTE},
        "dp2": {"dp": 2},
        "dp2-distopt": {"dp": 2, "distopt": True},
        "dp2-overlap": {"dp": 2, "overlap": True},
        "dp2-distopt-overlap": {"dp": 2, "distopt": True, "overlap": True},
    },
    4: {
        "tp4": {"tp": 4},
        "tp4-sp": {"tp": 4, "sp": True},
        "pp4": {"pp": 4},
        "tp2-sp-pp2-vpp2": {"pp": 2, "tp": 2, "sp": True, "parallel": VPP2},
        "pp2-vpp2-dp2-distopt-overlap": {"pp": 2, "dp": 2, "distopt": True, "overlap": True, "parallel": VPP2},
        "tp2-pp2": {"tp": 2, "pp": 2},
        "tp2-sp-dp2": {"tp": 2, "sp": True, "dp": 2},
        "tp2-sp-pp2": {"tp": 2, "sp": True, "pp": 2},
        "tp2-sp-pp2-deferred": {"tp": 2, "sp": True, "pp": 2, "fused": True, "parallel": DEFERRED},
        "pp2-dp2-distopt": {"pp": 2, "dp": 2, "distopt": True},
        "dp4-distopt": {"dp": 4, "distopt": True},
        "dp4-instances2": {"dp": 4, "distopt": True, "overlap": True, "instances": 2},
        "cp4": {"cp": 4},
        "cp4-a2a": {"cp": 4, "parallel": {"cp_comm_type": "a2a"}},
        "cp4-levels": {"cp": 4, "parallel": LEVELS},
        "cp4-gather": {"cp": 4, "parallel": {"cp_comm_type": "all_gather"}},
        "tp2-sp-cp2": {"tp": 2, "sp": True, "cp": 2},
        "cp2-dp2-distopt": {"cp": 2, "dp": 2, "distopt": True},
        "cp2-pp2": {"cp": 2, "pp": 2},
    },
}
EXPERT_WORLDS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "ep2": {"dp": 2, "distopt": True, "parallel": {"expert_model_parallel_size": 2}},
        "tp2-ep2": {"tp": 2, "sp": True, "parallel": {**ONE_PIECE, "expert_model_parallel_size": 2}},
        "tp2-etp2": {"tp": 2, "sp": True},
        "fsdp2": {"dp": 2, "parallel": FSDP2},
        "cp2-ep2": {"cp": 2, "parallel": {"expert_model_parallel_size": 2}},
    },
    4: {
        "tp2-dp2-ep2-etp2": {"tp": 2, "sp": True, "dp": 2, "parallel": {"expert_model_parallel_size": 2}},
        "tp2-dp2-ep4": {"tp": 2, "sp": True, "dp": 2, "parallel": {**ONE_PIECE, "expert_model_parallel_size": 4}},
        "dp4-ep2-mfsdp": {
            "dp": 4,
            "distopt": True,
            "parallel": {**UNIT, "expert_model_parallel_size": 2},
        },
        "dp4-ep2": {"dp": 4, "distopt": True, "parallel": {"expert_model_parallel_size": 2}},
        "dp4-ep2-instances2": {
            "dp": 4,
            "distopt": True,
            "instances": 2,
            "parallel": {"expert_model_parallel_size": 2},
        },
        "pp2-dp2-ep2": {"pp": 2, "dp": 2, "distopt": True, "parallel": {"expert_model_parallel_size": 2}},
    },
}


SHARDED_WORLDS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "fsdp2": {"dp": 2, "parallel": FSDP2},
        "mfsdp": {"dp": 2, "distopt": True, "parallel": UNIT},
        "mfsdp-recompute": {
            "dp": 2,
            "distopt": True,
            "parallel": {**UNIT, "suggested_communication_unit_size": 2},
            "recompute": FULL_RECOMPUTE,
        },
        "mfsdp-no-shard": {"dp": 2, "parallel": {**UNIT, "data_parallel_sharding_strategy": "no_shard"}},
        "mfsdp-optim": {
            "dp": 2,
            "distopt": True,
            "overlap": True,
            "parallel": {**UNIT, "data_parallel_sharding_strategy": "optim"},
        },
        "fsdp2-recompute": {"dp": 2, "parallel": FSDP2, "recompute": FULL_RECOMPUTE},
        "cp2-fsdp2": {"cp": 2, "parallel": FSDP2},
    },
    4: {
        "fsdp4": {"dp": 4, "parallel": FSDP2},
        "fsdp4-kept": {"dp": 4, "parallel": {**FSDP2, "torch_fsdp2_reshard_after_forward": False}},
        "tp2-sp-mfsdp": {"tp": 2, "sp": True, "dp": 2, "distopt": True, "parallel": UNIT},
        "mfsdp4-grads": {
            "dp": 4,
            "distopt": True,
            "parallel": {**UNIT, "data_parallel_sharding_strategy": "optim_grads"},
        },
        "tp2-fsdp2": {"tp": 2, "dp": 2, "parallel": FSDP2},
        "tp2-sp-fsdp2": {"tp": 2, "sp": True, "dp": 2, "parallel": FSDP2},
    },
}
GATHERED_WORLDS: dict[int, dict[str, dict[str, Any]]] = {
    2: {"tp2-etp2": EXPERT_WORLDS[2]["tp2-etp2"]},
    4: {"tp2-dp2-ep2-etp2": EXPERT_WORLDS[4]["tp2-dp2-ep2-etp2"]},
}
DEEP_WORLDS: dict[int, dict[str, dict[str, Any]]] = {
    2: {},
    4: {"pp4-vpp2-exchange": {"pp": 4, "parallel": {**VPP2, "overlap_p2p_comm": False}}},
}
TIED_WORLDS: dict[int, dict[str, dict[str, Any]]] = {
    2: {"mfsdp": {"dp": 2, "distopt": True, "parallel": UNIT}},
    4: {},
}
UP_RECOMPUTE = {"recompute_granularity": "selective", "recompute_modules": ("mla_up_proj", "core_attn")}
LATENT_WORLDS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "tp2": {"tp": 2},
        "tp2-sp": {"tp": 2, "sp": True},
        "tp2-sp-up": {"tp": 2, "sp": True, "recompute": UP_RECOMPUTE},
    },
    4: {"tp2-sp-pp2": {"tp": 2, "sp": True, "pp": 2}},
}
FURTHER_WORLDS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "tp2": {"tp": 2},
        "pp2": {"pp": 2},
        "pp2-layout": {"pp": 2, "parallel": {"pipeline_model_parallel_layout": "Ett|mmL"}},
        "tp2-sp-recompute": {"tp": 2, "sp": True, "recompute": FULL_RECOMPUTE},
    },
    4: {"tp2-sp-pp2": {"tp": 2, "sp": True, "pp": 2}},
}


def splits(world: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return model and split of each case of ``world`` ranks."""
    dense = {
        f"{model}-{name}": (model, split)
        for number, (name, split) in enumerate(WORLDS[world].items())
        for model in (("gpt", "llama") if name in OF_BOTH else (("gpt", "llama")[number % 2],))
    }
    others = (
        ("moe", EXPERT_WORLDS),
        ("gathered", GATHERED_WORLDS),
        ("latent", LATENT_WORLDS),
        ("llama", SHARDED_WORLDS),
        ("deep", DEEP_WORLDS),
        ("further", FURTHER_WORLDS),
        ("gpt", TIED_WORLDS),
    )
    return dense | {
        f"{model}-{name}": (model, split) for model, worlds in others for name, split in worlds[world].items()
    }


def size_of(split: dict[str, Any]) -> dict[str, int]:
    """Return how much a case trains on, as arguments of :func:`make_config`."""
    shares_out = {"pp", "dp"} & split.keys() or "use_torch_fsdp2" in split.get("parallel", {})
    return {} if shares_out else WITHIN_LAYERS


CASES = [pytest.param(world, name, id=name) for world in WORLDS for name in splits(world)]


def make_config(
    model: str,
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    cp: int = 1,
    sp: bool = False,
    distopt: bool = False,
    overlap: bool = False,
    instances: int = 1,
    fused: bool = False,
    parallel: dict[str, Any] | None = None,
    recompute: dict[str, Any] | None = None,
    layers: int | None = None,
    samples: int = SAMPLES,
) -> Config:
    return Config(
        model=ModelConfig(**MODELS[model] | ({"num_layers": layers} if layers else {})),
        parallel=ParallelConfig(
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            data_parallel_size=dp,
            context_parallel_size=cp,
            sequence_parallel=sp,
            **(parallel or {}),
        ),
        recompute=RecomputeConfig(**(recompute or {})),
        optimizer=OptimizerConfig(
            optimizer="sgd",
            lr=0.1,
            clip_grad=CLIP,
            use_distributed_optimizer=distopt,
            num_distributed_optimizer_instances=instances,
            overlap_grad_reduce=overlap,
            overlap_param_gather=overlap and distopt,
        ),
        precision=PrecisionConfig(bf16=False, gradient_accumulation_fusion=fused),
        data=DataConfig(seq_length=16, micro_batch_size=2, num_microbatches=samples // dp),
        probe=ProbeConfig(seed=7),
    )


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """What a single process gets, by case; cases of one model and size share it."""
    trained: dict[str, dict[str, Any]] = {}
    by_case = {}
    for world in WORLDS:
        for name, (model, split) in splits(world).items():
            config = make_config(model, **size_of(split))
            key = config.model_dump_json()
            if key not in trained:
                trained[key] = train(config, ParallelState())
            by_case[name] = trained[key]
    return by_case


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each case gets, its stages joined; each world is started once."""
    return {name: result for world in WORLDS for name, result in run_world(world, tmp_path_factory).items()}


def run_world(world: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp(f"world{world}")
    configs = {name: make_config(model, **split, **size_of(split)) for name, (model, split) in splits(world).items()}
    run_ranks(train_cases, configs, folder, world=world, folder=folder)
    return {name: join_stages(name, folder, config) for name, config in configs.items()}


def join_stages(name: str, folder: Path, config: Config) -> dict[str, Any]:
    stages = [
        torch.load(folder / f"{name}.stage{stage}.pt") for stage in range(config.parallel.pipeline_model_parallel_size)
    ]
    joined: dict[str, Any] = {"losses": stages[-1]["losses"]}
    for kind in ("grads", "parameters"):
        joined[kind] = {key: value for stage in stages for key, value in stage[kind].items()}
    tied = config.model.share_embeddings_and_output_weights or config.model.mtp_num_layers is not None
    if tied and len(stages) > 1:
        assert torch.equal(stages[0]["parameters"]["words"], stages[-1]["parameters"]["words"]), (
            "tied copies drift apart"
        )
    return joined


@pytest.mark.parametrize(("world", "name"), CASES)
def test_trains_as_one_process_does(
    world: int, name: str, results: dict[str, dict[str, Any]], alone: dict[str, dict[str, Any]]
) -> None:
    result, reference = results[name], alone[name]
    assert result["losses"] == pytest.approx(reference["losses"], rel=1e-6)
    for kind in ("grads", "parameters"):
        assert result[kind].keys() == reference[kind].keys()
        for parameter, expected in reference[kind].items():
            difference = torch.linalg.vector_norm(result[kind][parameter] - expected)
            assert difference <= TOLERANCE * torch.linalg.vector_norm(expected), f"{kind} of {parameter}"


def test_the_reference_learns(alone: dict[str, dict[str, Any]]) -> None:
    """Otherwise equal parameters would say nothing."""
    for result in alone.values():
        assert all(grad.abs().max() > 0 for grad in result["grads"].values())
        assert len(set(result["losses"])) == len(result["losses"])
        norm = sum(grad.square().sum() for grad in result["grads"].values()).sqrt()
        torch.testing.assert_close(norm, torch.tensor(CLIP), rtol=1e-4, atol=0, msg="not clipped")
