"""Command lines and logs of Megatron-LM, and what holds for every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.importers.command_lines import Arguments, read_arguments
from oomscope.config.importers.importer import DIALECTS
from oomscope.config.importers.load import configuration_file, load_arguments
from oomscope.config.importers.rows import Choice, Switch, To
from oomscope.config.key_lookup import fields
from oomscope.config.load import load_text
from oomscope.config.problems import InvalidConfigError
from tests.unit.config.importers.foreign import BRIDGE, NEMO, SHAPE, imported, values

KEYS = {f"{section}.{key}" for section, key, _ in fields()}


def test_tables_set_keys_that_exist() -> None:
    targets: set[str] = set()
    for dialect in DIALECTS.values():
        for row in dialect.table.values():
            if isinstance(row, To):
                targets.add(row.key)
            elif isinstance(row, Switch):
                targets |= row.on.keys() | row.off.keys()
            elif isinstance(row, Choice):
                targets |= {key for settings in row.choices.values() for key in settings}
    assert targets <= KEYS


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_name_both_sets_a_key_and_costs_no_memory(dialect: str) -> None:
    table = DIALECTS[dialect]
    ambiguous = [name for name in table.without_memory.split() if name in table.table]
    assert [name for name in ambiguous if isinstance(table.table[name], To | Switch | Choice)] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--bf16", {"precision.bf16": True, "precision.grad_reduce_in_fp32": True}),
        ("--bf16 --grad-reduce-in-bf16", {"precision.grad_reduce_in_fp32": False}),
        ("--fp16", {"precision.fp16": True, "precision.bf16": False, "precision.grad_reduce_in_fp32": False}),
        ("", {"precision.bf16": False, "precision.gradient_accumulation_fusion": True}),
        ("--no-gradient-accumulation-fusion", {"precision.gradient_accumulation_fusion": False}),
        ("--swiglu", {"model.gated_linear_unit": True, "model.activation_func": "silu", "model.ffn_hidden_size": 1344}),
        ("--swiglu --ffn-hidden-size 999", {"model.ffn_hidden_size": 999}),
        ("--group-query-attention --num-query-groups 2", {"model.num_query_groups": 2}),
        ("--group-query-attention", {"model.num_query_groups": 1}),
        ("--disable-bias-linear", {"model.add_bias_linear": False}),
        ("--untie-embeddings-and-output-weights", {"model.share_embeddings_and_output_weights": False}),
        ("--use-rotary-position-embeddings", {"model.position_embedding_type": "rope"}),
        (
            "--position-embedding-type yarn",
            {"model.position_embedding_type": "rope", "model.apply_rope_fusion": False},
        ),
        ("--no-rope-fusion", {"model.apply_rope_fusion": False}),
        ("--attention-backend fused", {"model.attention_backend": "fused"}),
        ("NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0 train.py", {"model.attention_backend": "unfused"}),
        ("--tokenizer-type NullTokenizer --vocab-size 131072", {"model.vocab_size": 131072}),
        ("--tokenizer-type GPT2BPETokenizer", {"model.vocab_size": 50257}),
        ("--sequence-parallel", {"parallel.sequence_parallel": False}),
        (
            "--sequence-parallel --tensor-model-parallel-size 2",
            {"parallel.sequence_parallel": True, "parallel.tensor_model_parallel_size": 2},
        ),
        ("--recompute-activations", {"recompute.recompute_granularity": "selective"}),
        (
            "--recompute-activations --recompute-granularity full",
            {"recompute.recompute_granularity": "selective"},
        ),
        ("--bf16 --main-grads-dtype bf16", {"precision.grad_reduce_in_fp32": False}),
        (
            "--bf16 --main-grads-dtype bf16 --accumulate-allreduce-grads-in-fp32",
            {"precision.grad_reduce_in_fp32": True},
        ),
        ("--multi-latent-attention", {"model.q_lora_rank": None, "model.kv_lora_rank": 32}),
        ("--multi-latent-attention --q-lora-rank 64", {"model.q_lora_rank": 64, "model.kv_lora_rank": 32}),
        (
            "--padded-vocab-size 8320 --vocab-size 8192",
            {"model.vocab_size": 8320, "model.make_vocab_size_divisible_by": 1},
        ),
        (
            "--swiglu --no-bias-swiglu-fusion --no-masked-softmax-fusion",
            {"model.bias_activation_fusion": False, "model.masked_softmax_fusion": False},
        ),
        ("--transformer-impl local", {"model.attention_softmax_in_fp32": False}),
        (
            "--transformer-impl local --apply-query-key-layer-scaling",
            {"model.attention_softmax_in_fp32": True},
        ),
        ("--vocab-size 8190 --no-pad-vocab-size", {"model.make_vocab_size_divisible_by": 1}),
        ("--cp-comm-type a2a a2a", {"parallel.cp_comm_type": "a2a"}),
        ("--use-tp-pp-dp-mapping", {"parallel.use_tp_pp_dp_mapping": True}),
        (
            "--moe-layer-recompute",
            {"recompute.recompute_granularity": "selective", "recompute.recompute_modules": ["core_attn", "moe"]},
        ),
        ("--moe-layer-recompute --recompute-modules moe mlp", {"recompute.recompute_modules": ["moe", "mlp"]}),
        ("--cpu-offloading-num-layers 4", {"offload.cpu_offloading": True, "offload.cpu_offloading_num_layers": 4}),
        ("--optimizer-cpu-offload", {"optimizer.optimizer_offload_fraction": 1.0}),
        (
            "--optimizer-cpu-offload --optimizer-offload-fraction 0.5",
            {"optimizer.optimizer_offload_fraction": 0.5},
        ),
        ("--moe-layer-freq ([0]*1+[1]*3)", {"model.moe_layer_freq": [0, 1, 1, 1]}),
        ("--moe-layer-freq ([0]*1+[1]*1)*2", {"model.moe_layer_freq": [0, 1, 0, 1]}),
        ("--moe-layer-freq '[0,1]*2 + [1]'", {"model.moe_layer_freq": [0, 1, 0, 1, 1]}),
        ("--moe-layer-freq ([0]*1+[1]", {"model.moe_layer_freq": "([0]*1+[1]"}),
        ("--num-experts 8 --moe-layer-freq 2", {"model.num_moe_experts": 8, "model.moe_layer_freq": 2}),
        ("--no-create-attention-mask-in-dataloader", {"data.create_attention_mask_in_dataloader": False}),
        ("torchrun --nproc-per-node 8 train.py", {"parallel.data_parallel_size": 8}),
        (
            "CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True train.py",
            {"device.cublas_workspace_config": ":4096:8", "allocator.conf": "expandable_segments:True"},
        ),
        ("NVTE_FLASH_ATTN=0 train.py --bf16", {"model.attention_backend": "fused"}),
        ("NVTE_FUSED_ATTN=0 train.py --bf16", {"model.attention_backend": "flash"}),
        ("--mtp-num-layers 2 --mtp-use-repeated-layer", {"model.mtp_num_layers": 2}),
        (
            "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
            {"model.cross_entropy_loss_fusion": True, "model.cross_entropy_fusion_impl": "te"},
        ),
    ],
)
def test_megatron_arguments(arguments: str, expected: dict[str, Any]) -> None:
    assert expected.items() <= values(imported(f"{arguments} {SHAPE}")).items()


SWIGLU = {"model.gated_linear_unit": True, "model.activation_func": "silu"}
LOG = "".join(
    f"  {name} {'.' * 12} {value}\n"
    for name, value in {
        "cp_comm_type": ["p2p"],
        "data_parallel_sharding_strategy": "optim_grads_params",
        "dino_bottleneck_size": 256,
        "expert_tensor_parallel_num_weight_shards": 1,
        "inference_max_requests": 8,
        "num_layers": 8,
        "num_layers_per_virtual_pipeline_stage": 1,
        "optimizer_offload_fraction": 1.0,
        "virtual_pipeline_model_parallel_size": 2,
        "softmax_type": "vanilla",
    }.items()
)


def test_a_logged_table_holds_defaults_and_what_the_launcher_derived() -> None:
    result = imported(LOG)
    assert {key: value for key, value in values(result).items() if not key.startswith("precision")} == {
        "model.num_layers": 8,
        "model.add_qkv_bias": True,
        "parallel.cp_comm_type": "p2p",
        "parallel.virtual_pipeline_model_parallel_size": 2,
    }
    assert result.not_modelled == result.not_understood == ()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torch_fsdp2_reshard_after_forward .... False", {"parallel.torch_fsdp2_reshard_after_forward": False}),
        ("masked_softmax_fusion .... False", {"model.masked_softmax_fusion": False}),
        ("apply_rope_fusion .... False", {"model.apply_rope_fusion": False}),
        ("bias_swiglu_fusion .... False\n swiglu .... True", {**SWIGLU, "model.bias_activation_fusion": False}),
        ("bias_gelu_fusion .... False\n swiglu .... True", SWIGLU),
        (
            "overlap_p2p_comm .... False\n virtual_pipeline_model_parallel_size .... 2",
            {"parallel.overlap_p2p_comm": False, "parallel.virtual_pipeline_model_parallel_size": 2},
        ),
        ("overlap_p2p_comm .... False", {}),
    ],
)
def test_what_is_logged_as_off_counts_where_it_is_on_by_default(line: str, expected: dict[str, Any]) -> None:
    assert values(imported(f" {line}\n")) == expected


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("--export-kd-teacher-load /teacher", "export_kd_teacher_load"),
        ("--micro-batch-size 2 --eval-micro-batch-size 8", "eval_micro_batch_size"),
        ("--moe-apply-probs-on-input", "moe_apply_probs_on_input"),
        ("--qk-clip", "qk_clip"),
        ("--cuda-graph-scope full_iteration", "cuda_graph_scope"),
        ("--cuda-graph-impl local", "cuda_graph_impl"),
        ("--fp4-format e2m1", "fp4_format"),
        ("--fp8-format hybrid --no-fp8-wgrad", "no_fp8_wgrad"),
        ("--use-megatron-fsdp --megatron-fsdp-main-params-dtype bf16", "megatron_fsdp_main_params_dtype"),
        ("--moe-layer-recompute --recompute-granularity full", "moe_layer_recompute"),
        ("--softmax-type learnable", "softmax_type"),
        ("--moe-aux-loss-coeff 0.01 0.001", "moe_aux_loss_coeff"),
        ("--moe-router-load-balancing-type aux_loss seq_aux_loss", "moe_router_load_balancing_type"),
    ],
)
def test_what_costs_memory_and_is_not_there_is_named(argument: str, name: str) -> None:
    assert [remark.name for remark in imported(f"{SHAPE} {argument}").not_modelled] == [name]


@pytest.mark.parametrize(
    "arguments", ["--no-fp8-wgrad", "--moe-input-jitter-eps 0.1", "--cuda-graph-impl none --cuda-graph-scope full"]
)
def test_what_needs_another_argument_or_is_off_costs_nothing(arguments: str) -> None:
    result = imported(f"{SHAPE} {arguments}")
    assert result.not_modelled == result.not_understood == ()


@pytest.mark.parametrize("argument", ["--moe-router-fusion", "--use-checkpoint-args", "--cross-entropy-fusion-impl te"])
def test_what_changes_little_or_cannot_be_known_is_said(argument: str) -> None:
    name = argument.split()[0].removeprefix("--").replace("-", "_")
    assert any(name in text for text in imported(f"{SHAPE} --cross-entropy-loss-fusion {argument}").assumed)


@pytest.mark.parametrize("pattern", ["(" * 5000 + "[1]", "((([1]*9999)*9999)*9999)*9999"])
def test_a_pattern_without_end_is_none(pattern: str) -> None:
    assert values(imported(f"{SHAPE} --moe-layer-freq '{pattern}'"))["model.moe_layer_freq"] == pattern


def test_query_groups_without_the_flag_are_ignored_as_by_the_launcher() -> None:
    result = imported(f"{SHAPE} --num-query-groups 2")
    assert "model.num_query_groups" not in result.settings
    assert any("num_query_groups is ignored" in text for text in result.assumed)


def test_every_argument_is_accounted_for() -> None:
    result = imported(f"{SHAPE} --step-batch-size-schedule 0:8 --no-such-thing 3 --log-interval 10 --window-size null")
    assert [(remark.name, remark.value) for remark in result.not_understood] == [("no_such_thing", 3)]
    assert [remark.name for remark in result.not_modelled] == ["step_batch_size_schedule"]
    assert [remark.name for remark in result.without_memory] == ["log_interval"]


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("--recompute-granularty full", "did you mean recompute_granularity?"),
        ("--num-expert 8", "did you mean num_experts?"),
        ("--no-such-thing 3", ""),
    ],
)
def test_a_mistyped_argument_is_told_what_it_may_mean(argument: str, meant: str) -> None:
    assert [remark.reason for remark in imported(f"{SHAPE} {argument}").not_understood] == [meant]


def test_what_is_not_modelled_is_not_probed() -> None:
    with pytest.raises(InvalidConfigError, match="openai_gelu is true, which is not modelled"):
        load_arguments(read_arguments(f"{SHAPE} --openai-gelu", "args"), "megatron")


def test_a_wrong_value_blames_the_argument() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        imported("--num-layers twelve --hidden-size 512")
    assert str(caught.value) == '--num-layers twelve: num_layers is "twelve", but must be a whole number'


def test_a_broken_rule_blames_the_argument() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_arguments(read_arguments(f"{SHAPE} --recompute-granularity full", "args"), "megatron")
    assert caught.value.problems[0].where == "--recompute-granularity full"
    assert caught.value.problems[0].rule == "R3"


def test_a_world_that_does_not_fit_is_said() -> None:
    result = imported(f"torchrun --nproc-per-node 8 train.py {SHAPE} --tensor-model-parallel-size 3")
    assert any("8 GPUs cannot be cut" in text for text in result.assumed)


def test_the_last_of_two_values_counts() -> None:
    text = "cfg.model.recompute_granularity = 'full'\ncfg.model.recompute_granularity = None\n"
    assert imported(text).settings == {}


def test_a_part_can_be_laid_upon_a_preset() -> None:
    arguments = read_arguments("cfg.model.recompute_granularity = 'selective'", "recipe.py")
    loaded = load_arguments(arguments, "bridge", ["data.seq_length=4096"], preset="llama3-8b")
    assert loaded.config.recompute.recompute_granularity == "selective"
    assert loaded.config.data.seq_length == 4096


@pytest.mark.parametrize("text", [SHAPE, f"{SHAPE} --swiglu --bf16 --x 1", BRIDGE, NEMO % ("true", "null")])
def test_the_file_that_is_written_means_the_same(text: str) -> None:
    result = imported(text)
    written = configuration_file(result)
    assert yaml.safe_load(written) == result.nested()
    reloaded = load_text(written, source="written", enforce=False).config
    assert reloaded == load_arguments(read_arguments(text, "args"), enforce=False).config


def test_no_secret_of_the_environment_is_repeated() -> None:
    result = imported(f"WANDB_API_KEY=s3cret MY_TOKEN=s3cret train.py {SHAPE}")
    assert [remark.name for remark in result.not_understood] == ["ENV:MY_TOKEN"]
    assert "s3cret" not in configuration_file(result)
    assert "s3cret" not in str(result)


@given(
    st.dictionaries(st.text(max_size=12), st.one_of(st.text(max_size=20), st.lists(st.text(max_size=5))), max_size=5)
)
def test_whatever_the_names_and_values_are_the_file_is_the_configuration(unknown: dict[str, Any]) -> None:
    document = {
        "--num-layers": 2,
        "ENV:PYTORCH_ALLOC_CONF": str(unknown),
        **{f"--{key}": unknown[key] for key in unknown},
    }
    try:
        result = imported(json.dumps(document), "megatron")
    except InvalidConfigError:
        return
    assert yaml.safe_load(configuration_file(result)) == result.nested()


_ANY_VALUE = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**12), st.floats(), st.sampled_from(["", "full", "2", "a b", "bf16"])
)
_ANY_JSON = st.one_of(_ANY_VALUE, st.lists(_ANY_VALUE, max_size=3))


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
def test_any_value_of_any_name_is_taken_or_refused_in_a_line(dialect: str, data: st.DataObject) -> None:
    names = st.sampled_from(sorted(DIALECTS[dialect].table))
    given_names = data.draw(st.dictionaries(names, _ANY_JSON, min_size=1, max_size=12))
    arguments = Arguments("args")
    for name, value in {"model.num_layers": 2, "num_layers": 2, **given_names}.items():
        arguments.add(name, value, "here")
    try:
        load_arguments(arguments, dialect, enforce=False)
    except InvalidConfigError as error:
        text = str(error)
        assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        (f"{SHAPE} --rampup-batch-size 16 8 300000 --global-batch-size 64", "megatron"),
        ("model:\n  num_layers: 4\n  rampup_batch_size: [16, 8, 300000]\n  global_batch_size: 64\n", "nemo"),
        ("model:\n  num_layers: 4\ntrain:\n  rampup_batch_size: [16, 8, 300000]\n  global_batch_size: 64\n", "bridge"),
    ],
)
def test_a_ramp_is_left_out(text: str, dialect: str) -> None:
    result = imported(text, dialect)
    assert result.settings["data.global_batch_size"].value == 64
    assert any("rampup_batch_size is left out" in text for text in result.assumed)
    assert not result.not_modelled
