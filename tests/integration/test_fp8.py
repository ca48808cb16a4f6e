"""Products in fp8 on a virtual card, by the card that is played."""

from __future__ import annotations

import json

from tests import forked

IMPL = "model.transformer_impl=transformer_engine"
TINY = ("--preset", "gpt-tiny", "--backend", "virtual", "data.num_microbatches=1", "--quiet", IMPL)
TENSORWISE = ("precision.fp8=hybrid", "precision.fp8_recipe=tensorwise")


def kept_bytes(gpu: str, *overrides: str) -> int:
    done = forked.oomscope("probe", *TINY, "--gpu", gpu, *overrides, "--json")
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["end_allocated_bytes"])


def test_weights_have_two_copies_before_blackwell_and_then_one() -> None:
    """4 layers of 12 · 128² elements; scales fill a block of 512 bytes a weight either way."""
    elements, scales = 4 * 12 * 128**2, 4 * 4 * 512
    plain = {gpu: kept_bytes(gpu) for gpu in ("h100-80gb", "b200")}
    assert kept_bytes("h100-80gb", *TENSORWISE) - plain["h100-80gb"] == 2 * elements + scales
    assert kept_bytes("b200", *TENSORWISE) - plain["b200"] == elements + scales


def test_a_card_without_the_recipe_is_named() -> None:
    done = forked.oomscope("probe", *TINY, "precision.fp8=hybrid", "precision.fp8_recipe=mxfp8")
    assert done.returncode == 6, done.stdout + done.stderr
    assert "fp8_recipe mxfp8 needs compute capability 10.0, and the card has 9.0" in done.stdout + done.stderr
