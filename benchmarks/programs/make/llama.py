"""Write a small Llama of random weights, and a tokenizer trained on the texts that come as JSON."""

import json
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
tokens = Tokenizer(models.BPE(unk_token=special["unk_token"]))
tokens.pre_tokenizer = pre_tokenizers.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*special.values()])
tokens.train_from_iterator(json.load(sys.stdin), trainer)
PreTrainedTokenizerFast(tokenizer_object=tokens, model_max_length=768, **special).save_pretrained(sys.argv[1])
sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
LlamaForCausalLM(LlamaConfig(vocab_size=600, num_key_value_heads=2, **sizes)).save_pretrained(sys.argv[1])
