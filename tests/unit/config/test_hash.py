"""The fingerprint of a configuration."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.hash import config_hash
from oomscope.config.load import config_from_mapping, load_preset

DOCUMENT = load_preset("llama3-8b").config.model_dump(mode="json")
SELECTIVE = "recompute.recompute_granularity=selective"


@given(st.permutations(list(DOCUMENT)), st.randoms(use_true_random=False))
def test_order_does_not_matter(sections: list[str], random: object) -> None:
    shuffled = {}
    for section in sections:
        keys = list(DOCUMENT[section])
        random.shuffle(keys)  # type: ignore[attr-defined]
        shuffled[section] = {key: DOCUMENT[section][key] for key in keys}
    assert config_hash(config_from_mapping(shuffled).config) == config_hash(load_preset("llama3-8b").config)


def test_modules_are_a_set() -> None:
    one = load_preset("gpt-tiny", [SELECTIVE, "recompute.recompute_modules=[mlp, layernorm]"])
    other = load_preset("gpt-tiny", [SELECTIVE, "recompute.recompute_modules=[layernorm, mlp, mlp]"])
    assert config_hash(one.config) == config_hash(other.config)


def test_every_key_matters() -> None:
    config = load_preset("gpt-tiny").config
    seen = {config_hash(config)}
    for name in type(config).model_fields:
        section = getattr(config, name)
        for key in type(section).model_fields:
            changed = config.model_copy(update={name: section.model_copy(update={key: ["something else"]})})
            seen.add(_hash_of_unchecked(changed))
    assert len(seen) == 1 + len(config.flat())


def _hash_of_unchecked(config: object) -> str:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic: the value is not of the declared type
        return config_hash(config)  # type: ignore[arg-type]
