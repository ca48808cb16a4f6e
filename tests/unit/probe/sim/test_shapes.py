"""What is remembered of an operation cannot be told from what torch's shape rule returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from oomscope.probe.sim import backend, shapes
from oomscope.probe.sim.shapes import Answers, ShapeRules, kept_answers

aten = torch.ops.aten
Make = Callable[..., Any]


class Bench:
    """Shape rules on the simulated device, and how often torch's own rule ran."""

    def __init__(self, *, remember: bool = True, answers: Answers | None = None) -> None:
        self.device = backend.register()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        known: Answers = {} if answers is None else answers
        self.rules = ShapeRules(self.fake, known if remember else None)
        self.runs = 0
        dispatch = self.fake.dispatch

        def counted(*args: Any) -> Any:
            self.runs += 1
            return dispatch(*args)

        self.fake.dispatch = counted

    def empty(self, *size: int, dtype: torch.dtype = torch.float32) -> FakeTensor:
        with self.fake:
            return torch.empty(size, dtype=dtype, device=self.device)

    def run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.runs
        try:
            return self.rules.run(func, args, kwargs)
        finally:
            self.ran = self.runs > before


def listed(out: Any) -> list[Any]:
    return list(out) if isinstance(out, (tuple, list)) else [out]


def traits(out: Any, inputs: list[torch.Tensor]) -> list[Any]:
    """Everything that a program or the memory could see of a result."""
    seen: list[Any] = [isinstance(out, tuple), isinstance(out, list)]
    for value in listed(out):
        if not isinstance(value, FakeTensor):
            seen.append(value)
            continue
        storage = value.untyped_storage()
        seen.append(
            (
                tuple(value.shape),
                value.stride(),
                value.storage_offset(),
                value.dtype,
                value.device,
                value.requires_grad,
                storage.nbytes(),
                str(torch._C._dispatch_keys(value)),
                sorted(vars(value)),
                [value is tensor for tensor in inputs],
                [storage._cdata == tensor.untyped_storage()._cdata for tensor in inputs],
            )
        )
    return seen


CALLS: dict[str, tuple[Any, Callable[[Make], list[Any]], dict[str, Any]]] = {
    "mm": (aten.mm.default, lambda new: [new(4, 8), new(8, 2)], {}),
    "add": (aten.add.Tensor, lambda new: [new(4, 8), new(8)], {"alpha": 2}),
    "add_": (aten.add_.Tensor, lambda new: [new(4, 8), new(4, 8)], {}),
    "view": (aten.view.default, lambda new: [new(4, 8), [2, 16]], {}),
    "unsafe view": (aten._unsafe_view.default, lambda new: [new(4, 8), [32]], {}),
    "transpose": (aten.t.default, lambda new: [new(4, 8)], {}),
    "slice": (aten.slice.Tensor, lambda new: [new(4, 8), 1, 2, 6], {}),
    "expand": (aten.expand.default, lambda new: [new(4, 1), [4, 8]], {}),
    "detach": (aten.detach.default, lambda new: [new(4, 8)], {}),
    "split": (aten.split.Tensor, lambda new: [new(4, 8), 3, 1], {}),
    "dropout": (aten.native_dropout.default, lambda new: [new(4, 8), 0.1, True], {}),
    "layer norm": (aten.native_layer_norm.default, lambda new: [new(4, 8), [8], new(8), None, 1e-5], {}),
    "cat": (aten.cat.default, lambda new: [[new(4, 8), new(2, 8)]], {}),
    "to bf16": (aten._to_copy.default, lambda new: [new(4, 8)], {"dtype": torch.bfloat16}),
    "to host": (aten._to_copy.default, lambda new: [new(4, 8)], {"device": torch.device("cpu")}),
    "out": (aten.mul.out, lambda new: [new(4, 8), new(4, 8)], {"out": 0}),
    "attention": (
        aten._scaled_dot_product_flash_attention.default,
        lambda new: [new(1, 2, 8, 16, dtype=torch.bfloat16) for _ in range(3)],
        {},
    ),
    "foreach": (aten._foreach_add_.Scalar, lambda new: [[new(4, 8), new(2)], 1], {}),
    "foreach fresh": (aten._foreach_mul.Scalar, lambda new: [[new(4, 8), new(2)], 2.0], {}),
    "empty like": (aten.empty_like.default, lambda new: [new(4, 8)], {"memory_format": torch.contiguous_format}),
}


