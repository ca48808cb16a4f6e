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

from oomscope.config.key_lookup import homes
from oomscope.config.load import config_from_mapping
from oomscope.config.schema import Config
from oomscope.model.parallel.parallel_state import ParallelState
from tests.integration.parity_worker import train, train_cases
from tests.made_once import made_once
from tests.ranks import run_ranks

TOLERANCE = 1e-5
CLIP = 0.1

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
WORDS = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "dp": "data_parallel_size",
    "cp": "context_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "sp": "sequence_parallel=true",
    "distopt": "use_distributed_optimizer=true",
    "instances": "num_distributed_optimizer_instances",
    "overlap": "overlap_grad_reduce=true",
    "gather-overlap": "overlap_grad_reduce=true overlap_param_gather=true",
    "deferred": "defer_embedding_wgrad_compute=true gradient_accumulation_fusion=true",
    "layout": "pipeline_model_parallel_layout",
    "counted-ends": "account_for_embedding_in_pipeline_split=true account_for_loss_in_pipeline_split=true",
    "levels": "cp_comm_type=a2a+p2p hierarchical_context_parallel_sizes",
    "full": "recompute_granularity=full recompute_method=uniform recompute_num_layers=1",
    "modules": "recompute_granularity=selective recompute_modules",
    "fsdp2": "use_torch_fsdp2=true",
    "mfsdp": "use_megatron_fsdp=true use_distributed_optimizer=true data_parallel_sharding_strategy",
}
"""What words of a case stand for."""
UNIT = "mfsdp=optim_grads_params"
"""Megatron-FSDP with a transformer layer as its unit."""
CASES = [
    # dense models: splits that concern biases, tied embeddings or grouped queries are trained with both
    "gpt tp=2",
    "llama tp=2",
    "gpt tp=2 sp",
    "llama tp=2 sp",
    "gpt pp=2",
    "llama pp=2",
    "gpt pp=2 vpp=2",
    "llama pp=2 vpp=2",
    "gpt pp=2 vpp=2 microbatch_group_size_per_vp_stage=4",
    "llama pp=2 deferred",
    "gpt pp=2 vpp=2 deferred wgrad_deferral_limit=1",
    "llama pp=2 num_layers_in_first_pipeline_stage=1",
    "gpt pp=2 layout=Ett|t||tL",
    "llama pp=2 vpp=3 counted-ends full",
    "gpt cp=2",
    "llama cp=2 cp_comm_type=a2a",
    "gpt cp=2 cp_comm_type=all_gather modules=[core_attn]",
    "llama dp=2",
    "gpt dp=2 distopt",
    "llama dp=2 overlap",
    "gpt dp=2 distopt gather-overlap",
    "gpt tp=4",
    "gpt tp=4 sp",
    "llama tp=4 sp",
    "gpt pp=4",
    "llama tp=2 sp pp=2 vpp=2",
    "gpt pp=2 vpp=2 dp=2 distopt gather-overlap",
    "llama tp=2 pp=2",
    "gpt tp=2 sp dp=2",
    "gpt tp=2 sp pp=2",
    "llama tp=2 sp pp=2",
    "gpt tp=2 sp pp=2 deferred",
    "llama pp=2 dp=2 distopt",
    "gpt dp=4 distopt",
    "llama dp=4 distopt gather-overlap instances=2",
    "gpt cp=4",
    "llama cp=4 cp_comm_type=a2a",
    "gpt cp=4 levels=[2,2]",
    "llama cp=4 cp_comm_type=all_gather",
    "gpt tp=2 sp cp=2",
    "llama cp=2 dp=2 distopt",
    "gpt cp=2 pp=2",
    "deep pp=4 vpp=2 overlap_p2p_comm=false",
    # parameters that are sharded
    "llama dp=2 fsdp2",
    "llama dp=2 fsdp2 full",
    "llama cp=2 fsdp2",
    "llama dp=4 fsdp2",
    "llama dp=4 fsdp2 torch_fsdp2_reshard_after_forward=false",
    "llama tp=2 dp=2 fsdp2",
    "llama tp=2 sp dp=2 fsdp2",
    f"gpt dp=2 {UNIT}",
    f"llama dp=2 {UNIT}",
    f"llama dp=2 {UNIT} suggested_communication_unit_size=2 full",
    "llama dp=2 mfsdp=no_shard",
    "llama dp=2 gather-overlap mfsdp=optim",
    "llama dp=4 mfsdp=optim_grads",
    f"llama tp=2 sp dp=2 {UNIT}",
    # experts
    "moe dp=2 distopt ep=2",
    "moe tp=2 sp ep=2 etp=1",
    "moe tp=2 sp",
    "moe dp=2 fsdp2",
    "moe cp=2 ep=2",
    "moe tp=2 sp dp=2 ep=2",
    "moe tp=2 sp dp=2 ep=4 etp=1",
    f"moe dp=4 ep=2 {UNIT}",
    "moe dp=4 distopt ep=2",
    "moe dp=4 distopt ep=2 instances=2",
    "moe pp=2 dp=2 distopt ep=2",
    "gathered tp=2 sp",
    "gathered tp=2 sp dp=2 ep=2",
    # latent attention, multi-token prediction
    "latent tp=2",
    "latent tp=2 sp",
    "latent tp=2 sp modules=[mla_up_proj,core_attn]",
    "latent tp=2 sp pp=2",
    "further tp=2",
    "further pp=2",
    "further pp=2 layout=Ett|mmL",
    "further tp=2 sp full",
    "further tp=2 sp pp=2",
]
"""A model and how it is split: keys of the configuration, and words."""


