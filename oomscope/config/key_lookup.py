"""The keys: their names, what each accepts, what was probably meant by an unknown name, and the JSON Schema of all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic.fields import FieldInfo

from oomscope.config.presets import preset_names
from oomscope.config.schema import Config, Section

Schema = Mapping[str, Any]

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
    if at_home := homes(key):
        return f"{key} belongs to {at_home[0]}: write it under {at_home[0]}:"
    return _similar(key, (*SECTIONS, "preset")) or f"sections are {', '.join(SECTIONS)}"


def meant_key(section: str, name: str) -> str:
    """Return what to write instead of the unknown key ``name`` of ``section``, as an imperative."""
    key, own = _plain(name), SECTIONS[section].model_fields
    at_home = homes(key)
    if at_home and key not in own:
        return f"{key} belongs to {at_home[0]}: move it there"
    return _similar(key, own).replace(f"{section}.", "", 1) or known_keys(section)


def _similar(key: str, near: Iterable[str]) -> str:
    """Return the question for a foreign name of a key, one of ``near``, or a key of any section; else nothing."""
    meant = FOREIGN_NAMES.get(key) or _closest(key, near)
    if not meant and (close := _closest(key, (name for _, name, _ in fields()), cutoff=0.8)):
        meant = f"{homes(close)[0]}.{close}"
    return f"did you mean {meant}?" if meant else ""


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


@cache
def key_schema(section: str, key: str) -> Schema:
    """Return the JSON Schema of one key, with no references left in it."""
    properties: Schema = SECTIONS[section].model_json_schema()["properties"]
    return dict(properties[key])


def accepts(section: str, key: str) -> str:
    """Return what the key accepts: ``a whole number of at least 1, or null``."""
    return _words(key_schema(section, key))


def is_nullable(section: str, key: str) -> bool:
    """Return whether the key accepts null."""
    return any(option.get("type") == "null" for option in key_schema(section, key).get("anyOf", ()))


def is_text(section: str, key: str) -> bool:
    """Return whether the key holds free text, so that ``2.10`` is a version and no number."""
    options = [option for option in _options(key_schema(section, key)) if option.get("type") != "null"]
    return all(option.get("type") == "string" and "enum" not in option and "const" not in option for option in options)


def names(section: str, key: str) -> list[str]:
    """Return the words that the key accepts; none where it accepts other values."""
    options = _options(key_schema(section, key))
    return [str(name) for option in options for name in option.get("enum", [option.get("const")]) if name is not None]


def most(section: str, key: str) -> float | None:
    """Return the largest number that the key accepts; None where it has no bound."""
    tops = [option["maximum"] for option in _options(key_schema(section, key)) if "maximum" in option]
    return max(tops, default=None)


def _options(schema: Schema) -> list[Schema]:
    return list(schema.get("anyOf", [schema]))


def _words(schema: Schema) -> str:
    choices = _choices(schema)
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def _choices(schema: Schema) -> list[str]:
    """Return what may stand there, null last."""
    if schema.get("format") == "size":
        return ["a size such as 80GiB"]
    if schema.get("format") == "layout":
        return ["a layout such as Et*3|t*2L"]
    if "anyOf" in schema:
        words = [word for option in schema["anyOf"] for word in _choices(option)]
        return sorted(words, key=lambda word: word == "null")
    if "enum" in schema:
        return [str(value) for value in schema["enum"]]
    if "const" in schema:
        return [str(schema["const"])]
    return [_of_type(schema)]


def _of_type(schema: Schema) -> str:
    match schema["type"]:
        case "boolean":
            return "true or false"
        case "integer":
            return f"a whole number{_range(schema)}"
        case "number":
            return f"a number{_range(schema)}"
        case "array":
            return f"a list of {'/'.join(_choices(schema['items']))}"
        case "null":
            return "null"
        case _:
            return "text"


def _range(schema: Schema) -> str:
    """Return the bounds; those that only keep arithmetic within 64 bits are left out while a lower one says enough."""
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if high is not None and high >= 2**31 - 1:
        high = None
    if low is not None and low <= -(2**31):
        low = None
    if low is not None and high is not None:
        return f" from {low} to {high}"
    parts = [
        f"of at least {low}" if low is not None else "",
        f"above {above}" if above is not None else "",
        f"at most {high}" if high is not None else "",
        f"below {below}" if below is not None else "",
    ]
    words = " and ".join(part for part in parts if part)
    return f" {words}" if words else ""


def json_schema() -> dict[str, Any]:
    """Return the schema of a file (draft 2020-12): the sections, and ``preset`` as the base that they are laid upon.

    Upon a preset every key is optional; without one ``model`` and its required keys must be there.
    """
    schema = Config.model_json_schema()
    model = schema["$defs"]["ModelConfig"]
    needed = model.pop("required")
    schema.pop("required")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "oomscope configuration",
        "description": "What oomscope probes: a transformer, its parallelism, its batch, and the device.",
        "properties": {
            "preset": {
                "title": "Preset",
                "description": "A configuration that comes with oomscope, on which this file is laid.",
                "enum": list(preset_names()),
            },
            **schema["properties"],
        },
        "anyOf": [
            {"required": ["preset"]},
            {"required": ["model"], "properties": {"model": {"required": needed}}},
        ],
    }
