"""Advice on a demand that exceeds the card: by what the run holds."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from oomscope.report.commands import probe
from oomscope.report.what_to_reduce import what_to_reduce
from oomscope.snapshot.trace import Category
from oomscope.units import GiB, format_size
from tests.unit.report import results

TRAINED = {"parameter": 6 * GiB, "gradient": 6 * GiB, "optimizer_state": 12 * GiB, "activation": 10 * GiB}


def test_a_model_that_is_too_large_at_any_batch_size() -> None:
    assert what_to_reduce(TRAINED, 34 * GiB, 22 * GiB) == (
        "parameters, gradients and optimizer states alone need 24.00 GiB, at any batch size: shard them over more GPUs "
        "(FSDP, ZeRO, tensor or pipeline parallelism), offload them, or hold fewer of them (LoRA, an 8-bit optimizer)"
    )
    frozen = {"parameter": 30 * GiB, "gradient": GiB, "activation": GiB}
    text = what_to_reduce(frozen, 32 * GiB, 22 * GiB)
    assert text is not None
    assert text.startswith("parameters alone need 31.00 GiB, at any batch size: ")
    served = what_to_reduce({"parameter": 30 * GiB, "temporary": GiB}, 31 * GiB, 22 * GiB)
    assert served is not None
    assert served.endswith("offload them, or quantize them")


def test_a_batch_that_is_too_large() -> None:
    assert what_to_reduce(TRAINED, 36 * GiB, 30 * GiB) == (
        "free at least 6.00 GiB of the 12.00 GiB of activations and other tensors: smaller batch, shorter sequences, "
        "recompute, offload; or of the 24.00 GiB of parameters, gradients and optimizer states: sharding, "
        "offload, LoRA, 8-bit optimizer"
    )
    small_model = {"parameter": GiB, "activation": 63 * GiB}
    assert what_to_reduce(small_model, 64 * GiB, 60 * GiB) == (
        "free at least 4.00 GiB of the 63.00 GiB of activations and other tensors: smaller batch, shorter sequences, "
        "recompute, offload"
    )


def test_of_a_configuration_a_command_finds_the_changes() -> None:
    assert what_to_reduce(TRAINED, 34 * GiB, 22 * GiB, is_configured=True) == (
        "parameters, gradients and optimizer states alone need 24.00 GiB, at any batch size: oomscope advise tries to "
        "shard and offload them"
    )
    assert what_to_reduce(TRAINED, 36 * GiB, 30 * GiB, is_configured=True) == (
        "free at least 6.00 GiB of the 12.00 GiB of activations and other tensors, or of the 24.00 GiB of parameters, "
        "gradients and optimizer states: oomscope advise finds changes that fit"
    )


def test_nothing_is_said_of_a_run_that_fits_or_of_which_most_is_unknown() -> None:
    assert what_to_reduce(TRAINED, 34 * GiB, 34 * GiB) is None
    assert what_to_reduce({"unknown": 20 * GiB, "parameter": 10 * GiB}, 30 * GiB, 20 * GiB) is None


@given(
    st.dictionaries(st.sampled_from([each.label for each in Category]), st.integers(0, 100 * GiB)),
    st.integers(0, GiB),
    st.integers(1, 100 * GiB),
    st.booleans(),
)
def test_no_more_is_to_be_freed_than_there_is(held: dict[str, int], request: int, card: int, configured: bool) -> None:
    needed = sum(held.values()) + request
    text = what_to_reduce(held, needed, card, is_configured=configured)
    if text is not None and "free at least" in text:
        assert f"free at least {format_size(needed - card)} of the" in text
        of_model = sum(held.get(name, 0) for name in ("parameter", "gradient", "main_gradient", "optimizer_state"))
        assert needed - card <= needed - of_model


def test_a_probe_knows_what_is_held_by_its_run_without_a_limit_or_after_an_iteration() -> None:
    early = replace(results.CAPACITY, available_bytes=22 * GiB)
    assert early.oom is not None
    assert early.verdict is not None
    early = replace(early, oom=replace(early.oom, iteration=0))
    assert probe.result_advice(early) == (
        "peak demand exceeds the card; reduce live memory (smaller batch, recompute, offload, parallelism)"
    )
    held = replace(early.verdict, categories=TRAINED, live_requested_bytes=34 * GiB)
    later = replace(early, verdict=held, oom=replace(early.oom, iteration=1))
    assert "at any batch size" in str(probe.result_advice(later))
    peak = replace(results.PEAK, categories=TRAINED, requested_bytes=34 * GiB)
    whole = replace(early, demand_bytes=34 * GiB, demand_peak=peak)
    assert "at any batch size" in str(probe.result_advice(whole))
    assert "oomscope advise" in str(probe.result_advice(replace(whole, pipeline_stages=1)))
