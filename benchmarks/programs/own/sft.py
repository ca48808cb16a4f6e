"""TRL's SFTTrainer with PEFT's LoRA; model, tokenizer and data are made here, so no hub is asked."""

import tempfile

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
words = [*special.values(), "memory", "card", "train", "model", "layer", "token", "step"]
numbers = {word: number for number, word in enumerate(words)}
splits = Tokenizer(models.WordLevel(numbers, unk_token=special["unk_token"]))
splits.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=splits, **special)
config = LlamaConfig(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=len(words),
)
with tempfile.TemporaryDirectory() as folder:
    SFTTrainer(
        LlamaForCausalLM(config),
        args=SFTConfig(folder, per_device_train_batch_size=4, max_steps=4, report_to=[], bf16=True, max_length=128),
        train_dataset=Dataset.from_dict({"text": ["memory card train model layer token step " * 30] * 64}),
        processing_class=tokenizer,
        peft_config=LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"]),
    ).train()
