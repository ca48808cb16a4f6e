"""Advice on a demand that exceeds the card: by what the run holds."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from oomscope.probe.result import StepPeak
from oomscope.report.commands import probe
from oomscope.report.what_to_reduce import what_to_reduce
from oomscope.snapshot.accounting.stack_tree import LiveStacks, StackBytes
from oomscope.snapshot.trace import Category, Frame
from oomscope.snapshot.verdict_types import LeakSuspect
from oomscope.units import GiB, parse_size
from tests.unit.report import results

TRAINED = {"parameter": 6 * GiB, "gradient": 6 * GiB, "optimizer_state": 12 * GiB, "activation": 10 * GiB}
PARALLELISM = "shard them over more GPUs (FSDP, ZeRO, tensor or pipeline parallelism), offload them"
LESS = "smaller batch, shorter sequences"


def test_a_model_that_is_too_large_at_any_batch_size() -> None:
    assert what_to_reduce(TRAINED, 22 * GiB) == (
        "parameters, gradients and optimizer states alone need 24.00 GiB, at any batch size: "
        f"{PARALLELISM}, LoRA or 8-bit optimizer"
    )
    frozen = {"parameter": 30 * GiB, "gradient": GiB, "optimizer_state": GiB, "activation": GiB}
    assert what_to_reduce(frozen, 22 * GiB) == (
        f"parameters alone need 30.00 GiB, at any batch size: {PARALLELISM} or quantization"
    )
    only_parameters = {"parameter": 30 * GiB, "temporary": GiB}
    served = what_to_reduce(only_parameters, 22 * GiB, is_trained=False)
    assert served == what_to_reduce(frozen, 22 * GiB)
    trained = what_to_reduce(only_parameters, 22 * GiB)
    assert trained is not None
    assert trained.endswith("parallelism) or offload them"), "who trains them all cannot quantize them"
    assert what_to_reduce({"parameter": 15 * GiB, "gradient": 15 * GiB}, 22 * GiB) == (
        f"parameters and gradients alone need 30.00 GiB, at any batch size: {PARALLELISM} or LoRA"
    )


def test_a_batch_that_is_too_large() -> None:
    assert what_to_reduce(TRAINED, 30 * GiB) == (
        f"free at least 4.00 GiB of the 10.00 GiB of activations: {LESS}, recompute, offload; or of the 24.00 GiB of "
        "parameters, gradients and optimizer states: sharding, offload, LoRA, 8-bit optimizer"
    )
    small_model = {"parameter": GiB, "activation": 60 * GiB, "temporary": 20 * GiB, "input": 4 * GiB}
    assert what_to_reduce(small_model, 60 * GiB) == (
        f"free at least 25.00 GiB of the 80.00 GiB of activations and temporary tensors: {LESS}, recompute, offload"
    )
    served = {"parameter": 20 * GiB, "temporary": 2 * GiB, "input": GiB}
    assert what_to_reduce(served, 22 * GiB, is_trained=False) == (
        f"free at least 1.00 GiB of the 3.00 GiB of temporary tensors and inputs: {LESS}; or of the 20.00 GiB of "
        "parameters: sharding, offload, quantization"
    )


def test_the_request_that_failed_counts_with_the_batch_where_it_grows_with_it() -> None:
    held = {"parameter": 5 * GiB, "gradient": 5 * GiB, "optimizer_state": 10 * GiB, "activation": GiB}
    of_model = (
        "of the 20.00 GiB of parameters, gradients and optimizer states: sharding, offload, LoRA, 8-bit optimizer"
    )
    assert what_to_reduce(held, 22 * GiB, request_bytes=4 * GiB) == (
        f"free at least 3.00 GiB of the 5.00 GiB of activations and the request that failed: {LESS}, recompute, "
        f"offload; or {of_model}"
    )
    in_step = what_to_reduce(held, 22 * GiB, request_bytes=4 * GiB, grows_with_batch=False)
    assert in_step == f"free at least 3.00 GiB {of_model}"


def test_temporary_tensors_of_an_optimizers_step_do_not_grow_with_the_batch() -> None:
    held = {"parameter": 5 * GiB, "gradient": 5 * GiB, "optimizer_state": 10 * GiB, "temporary": 5 * GiB}
    step = "of the 5.00 GiB of temporary tensors of the optimizer's step"
    of_model = (
        "of the 20.00 GiB of parameters, gradients and optimizer states: sharding, offload, LoRA, 8-bit optimizer"
    )
    assert what_to_reduce(held, 22 * GiB, step=()) == f"free at least 3.00 GiB {step}; or {of_model}"
    with_input = what_to_reduce(held | {"input": 6 * GiB}, 22 * GiB, step=())
    assert with_input == f"free at least 9.00 GiB {of_model}"
    after = replace(results.PEAK, phase="optimizer", iteration=1, categories=held, requested_bytes=25 * GiB)
    for file, remedy in (
        ("torch/optim/adamw.py", ": foreach=False or fused=True"),
        ("torch/optim/rmsprop.py", ": foreach=False"),
        ("own/optim/adamw.py", ""),
    ):
        frames = Frame("train.py", 5, "main"), Frame(file, 3, "_multi_tensor_adamw")
        row = StackBytes((0, 1), 0, "", "temporary", (5 * GiB,), (4,))
        peak = replace(after, stacks=LiveStacks(moments=("at the peak",), frames=frames, own=(0,), rows=(row,)))
        failed = replace(results.CAPACITY, available_bytes=22 * GiB, demand_bytes=25 * GiB, demand_peak=peak)
        assert probe.result_advice(failed) == f"free at least 3.00 GiB {step}{remedy}; or {of_model}"


def test_a_step_that_exceeds_the_card_too_has_its_own_remedy() -> None:
    in_step = {"parameter": 5 * GiB, "gradient": 5 * GiB, "optimizer_state": 10 * GiB, "temporary": 5 * GiB}
    frames = Frame("train.py", 5, "main"), Frame("torch/optim/adamw.py", 3, "_multi_tensor_adamw")
    row = StackBytes((0, 1), 0, "", "temporary", (5 * GiB,), (4,))
    stacks = LiveStacks(moments=("in the optimizer's step",), frames=frames, own=(0,), rows=(row,))
    step = StepPeak(requested_bytes=25 * GiB, iteration=1, event=5, categories=in_step, temporaries=stacks)
    before = {"parameter": 5 * GiB, "optimizer_state": 10 * GiB, "activation": 15 * GiB}
    peak = replace(results.PEAK, phase="backward", iteration=1, categories=before, requested_bytes=30 * GiB)
    failed = replace(results.CAPACITY, demand_bytes=30 * GiB, demand_peak=peak, demand_step=step)
    of_batch = f"of the 15.00 GiB of activations: {LESS}, recompute, offload"
    of_model = "parameters and optimizer states: sharding, offload, LoRA, 8-bit optimizer"

    def advice(available: int, **fields: object) -> str | None:
        return probe.result_advice(replace(failed, available_bytes=available, **fields))  # type: ignore[arg-type]

    assert advice(26 * GiB) == f"free at least 4.00 GiB {of_batch}; or of the 15.00 GiB of {of_model}"
    assert advice(22 * GiB) == (
        f"free at least 8.00 GiB {of_batch}; or of the 15.00 GiB of {of_model}; and in the optimizer's step free at "
        "least 3.00 GiB of the 5.00 GiB of temporary tensors of the optimizer's step: foreach=False or fused=True; or "
        "of the 20.00 GiB of parameters, gradients and optimizer states: sharding, offload, LoRA, 8-bit optimizer"
    )
    assert advice(18 * GiB) == (
        "parameters, gradients and optimizer states alone need 20.00 GiB, at any batch size: "
        f"{PARALLELISM}, LoRA or 8-bit optimizer"
    ), "gradients are not made when most is needed"
    assert "in the optimizer's step" not in str(advice(22 * GiB, pipeline_stages=1))
    same = {"parameter": 5 * GiB, "optimizer_state": 10 * GiB, "communication": 9 * GiB}
    of_both = advice(
        22 * GiB,
        demand_step=replace(step, categories=same, requested_bytes=24 * GiB),
        demand_peak=replace(peak, categories=same | {"activation": 6 * GiB}),
    )
    assert of_both == f"free at least 8.00 GiB of the 15.00 GiB of {of_model}"
    received = replace(step, categories=same, requested_bytes=24 * GiB)
    assert advice(22 * GiB, demand_step=received) == (
        f"free at least 8.00 GiB {of_batch}; or of the 15.00 GiB of {of_model}; and in the optimizer's step free at "
        f"least 2.00 GiB of the 15.00 GiB of {of_model}"
    ), "a smaller batch alone does not do"
    assert "alone need 15.00 GiB" in str(advice(14 * GiB, demand_step=None))


def test_what_one_line_keeps_is_named_where_it_is_enough() -> None:
    held = {"parameter": 15 * GiB, "activation": GiB, "kept": 7 * GiB}
    lines, loading = [Frame("train.py", line, "main") for line in (5, 6)], Frame("torch/serialization.py", 3, "load")
    rows = tuple(
        StackBytes(frames, 0, "", "kept", (size,), (1,))
        for frames, size in (((0, 2), 3 * GiB), ((0, 2), GiB), ((1,), 3 * GiB))
    )
    stacks = LiveStacks(moments=("at the peak",), frames=(*lines, loading), own=(0, 1), rows=rows)
    peak = replace(results.PEAK, iteration=1, categories=held, requested_bytes=23 * GiB, stacks=stacks)
    failed = replace(results.CAPACITY, demand_bytes=23 * GiB, demand_peak=peak)

    def advice(available: int, rows: tuple[StackBytes, ...] = rows) -> str | None:
        shown = replace(peak, stacks=replace(stacks, rows=rows))
        return probe.result_advice(replace(failed, available_bytes=available, demand_peak=shown))

    of_parameters = "or of the 15.00 GiB of parameters: sharding, offload"
    assert advice(19 * GiB) == (
        "free at least 4.00 GiB of the 4.00 GiB of tensors kept from train.py:5 main: delete them after use, or load "
        f'them with map_location="cpu"; {of_parameters}'
    )
    assert advice(18 * GiB) == f"free at least 5.00 GiB {of_parameters.removeprefix('or ')}"
    assert advice(20 * GiB, rows[2:]) == (
        "free at least 3.00 GiB of the 3.00 GiB of tensors kept from train.py:6 main: delete or offload them; "
        f"{of_parameters}"
    )
    assert "kept from" not in str(probe.result_advice(replace(failed, available_bytes=19 * GiB, pipeline_stages=1)))


def test_of_a_configuration_a_command_looks_for_changes() -> None:
    assert what_to_reduce(TRAINED, 22 * GiB, is_configured=True) == (
        "parameters, gradients and optimizer states alone need 24.00 GiB, at any batch size: oomscope advise tries to "
        "shard and offload them"
    )
    assert what_to_reduce(TRAINED, 30 * GiB, is_configured=True) == (
        "free at least 4.00 GiB of the 10.00 GiB of activations, or of the 24.00 GiB of parameters, gradients and "
        "optimizer states: oomscope advise looks for changes that fit"
    )


def test_a_run_that_fits_or_of_which_too_little_is_known_gets_no_advice() -> None:
    assert what_to_reduce(TRAINED, 34 * GiB) is None
    assert what_to_reduce({"unknown": 20 * GiB, "parameter": 5 * GiB, "activation": 5 * GiB}, 20 * GiB) is None
    assert what_to_reduce({"communication": 20 * GiB, "parameter": 5 * GiB}, 15 * GiB) is None


@given(
    st.dictionaries(st.sampled_from([each.label for each in Category]), st.integers(0, 100 * GiB)),
    st.integers(0, GiB),
    st.integers(1, 100 * GiB),
    st.booleans(),
)
def test_what_is_to_be_freed_is_there(held: dict[str, int], request: int, card: int, configured: bool) -> None:
    missing = sum(held.values()) + request - card
    text = what_to_reduce(held, card, request_bytes=request, is_configured=configured)
    if text is None:
        return
    assert missing > 0
    if "at any batch size" in text:
        of_model = sum(held.get(name, 0) for name in ("parameter", "gradient", "main_gradient", "optimizer_state"))
        assert of_model > card
        return
    said, *sources = [parse_size(size) for size in re.findall(r"([0-9.]+ [KMGT]?i?B)(?= of)", text)]
    assert sources
    assert all(source * 1.02 >= said for source in sources)
    assert abs(said - missing) <= 0.02 * missing


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
    leak = LeakSuspect(bytes_per_iteration=GiB, iterations=3, site=results.LOSS)
    leaks = probe.result_advice(replace(whole, verdict=replace(early.verdict, tags=("leak",), leak=leak)))
    assert "at any batch size" not in str(leaks)
