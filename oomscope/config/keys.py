"""The names of all sections and keys, and what was probably meant by a name that is none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from pydantic.fields import FieldInfo

from oomscope.config.schema import Config, Section

SECTIONS: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}
"""Section name to its model, in declaration order."""

FOREIGN_NAMES = {
    "activations_checkpoint_granularity": "recompute.recompute_granularity",
    "activations_checkpoint_method": "recompute.recompute_method",
    "activations_checkpoint_num_layers": "recompute.recompute_num_layers",
    "group_query_attention": "model.num_query_groups",
    "untie_embeddings_and_output_weights": "model.share_embeddings_and_output_weights",
    "swiglu": "model.gated_linear_unit",
    "disable_bias_linear": "model.add_bias_linear",
    "num_experts": "model.num_moe_experts",
    "norm_epsilon": "model.layernorm_epsilon",
    "seq_len": "data.seq_length",
    "tp": "parallel.tensor_model_parallel_size",
    "pp": "parallel.pipeline_model_parallel_size",
    "vpp": "parallel.virtual_pipeline_model_parallel_size",
    "cp": "parallel.context_parallel_size",
    "ep": "parallel.expert_model_parallel_size",
    "dp": "parallel.data_parallel_size",
    "pytorch_alloc_conf": "allocator.conf",
    "pytorch_cuda_alloc_conf": "allocator.conf",
}
"""Names of the same thing in NeMo 1.x (``megatron_gpt_config.yaml``), Megatron-LM's arguments and common speech."""


def fields() -> Iterator[tuple[str, str, FieldInfo]]:
    """Yield every section name, key and field, in declaration order."""
    for section, model in SECTIONS.items():
        for key, info in model.model_fields.items():
            yield section, key, info


def homes(key: str) -> list[str]:
    """Return the sections that have ``key``."""
    return [section for section, name, _ in fields() if name == key]


def meant_section(name: str) -> str:
    """Return what to write instead of the unknown section ``name``, as an imperative."""
    key = _plain(name)
    at_home = homes(key)
    if at_home:
        return f"{key} belongs to {at_home[0]}: write it under {at_home[0]}:"
    if key in FOREIGN_NAMES:
        return f"did you mean {FOREIGN_NAMES[key]}?"
    close = _closest(key, (*SECTIONS, "preset"))
    if close:
        return f"did you mean {close}?"
    close = _closest(key, (key for _, key, _ in fields()), cutoff=0.8)
    if close:
        return f"did you mean {homes(close)[0]}.{close}?"
    return f"sections are {', '.join(SECTIONS)}"


def meant_key(section: str, name: str) -> str:
    """Return what to write instead of the unknown key ``name`` of ``section``, as an imperative."""
    key = _plain(name)
    own = SECTIONS[section].model_fields
    if key in own:
        return f"did you mean {key}?"
    at_home = homes(key)
    if at_home:
        return f"{key} belongs to {at_home[0]}: move it there"
    if key in FOREIGN_NAMES:
        return f"did you mean {FOREIGN_NAMES[key].removeprefix(f'{section}.')}?"
    close = _closest(key, own)
    if close:
        return f"did you mean {close}?"
    close = _closest(key, (key for _, key, _ in fields()), cutoff=0.8)
    if close:
        return f"did you mean {homes(close)[0]}.{close}?"
    return known_keys(section)


def known_keys(section: str) -> str:
    """Return which keys ``section`` has, or where they stand if they are many."""
    own = SECTIONS[section].model_fields
    return f"keys of {section} are {', '.join(own)}" if len(own) <= 8 else f"see `oomscope config schema` for {section}"


def _plain(name: str) -> str:
    """Return ``--Tensor-Model-Parallel-Size`` as ``tensor_model_parallel_size``."""
    return name.strip().lstrip("-").replace("-", "_").lower()


def _closest(name: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    matches = get_close_matches(name, list(candidates), n=1, cutoff=cutoff)
    return matches[0] if matches else None