def make_config(case: str, *, alone: bool = False) -> Config:
    """Return the configuration of a case, or of the same model and data in one process.

    Pipelines, replicas and shards of parameters have more to share out; for splits of the layers' insides two layers
    and two samples will do: one layer follows another, and gradients add up.
    """
    model, *split = case.split()
    is_inside = not any(word.startswith(("pp=", "dp=")) or word == "fsdp2" for word in split)
    layers, samples = (2, 2) if is_inside else (MODELS[model]["num_layers"], 4)
    replicas = 1 if alone else next((int(word[3:]) for word in split if word.startswith("dp=")), 1)
    settings = [setting for word in ([] if alone else split) for setting in _written(word).split()]
    document = {
        "model": MODELS[model] | {"num_layers": layers},
        "optimizer": {"optimizer": "sgd", "lr": 0.1, "clip_grad": CLIP},
        "precision": {"bf16": False},
        "data": {
            "seq_length": 16,
            "micro_batch_size": 2,
            "num_microbatches": samples if alone else samples // replicas,
        },
        "probe": {"seed": 7},
    }
    overrides = [f"{homes(setting.partition('=')[0])[0]}.{setting}" for setting in settings]
    return config_from_mapping(document, overrides, enforce=False).config


def _written(word: str) -> str:
    name, equals, value = word.partition("=")
    return WORDS.get(name, name) + equals + value


def cases_of(world: int) -> dict[str, Config]:
    configs = {case: make_config(case) for case in CASES}
    return {case: config for case, config in configs.items() if config.parallel.world_size == world}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a single process gets, by case; cases of one model and size share it."""
    configs = {case: make_config(case, alone=True) for case in CASES}

    def train_each(folder: Path) -> None:
        each = {config.model_dump_json(): config for config in configs.values()}
        torch.save({key: train(config, ParallelState()) for key, config in each.items()}, folder / "trained.pt")

    trained = torch.load(made_once(tmp_path_factory, "alone", train_each) / "trained.pt")
    return {case: trained[config.model_dump_json()] for case, config in configs.items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each case gets, its stages joined; each world is started once for all workers of a test run."""

    def train_worlds(folder: Path) -> None:
        for world in (2, 4):
            (folder / str(world)).mkdir()
            run_ranks(train_cases, cases_of(world), folder / str(world), world=world, folder=folder / str(world))

    folder = made_once(tmp_path_factory, "parity", train_worlds)
    return {
        case: join_stages(case, folder / str(world), config)
        for world in (2, 4)
        for case, config in cases_of(world).items()
    }


def join_stages(case: str, folder: Path, config: Config) -> dict[str, Any]:
    stages = [
        torch.load(folder / f"{case}.stage{stage}.pt") for stage in range(config.parallel.pipeline_model_parallel_size)
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


@pytest.mark.parametrize("case", CASES)
def test_trains_as_one_process_does(
    case: str, results: dict[str, dict[str, Any]], alone: dict[str, dict[str, Any]]
) -> None:
    result, reference = results[case], alone[case]
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
