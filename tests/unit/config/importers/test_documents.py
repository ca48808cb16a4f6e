from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.importers.command_lines import Arguments, read_arguments
from oomscope.errors import ConfigError


def pairs(arguments: Arguments) -> dict[str, object]:
    return {item.name: item.value for item in arguments.items}


def test_a_yaml_of_options_and_environment() -> None:
    text = "ENV_VARS:\n  CUBLAS_WORKSPACE_CONFIG: :4096:8\nMODEL_ARGS:\n  --num-layers: 12\n  --bf16: true\n"
    read = read_arguments(text, "args.yaml")
    assert pairs(read) == {"ENV:CUBLAS_WORKSPACE_CONFIG": ":4096:8", "num_layers": 12, "bf16": True}
    assert read.items[1].where == "args.yaml:4 (--num-layers)"


def test_a_json_of_options_whose_numbers_are_text() -> None:
    assert pairs(read_arguments('{"--num-layers": "12", "ENV:A": "1"}', "x")) == {"num_layers": 12, "ENV:A": "1"}


def test_a_dump_of_objects() -> None:
    text = """
model:
  _target_: megatron.bridge.models.llama.Llama3ModelProvider
  num_layers: 2
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
"""
    read = read_arguments(text, "dump.yaml")
    assert read.hints == {"bridge"}
    assert pairs(read)["model.num_layers"] == 2
    assert pairs(read)["model.activation_func"] == {"_target_": "torch.nn.functional.silu", "_call_": False}


def test_the_table_that_megatron_logs() -> None:
    text = """using world size: 8
------------------------ arguments ------------------------
  add_bias_linear ................................. False
  bf16 ............................................ True
  fp16 ............................................ False
  gradient_accumulation_fusion .................... True
  num_layers ...................................... 12
  recompute_modules ............................... ['core_attn', 'mlp']
  save ............................................ None
-------------------- end of arguments ---------------------
"""
    assert pairs(read_arguments(text, "log")) == {
        "add_bias_linear": False,
        "bf16": True,
        "gradient_accumulation_fusion": True,
        "num_layers": 12,
        "recompute_modules": ["core_attn", "mlp"],
    }


def test_assignments_in_a_recipe() -> None:
    text = 'cfg.model.recompute_granularity = "selective"\ncfg.model.recompute_modules = ["mlp"] # or ["core_attn"]\n'
    assert pairs(read_arguments(text, "recipe.py")) == {
        "model.recompute_granularity": "selective",
        "model.recompute_modules": ["mlp"],
    }


TWO_RECIPES = """def small(
) -> ConfigContainer:
    cfg.model.num_layers = 2
# a remark
    cfg.train.micro_batch_size = 1

def large():
    cfg.model.num_layers = 8

cfg.train.global_batch_size = 4
"""


def test_a_recipe_of_several_functions_is_read_one_at_a_time() -> None:
    with pytest.raises(ConfigError, match="several functions set values: small, large") as caught:
        read_arguments(TWO_RECIPES, "recipes.py")
    assert caught.value.remedy == "choose one, as in recipes.py:large; for bisect and the gate import it to a file"
    small = {"model.num_layers": 2, "train.micro_batch_size": 1, "train.global_batch_size": 4}
    assert pairs(read_arguments(TWO_RECIPES, "recipes.py", "small")) == small
    with pytest.raises(ConfigError, match="holds no function medium"):
        read_arguments(TWO_RECIPES, "recipes.py", "medium")
    assert len(read_arguments(TWO_RECIPES.partition("def large")[0], "recipes.py").items) == 2


def test_a_function_of_a_recipe_sets_what_the_functions_that_it_calls_set() -> None:
    text = """def common():
    cfg.model.num_layers = 2
    cfg.train.micro_batch_size = 8

def pretrain():
    \"\"\"As large(), for one card.\"\"\"
    cfg = common()  # unlike large()
    cfg.train.micro_batch_size = 1
    return cfg

def large():
    cfg = common()
    cfg.model.num_layers = 80
    return pretrain()

if __name__ == "__main__":
    train(pretrain())
"""
    expected = {"model.num_layers": 2, "train.micro_batch_size": 1}
    assert pairs(read_arguments(text, "recipes.py", "pretrain")) == expected
    assert pairs(read_arguments(text, "recipes.py", "common")) == expected | {"train.micro_batch_size": 8}
    assert pairs(read_arguments(text, "recipes.py", "large"))["model.num_layers"] == 80
    with pytest.raises(ConfigError, match="several functions set values: common, pretrain, large"):
        read_arguments(text, "recipes.py")


def test_a_shell_command_over_several_lines() -> None:
    text = (
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \\\n"
        "torchrun --nproc_per_node=8 --nnodes 1:4 pretrain_gpt.py \\\n"
        "  --num-layers 12 --lr 1e-4 --recompute-modules core_attn mlp --bf16 --min-lr -1  # the job\n"
    )
    read = read_arguments(text, "run.sh")
    assert read.world_size == 32
    assert pairs(read) == {
        "ENV:CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "ENV:PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "num_layers": 12,
        "lr": 1e-4,
        "recompute_modules": ["core_attn", "mlp"],
        "bf16": True,
        "min_lr": -1,
    }


def test_semicolons_part_the_commands_of_a_line() -> None:
    read = read_arguments("export A=0; export B='x;y'; torchrun train.py --num-layers 2 --bf16; echo done", "run.sh")
    assert pairs(read) == {"ENV:A": "0", "ENV:B": "x;y", "num_layers": 2, "bf16": True}


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("srun -N 2 --ntasks-per-node=4 python train.py --a 1", 8),
        ("srun -n 16 python train.py --a 1", 16),
        ("WORLD_SIZE=4 python train.py --a 1", 4),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py --a 1", 2),
        ("python train.py --a 1", None),
        ("--a 1", None),
    ],
)
def test_the_launcher_says_how_many_ranks(command: str, ranks: int | None) -> None:
    assert read_arguments(command, "x").world_size == ranks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no arguments"),
        ("# nothing\n", "holds no arguments"),
        ("torchrun train.py --num-layers $LAYERS", "shell variable"),
        ("train.py --name 'open", "cannot be read as a command line"),
        ("a: [1\nb: 2\n", "not YAML"),
        ("x" * 300_000, "larger than"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read_arguments(text, "args")
    assert "\n" not in str(caught.value)


names = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,6}){0,2}", fullmatch=True)
values = st.one_of(st.integers(-(10**9), 10**9), st.booleans(), st.sampled_from(["full", "core_attn", "a.b/c"]))


@given(st.dictionaries(names, values, min_size=1, max_size=8))
def test_a_document_and_a_command_line_give_the_same(options: dict[str, object]) -> None:
    document = json.dumps({f"--{name}": value for name, value in options.items()})
    words = " ".join(f"--{name} {str(value).lower()}" for name, value in options.items())
    assert pairs(read_arguments(document, "x")) == pairs(read_arguments(words, "x"))


@given(st.one_of(st.text(max_size=200), st.binary(max_size=200)))
def test_any_text_is_read_or_refused(data: str | bytes) -> None:
    with contextlib.suppress(ConfigError):
        read_arguments(data, "x")
