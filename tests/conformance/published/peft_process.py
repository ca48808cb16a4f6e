"""Trains methods of PEFT on the virtual card, as PEFT's own comparison does, and writes what is allocated after a step.

    python peft_process.py TREE OUT < EXPERIMENTS

TREE holds ``src`` of the PEFT that was used and ``method_comparison/MetaMathQA`` of the commit that holds the results.
The model has the configuration of Llama-3.2-3B and no values: it is built on the card. Methods, optimizers and the
order of a step are PEFT's own (``utils.py`` of the comparison, ``run.py``'s loop). The texts are not there. Their
lengths are drawn once for all experiments, because what torch's allocator does not split of a block counts as
allocated and changes with the length. Every experiment runs in a fork of its own, and adds a line to OUT.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import statistics
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import oomscope.virtual.loading

oomscope.virtual.loading.load()

import torch  # noqa: E402 - the card is loaded first

STEPS = 16
"""After a first one, which allocates the optimizer's states: the mean of so many is taken."""
MEAN_LENGTH = 226
"""Tokens of the longest text in a batch: solved for from PEFT's own number of LoRA."""
SPREAD = 0.45
"""Standard deviation of the logarithm of lengths: texts of half and of twice the length are rare and not absent."""
EMPTY_CACHE_SCHEDULE = 10
"""``run.py``'s ACCELERATOR_EMPTY_CACHE_SCHEDULE."""
SECONDS = 240
"""An experiment that takes longer is given up: it decomposes weights on the host."""
UNUSED = ("bitsandbytes", "datasets")
"""Imported by the comparison's ``utils.py`` for what is not done here: quantised models, reading data."""
LLAMA_32_3B = {
    "vocab_size": 128256,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": True,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
"""config.json of meta-llama/Llama-3.2-3B, as unsloth/Llama-3.2-3B on huggingface.co republishes it."""


def base_model(attention: str | None) -> Any:
    """Return the model on the card, in bf16."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(**LLAMA_32_3B)
    with torch.device("cuda"):
        kwargs = {"attn_implementation": attention} if attention else {}
        model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16, **kwargs)
    model.name_or_path = "meta-llama/Llama-3.2-3B"
    return model.eval()


def lengths() -> list[int]:
    """Return the length of each step's batch: quantiles of a log-normal distribution, in a fixed random order."""
    normal = statistics.NormalDist(math.log(MEAN_LENGTH) - SPREAD**2 / 2, SPREAD)
    drawn = [round(math.exp(normal.inv_cdf((step + 0.5) / STEPS))) for step in range(STEPS)]
    random.Random(0).shuffle(drawn)
    return drawn


def allocated_after_step(tree: Path, experiment: str) -> int:
    """Return the mean of the bytes that are allocated after a step of an experiment, as ``run.py`` reads them."""
    from peft import PeftConfig, get_peft_model
    from transformers import set_seed

    utils = import_utils()
    folder = tree / "method_comparison" / "MetaMathQA" / "experiments" / experiment
    params = utils.get_train_config(str(folder / utils.FILE_NAME_TRAIN_PARAMS))
    set_seed(params.seed)
    torch.nn.Linear(1, 1).to("cuda")
    start = torch.cuda.max_memory_reserved()  # what run.py subtracts: the segment of the line above
    model = base_model(params.attn_implementation)
    peft_type = ""
    if (folder / "adapter_config.json").exists():
        peft_config = PeftConfig.from_pretrained(str(folder))
        peft_type = str(getattr(peft_config.peft_type, "value", peft_config.peft_type))
        model = get_peft_model(model, peft_config, autocast_adapter_dtype=params.autocast_adapter_dtype)
    optimizer, scheduler = utils.get_optimizer_and_scheduler(
        model,
        optimizer_type=params.optimizer_type,
        max_steps=params.max_steps,
        lr_scheduler_arg=params.lr_scheduler,
        **params.optimizer_kwargs,
    )
    model.train()
    after = []
    for step, length in enumerate([MEAN_LENGTH, *lengths()], start=1):
        batch = {
            "input_ids": torch.full((params.batch_size, length), 17).to("cuda"),
            "attention_mask": torch.ones((params.batch_size, length), dtype=torch.int64).to("cuda"),
        }
        batch["labels"] = batch["input_ids"].clone()
        items = batch["attention_mask"].sum().item()
        optimizer.zero_grad()
        outputs = model(**batch, num_items_in_batch=items)
        loss = outputs.loss
        loss.backward()
        if params.grad_norm_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), params.grad_norm_clip)
        optimizer.step()
        scheduler.step()
        if peft_type in ("ADALORA", "ADAMSS"):
            model.base_model.update_and_allocate(step)
        loss.item()
        after.append(torch.cuda.memory_allocated() - start)
        if step % EMPTY_CACHE_SCHEDULE == 0:
            torch.cuda.empty_cache()
    return round(statistics.mean(after[1:]))


def give_up(*_: object) -> None:
    """End an experiment whose time is over."""
    raise TimeoutError(f"not ready after {SECONDS} s")


def forked(tree: Path, experiment: str, out: Path) -> None:
    """Run one experiment in a child, which writes its line."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    said: dict[str, Any] = {"key": [experiment]}
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    try:
        said["bytes"] = allocated_after_step(tree, experiment)
    except Exception as error:  # noqa: BLE001 - whatever a method raises is its result
        said["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        traceback.print_exc(limit=-8)
        sys.stderr.flush()
    with out.open("a") as file:
        file.write(json.dumps(said) + "\n")
    os._exit(0)  # autograd's thread may abort an interpreter that ends right after backward()


def import_utils() -> Any:
    """Return the comparison's ``utils.py``, which asks for a GPU as it is imported: after the fork."""
    stands = {name: ModuleType(name) for name in UNUSED if name not in sys.modules}
    sys.modules.update(stands)
    import utils

    for name in stands:
        del sys.modules[name]
    return utils


def main(tree: Path, out: Path) -> None:
    """Run every experiment that stands on standard input."""
    sys.path[:0] = [str(tree / "method_comparison" / "MetaMathQA"), str(tree / "src")]
    import peft  # noqa: F401 - once, before the forks
    import transformers.models.llama.modeling_llama  # noqa: F401

    for (experiment,) in json.load(sys.stdin):
        forked(tree, experiment, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
