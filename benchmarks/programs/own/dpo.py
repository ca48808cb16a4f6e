"""TRL's DPOTrainer; model, tokenizer and data are made here, so no hub is asked."""

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

special = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
words = [*special.values(), *(f"w{number}" for number in range(4000))]
numbers = {word: number for number, word in enumerate(words)}
splits = Tokenizer(models.WordLevel(numbers, unk_token=special["unk_token"]))
splits.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=splits, **special)


def text(first: int, count: int) -> str:
    """Return so many words from one of them on."""
    return " ".join(words[4 + (first + index) % 4000] for index in range(count))


rows = [
    {"prompt": text(row, 100), "chosen": " " + text(row + 7, 300), "rejected": " " + text(row + 9, 300)}
    for row in range(64)
]
config = LlamaConfig(
    vocab_size=32000,
    hidden_size=512,
    intermediate_size=1376,
    num_hidden_layers=4,
    num_attention_heads=8,
    pad_token_id=1,
    bos_token_id=2,
    eos_token_id=3,
)
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    arguments = DPOConfig(
        folder, per_device_train_batch_size=4, max_steps=5, bf16=True, report_to=[], save_strategy="no"
    )
    DPOTrainer(folder, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer).train()