def tensors(arguments: list[Any]) -> list[torch.Tensor]:
    flat = [item for argument in arguments for item in (argument if isinstance(argument, list) else [argument])]
    return [item for item in flat if isinstance(item, torch.Tensor)]


@pytest.mark.parametrize("name", CALLS)
def test_a_remembered_result_is_like_the_rules_own(name):
    func, arguments, named = CALLS[name]
    told = []
    for remember in (False, True):
        bench = Bench(remember=remember)
        for _ in range(2):
            args = arguments(bench.empty)
            kwargs = {key: bench.empty(4, 8) if key == "out" else value for key, value in named.items()}
            inputs = tensors([*args, *kwargs.values()])
            told.append(traits(bench.run(func, *args, **kwargs), inputs))
        assert bench.ran is not remember
    assert told == told[:1] * 4


@pytest.mark.parametrize("name", CALLS)
def test_what_one_run_learnt_serves_the_next(name):
    func, arguments, named = CALLS[name]
    answers: Answers = {}
    told = []
    for bench in (Bench(answers=answers), Bench(answers=answers)):
        args = arguments(bench.empty)
        kwargs = {key: bench.empty(4, 8) if key == "out" else value for key, value in named.items()}
        out = bench.run(func, *args, **kwargs)
        told.append(traits(out, tensors([*args, *kwargs.values()])))
        assert all(value.fake_mode is bench.fake for value in listed(out) if isinstance(value, FakeTensor))
    assert not bench.ran
    assert told[0] == told[1]


def test_a_process_does_not_remember_without_end(monkeypatch):
    monkeypatch.setattr(shapes, "_kept", {})
    monkeypatch.setattr(shapes, "MOST_KEPT", 2)
    for size in (1, 2):
        bench = Bench(answers=kept_answers())
        bench.run(aten.mm.default, bench.empty(size, 1), bench.empty(1, size))
    assert len(kept_answers()) == 0


def test_a_number_is_remembered_with_its_type():
    bench = Bench()
    dtypes = {bench.run(aten.add.Tensor, bench.empty(4, dtype=torch.int32), n).dtype for n in (1, 1.0)}
    assert dtypes == {torch.int32, torch.float32}
    added = [bench.run(aten.add.Tensor, bench.empty(4, dtype=torch.bool), n).dtype for n in (1, True)]
    assert added == [torch.int64, torch.bool]


def test_the_default_type_is_part_of_the_signature():
    bench = Bench()
    try:
        kinds = []
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            kinds.append(bench.run(aten.full.default, [2], 1.0, device=bench.device).dtype)
    finally:
        torch.set_default_dtype(torch.float32)
    assert kinds == [torch.float32, torch.float64]


def test_what_differs_in_layout_alone_is_another_signature():
    bench = Bench()
    plain = bench.run(aten.clone.default, bench.empty(4, 8))
    turned = bench.run(aten.clone.default, bench.run(aten.t.default, bench.empty(8, 4)))
    assert (plain.stride(), turned.stride()) == ((8, 1), (1, 4))


@pytest.mark.parametrize("case", ["metadata changes", "size depends on data", "places in a storage"])
def test_what_the_signature_does_not_settle_runs_torchs_rule_each_time(case):
    bench = Bench()
    for _ in range(3):
        x = bench.empty(4, 8)
        if case == "metadata changes":
            assert bench.run(aten.t_.default, x) is x
            assert tuple(x.shape) == (8, 4)
        elif case == "size depends on data":
            with pytest.raises(RuntimeError):
                bench.run(aten.nonzero.default, x)
        else:
            half = bench.run(aten.slice.Tensor, x, 0, 2)
            assert bench.run(aten.as_strided.default, half, [2], [1], 4).storage_offset() == 4
        assert bench.ran


def test_one_tensor_given_twice_is_told_from_two():
    bench = Bench()
    for _ in range(2):
        x, y, out = bench.empty(4, 8), bench.empty(4, 8), bench.empty(4, 8)
        assert bench.run(aten.mul.out, x, y, out=y) is y
        assert bench.run(aten.mul.out, x, y, out=x) is x
        assert bench.run(aten.mul.out, x, y, out=out) is out


def test_a_view_counts_from_its_input_wherever_that_begins():
    bench = Bench()
    x = bench.empty(4, 8)
    rows = [bench.run(aten.slice.Tensor, x, 0, n, n + 1) for n in range(4)]
    assert [bench.run(aten.slice.Tensor, row, 1, 2).storage_offset() for row in rows] == [2, 10, 18, 26]
    assert not bench.ran


def test_two_views_of_one_storage_are_no_riddle():
    bench = Bench()
    for _ in range(2):
        x = bench.empty(4, 8)
        view = bench.run(aten.view.default, x, [32])
        assert bench.run(aten.add_.Tensor, view, bench.run(aten.view.default, x, [32])) is view


def test_a_tensor_that_is_given_another_storage_has_it_each_time():
    bench = Bench()
    for _ in range(2):
        x, y = bench.empty(4, 8), bench.empty(4, 8)
        bench.run(aten.set_.source_Tensor, x, y)
        assert x.untyped_storage()._cdata == y.untyped_storage()._cdata


def test_a_literal_keeps_its_value():
    bench = Bench()
    for _ in range(2):
        with bench.fake:
            unknown, literal = torch.empty(()), torch.tensor(3.0)
        bench.run(aten.add_.Tensor, unknown, 1)
        assert bench.run(aten.add_.Tensor, literal, 1).constant.item() == 4.0


def test_a_view_is_of_the_storage_at_hand_also_where_it_holds_nothing():
    bench = Bench()
    bench.run(aten.view.default, bench.empty(4, 8), [32])
    emptied = bench.empty(4, 8)
    emptied.untyped_storage().resize_(0)
    view = bench.run(aten.view.default, emptied, [32])
    assert not bench.ran
    assert view.untyped_storage()._cdata == emptied.untyped_storage()._cdata
    assert view.untyped_storage().nbytes() == 0


def test_a_custom_operations_rule_is_asked_each_time():
    bench = Bench()
    sizes = iter([3, 5])

    @torch.library.custom_op("oomscope_test::grown", mutates_args=())
    def grown(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @grown.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(next(sizes))

    op = torch.ops.oomscope_test.grown.default
    assert [bench.run(op, bench.empty(2)).numel() for _ in range(2)] == [3, 5]


@settings(max_examples=60, deadline=None)
@given(
    size=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    steps=st.lists(st.sampled_from(["t", "half", "add", "add_", "sum", "flat", "wide", "int"]), max_size=8),
)
def test_any_chain_of_operations_is_the_same_with_and_without_memory(size, steps):
    def play(bench: Bench) -> list[Any]:
        start = x = bench.empty(*size)
        seen = []
        for step in steps:
            last = x.dim() - 1
            if step == "t" and x.dim() > 1:
                x = bench.run(aten.transpose.int, x, 0, last)
            elif step == "half" and x.dim() and x.shape[-1] > 1:
                x = bench.run(aten.slice.Tensor, x, last, 1)
            elif step == "add":
                x = bench.run(aten.add.Tensor, x, x)
            elif step == "add_":
                x = bench.run(aten.add_.Tensor, x, 1)
            elif step == "sum" and x.dim():
                x = bench.run(aten.sum.dim_IntList, x, [last], True)
            elif step == "flat" and x.is_contiguous():
                x = bench.run(aten.view.default, x, [x.numel()])
            elif step == "wide":
                x = bench.run(aten.unsqueeze.default, x, 0)
            elif step == "int":
                x = bench.run(aten._to_copy.default, x, dtype=torch.int32)
            seen.append(traits(x, [start]))
        return seen

    remembering = Bench()
    expected = play(Bench(remember=False))
    assert play(remembering) == expected
    assert play(remembering) == expected
