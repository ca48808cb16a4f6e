"""Programs that tell nothing are followed from outside: on the host, for hooks are the same there."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from oomscope.probe.recording.collector import KeptObjects
from oomscope.probe.recording.growing import GrowingContainers
from oomscope.probe.recording.hooks import Follower, _behind_another_device, _card_of
from oomscope.probe.recording.position import Position
from oomscope.probe.recording.reading import resolved
from oomscope.snapshot.metadata import from_text
from oomscope.snapshot.trace import Category, Moment


class Notes:
    """Remembers what was told of tensors."""

    def __init__(self) -> None:
        self.labels: list[tuple[Category, int]] = []

    def label(self, category: Category, tensors: Iterable[object]) -> None:
        self.labels += [(category, id(tensor)) for tensor in tensors if isinstance(tensor, torch.Tensor)]

    def cards_used(self) -> int:
        return 0

    def of(self, category: Category) -> set[int]:
        return {number for kind, number in self.labels if kind is category}


class Followed:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.blocks = Notes()
        self.position = Position(self.texts.append)
        self.notes: list[str] = []
        self.follower = Follower(self.position, self.blocks, GrowingContainers(lambda: 0), KeptObjects(), self.notes)

    @contextmanager
    def iteration(self, index: int = 0) -> Iterator[None]:
        with self.follower.installed():
            self.follower.iteration_begins(index)
            yield

    @property
    def moments(self) -> list[Moment]:
        """Each moment once where it was announced again, as it is read."""
        announced = [from_text(text).moment for text in self.texts]
        labels = [resolved(moment, announced) for moment in announced]
        return [moment for before, moment in zip([None, *labels], labels, strict=False) if moment != before]

    @property
    def modules(self) -> list[str]:
        return [from_text(text).module for text in self.texts]


@pytest.fixture
def followed() -> Followed:
    return Followed()


def test_phases_of_a_training_step(followed: Followed) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    followed.follower.watch([model], [optimizer])
    engine = torch.autograd.Variable._execution_engine
    with followed.iteration(1):
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert followed.moments == [
        Moment("forward", 1, 0),
        Moment("loss", 1, 0),
        Moment("backward", 1, 0),
        Moment("other", 1, -1),
        Moment("forward", 1, 1),
        Moment("loss", 1, 1),
        Moment("backward", 1, 1),
        Moment("optimizer", 1, -1),
        Moment("other", 1, -1),
    ]
    assert torch.autograd.Variable._execution_engine is engine


def test_modules_that_have_not_run_are_labelled_whatever_else_is_odd(followed: Followed) -> None:
    """A module in the making, as by ``copy.deepcopy``, and lazy weights hide no others."""
    unborn, lazy, plain = torch.nn.Module.__new__(torch.nn.Linear), torch.nn.LazyBatchNorm1d(), torch.nn.BatchNorm1d(3)
    followed.follower.label_all()
    assert followed.blocks.of(Category.PARAMETER) >= {id(plain.weight), id(plain.bias)}
    assert followed.blocks.of(Category.KEPT) >= {id(plain.running_mean)}
    assert not {id(lazy.weight), id(lazy.running_mean)} & {number for _, number in followed.blocks.labels}
    assert followed.notes == []
    del unborn


def test_states_of_an_optimizer_in_its_first_step_are_labelled(followed: Followed) -> None:
    class Equal(torch.optim.AdamW):
        """Cannot be hashed."""

        def __eq__(self, other: object) -> bool:
            return self is other

        __hash__ = None  # type: ignore[assignment]

        def step(self, closure=None):
            super().step(closure)
            followed.follower.label_all()

    model = torch.nn.Linear(4, 4)
    optimizer = Equal(model.parameters())
    with followed.iteration():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        states = {id(each) for state in optimizer.state.values() for each in state.values()}
        followed.blocks.labels.clear()
        followed.follower.label_all()
    assert followed.blocks.of(Category.OPTIMIZER_STATE) == states
    assert followed.notes == []


class ToHost(torch.autograd.Function):
    """Copies from a device that holds no numbers."""

    @staticmethod
    def forward(ctx, x):
        return torch.ones(x.shape)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to("meta")


def test_backward_is_announced_where_it_comes_to_another_device() -> None:
    start = torch.ones(4, requires_grad=True, device="meta")
    on_card = (start * 2).exp()
    on_host = (ToHost.apply(on_card) * 3).sum()
    again = on_host.to("meta").exp()
    assert _behind_another_device([again.grad_fn], 1) == []
    assert _behind_another_device([again.grad_fn], 2) == [on_card.grad_fn]
    assert _behind_another_device([on_host.grad_fn], 1) == [on_card.grad_fn], "a loss on the host"
    assert _card_of(SimpleNamespace()) is None, "torch 2.4 does not tell"


class Named(torch.nn.Module):
    """Takes what it is given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, batch=None, *, mask=None):
        return self.inner(batch["x"] if isinstance(batch, dict) else batch) + mask


def test_inputs_are_known_by_keyword_and_in_dictionaries(followed: Followed) -> None:
    model = Named()
    x, mask, made = torch.ones(2, 4), torch.ones(2, 4), torch.ones(2, 4, requires_grad=True) * 2
    followed.follower.watch([model], [])
    with followed.iteration():
        model({"x": x, "others": [made]}, mask=mask)
        assert followed.blocks.of(Category.INPUT) == {id(x), id(mask)}
        y = torch.ones(2, 4)
        model(batch=y, mask=mask)
    assert followed.blocks.of(Category.INPUT) == {id(x), id(mask), id(y)}
    assert followed.notes == []


def test_inputs_that_collect_gradients_are_inputs_and_what_checkpointing_detaches_is_not(followed: Followed) -> None:
    class Recomputed(torch.nn.Sequential):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            for layer in self:  # backward runs each alone, on a detached input
                rows = torch.utils.checkpoint.checkpoint(layer, rows, use_reentrant=True)
            return rows

    model = Recomputed(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    x, weight = torch.ones(2, 4, requires_grad=True), torch.nn.Parameter(torch.ones(2, 4))
    with followed.iteration():
        model(x).sum().backward()
        model[0](weight).sum().backward()
    assert followed.blocks.of(Category.INPUT) == {id(x)}
    assert followed.blocks.of(Category.GRADIENT) >= {id(x.grad)}
    assert id(x) not in followed.blocks.of(Category.PARAMETER)
    assert followed.notes == []


def test_what_an_optimizer_steps_outside_modules_is_a_parameter(followed: Followed) -> None:
    head = torch.nn.Linear(4, 4)
    weight, prompt, later = torch.nn.Parameter(torch.ones(4, 4)), torch.ones(2, 4), torch.ones(4)
    copy, alike = torch.ones(4, dtype=torch.float64), torch.ones(4)
    stepped = [weight, prompt.requires_grad_(), copy.requires_grad_(), alike]
    with followed.iteration(-1):
        optimizer = torch.optim.SGD(stepped, lr=0.1)
        optimizer.add_param_group({"params": [later.requires_grad_()]})
    for index in range(2):
        with followed.iteration(index):
            followed.blocks.labels.clear()
            (head(prompt @ weight) + later).sum().backward()
            copy.grad, alike.grad = torch.ones(4, dtype=torch.float64), torch.ones(4)
            optimizer.step()
            assert followed.blocks.of(Category.GRADIENT) >= {id(weight.grad), id(prompt.grad)}
            optimizer.zero_grad()
    labels = followed.blocks.of(Category.PARAMETER)
    assert labels >= {id(weight), id(prompt), id(later), id(alike)}
    assert id(copy) not in labels, "of weights in another type: backward does not come to it"
    assert id(copy) in followed.blocks.of(Category.OPTIMIZER_STATE)
    with followed.iteration(2):
        followed.blocks.labels.clear()
        head(prompt)
    assert id(prompt) not in followed.blocks.of(Category.INPUT)
    assert followed.notes == []


def test_a_compiled_model_has_the_phases_of_the_plain_one(followed: Followed) -> None:
    """Tracing it runs no module and no backward pass that counts; torch's warning of hooks is no error."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4))
    compiled = torch.compile(model, backend="aot_eager")
    followed.follower.watch([model], [])
    with followed.iteration():
        for _ in range(2):
            compiled(torch.ones(2, 4)).sum().backward()
    phases = [(moment.phase, moment.microbatch) for moment in followed.moments]
    once = ["forward", "loss", "backward"]
    assert phases == [
        *((phase, 0) for phase in once),
        ("other", -1),
        *((phase, 1) for phase in once),
        ("optimizer", -1),
    ]


def test_hooks_of_a_compiled_step_are_not_traced(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    followed.follower.watch([model], [optimizer])
    counter, are_traced = CompileCounter(), []
    monkeypatch.setattr(followed.follower, "_label_states", lambda _: are_traced.append(torch.compiler.is_compiling()))

    @torch.compile(backend=counter)
    def step() -> None:
        optimizer.step()

    with followed.iteration():
        model(torch.ones(2, 4)).sum().backward()
        step()
    assert [moment.phase for moment in followed.moments] == ["forward", "loss", "backward", "optimizer", "other"]
    assert (counter.frame_count, are_traced, followed.notes) == (1, [False], [])


def test_a_backward_pass_that_is_started_at_the_engine_is_one(followed: Followed) -> None:
    """Megatron-Core starts its own so, and gives all arguments by name; other libraries leave callbacks there."""
    model, called = torch.nn.Linear(4, 1), []
    followed.follower.watch([model], [])
    with followed.iteration():
        engine = torch.autograd.Variable._execution_engine
        model.weight.register_hook(lambda _: engine.queue_callback(lambda: called.append(True)))
        for creates_graph in (True, False):
            engine.run_backward(
                tensors=(model(torch.ones(2, 4)).sum(),),
                grad_tensors=(torch.ones(()),),
                keep_graph=False,
                create_graph=creates_graph,
                inputs=(model.weight,),
                allow_unreachable=True,
                accumulate_grad=not creates_graph,
            )
    phases = [(moment.phase, moment.microbatch) for moment in followed.moments]
    assert phases == [("forward", 0), ("loss", 0)] * 2 + [("backward", 0), ("optimizer", -1)]
    assert called == [True, True]


def test_a_gradient_that_is_differentiated_again_is_part_of_the_loss(followed: Followed) -> None:
    model = torch.nn.Linear(4, 1)
    followed.follower.watch([model], [])
    with followed.iteration():
        inputs = torch.ones(2, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        gradient.sum().backward()
        torch.func.grad(lambda each: model(each).sum())(inputs.detach())  # asks for a graph too
    phases = [(moment.phase, moment.microbatch) for moment in followed.moments]
    once = ["forward", "loss", "backward"]
    between, ended = ("other", -1), ("optimizer", -1)
    assert phases == [*((phase, 0) for phase in once), between, *((phase, 1) for phase in once), ended]


def test_a_failed_step_leaves_no_hooks_behind(followed: Followed) -> None:
    class Failing(torch.optim.SGD):
        def _init_group(self, *_: object) -> bool:
            raise RuntimeError("out of memory")

    parameter = torch.ones(2, requires_grad=True)
    parameter.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="out of memory"), followed.iteration():
        Failing([parameter], lr=0.1).step()
    before = len(followed.texts)
    torch.nn.Linear(1, 1)(torch.ones(1)).backward()
    assert len(followed.texts) == before


def test_what_the_program_lets_go_is_freed(followed: Followed) -> None:
    """Such as a model of one evaluation: kept alive it would be measured as the program's."""
    with followed.iteration():
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        followed.follower.watch([], [optimizer])
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        alive = [weakref.ref(each) for each in (model, *model.parameters())]
        del model, optimizer
        gc.collect()  # an optimizer is in a cycle with its own hooks
        assert [each() for each in alive] == [None] * len(alive)


def test_a_model_with_lists_for_parameters_and_buffers_is_followed(followed: Followed) -> None:
    class Wrapped(torch.nn.Module):  # as Megatron-Core's DistributedDataParallel
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)
            self.buffers, self.parameters = [], []

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.inner(rows)

    model = Wrapped()
    with followed.iteration():
        model(torch.ones(2, 4)).sum().backward()
    assert followed.blocks.of(Category.PARAMETER) == {id(model.inner.weight), id(model.inner.bias)}
    assert followed.blocks.of(Category.GRADIENT) >= {id(model.inner.weight.grad)}
    assert followed.notes == []


def test_a_submodule_that_does_not_list_its_modules_hides_no_other(followed: Followed) -> None:
    class Remote(torch.nn.Module):  # as torch.distributed.nn.RemoteModule
        def named_modules(self, *args: object, **kwargs: object) -> NoReturn:
            raise ValueError("not supported")

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows

    model = torch.nn.Sequential(Remote(), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model.append(model[1])
    with followed.iteration():
        model(torch.ones(2, 4)).sum().backward()
    weights = [model[1].weight, model[1].bias, model[2].weight, model[2].bias]
    assert followed.blocks.of(Category.PARAMETER) == {id(each) for each in weights}
    assert followed.blocks.of(Category.KEPT) == {id(each) for each in model[2]._buffers.values()}
    assert set(followed.modules) >= {"1", "2"}
    assert followed.notes == []


def test_weights_are_labelled_again_in_each_iteration(followed: Followed) -> None:
    """The last one may have put others in their place, by ``p.data = saved``."""
    model = torch.nn.Linear(4, 4)
    with followed.iteration(0):
        model(torch.ones(2, 4))
    followed.blocks.labels.clear()
    with followed.iteration(1):
        assert followed.blocks.of(Category.PARAMETER) == {id(model.weight), id(model.bias)}


class Sharded(torch.nn.Linear):
    """Has its whole weight only while it runs, as with FSDP2."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self.whole = [torch.nn.Parameter(torch.ones(4, 4))]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        part = self.weight
        self.register_forward_pre_hook(lambda *_: setattr(self, "weight", self.whole[0]))
        self.register_forward_hook(lambda *_: setattr(self, "weight", part))
        return super().__call__(rows)


def test_gradients_of_whole_weights_are_gradients_where_they_outlive_the_backward(followed: Followed) -> None:
    model = torch.nn.Sequential(Sharded())
    with followed.iteration():
        model(torch.ones(2, 4)).sum().backward()
    assert model[0].weight is not model[0].whole[0]
    assert followed.blocks.of(Category.GRADIENT) == {id(model[0].whole[0].grad)}
    assert followed.notes == []


def test_what_backward_runs_again_is_no_model_of_its_own(followed: Followed) -> None:
    whole = torch.nn.Parameter(torch.ones(4, 4))

    class Recomputed(torch.nn.Sequential):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(self.layer, rows, use_reentrant=False)

        def layer(self, rows: torch.Tensor) -> torch.Tensor:
            if torch._C._current_graph_task_id() != -1:
                self[0].weight = whole
            return self[0](rows)

    with followed.iteration():
        Recomputed(torch.nn.Linear(4, 4))(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert id(whole) not in followed.blocks.of(Category.PARAMETER)
    assert followed.notes == []


@pytest.mark.parametrize("is_module", [True, False])
def test_gradients_that_the_program_sets_are_gradients_and_copies_of_weights_are_states(
    followed: Followed, is_module: bool
) -> None:
    model = torch.nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    master, shared = model.weight.detach().float(), model.weight.detach()
    model.weight.main_grad = torch.ones(4, 4)
    optimizer = torch.optim.SGD([master, shared], lr=0.1)
    with followed.iteration():
        if is_module:
            model(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
        master.grad, shared.grad = torch.ones(4, 4), torch.ones(4, 4, dtype=torch.bfloat16)
        optimizer.step()
    assert followed.blocks.of(Category.GRADIENT) >= {id(master.grad), id(shared.grad)}
    assert id(master) in followed.blocks.of(Category.OPTIMIZER_STATE if is_module else Category.PARAMETER)
    if is_module:
        assert id(shared) in followed.blocks.of(Category.PARAMETER)
        followed.blocks.labels.clear()
        followed.follower.label()
        assert followed.blocks.labels[-1] == (Category.MAIN_GRADIENT, id(model.weight.main_grad)), "the last one counts"
    assert followed.notes == []


def test_the_part_of_a_weight_that_a_rank_keeps_is_a_parameter(followed: Followed) -> None:
    """As of DeepSpeed's ZeRO-3, which empties the parameter itself."""
    model = torch.nn.Linear(4, 4, bias=False)
    model.weight.ds_tensor = torch.ones(4)
    with followed.iteration():
        model(torch.ones(2, 4))
    assert id(model.weight.ds_tensor) in followed.blocks.of(Category.PARAMETER)


def test_states_of_an_optimizer_that_lie_in_lists_or_objects_are_its_states(followed: Followed) -> None:
    """As in SOAP, Shampoo and GaLore."""
    parameter = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    plain, left, right, old, own, inner = (torch.ones(2) for _ in range(6))
    module = torch.nn.Linear(1, 1)
    optimizer.state[parameter] = {"m": plain, "GG": [left, (right,)], "step": 1, "more": {"old": old}}
    optimizer.state[parameter]["projector"] = SimpleNamespace(rank=4, matrices=[own], module=module)
    optimizer.state[parameter]["block_0"] = {"shampoo": SimpleNamespace(factors=SimpleNamespace(inner=(inner,)))}
    optimizer.state[parameter]["more"]["itself"] = optimizer.state[parameter]
    optimizer.state[parameter]["more"]["gradient"] = parameter.grad = torch.ones(2)
    with followed.iteration():
        optimizer.step()
    states = {id(plain), id(left), id(right), id(old), id(own), id(inner)}
    assert followed.blocks.of(Category.OPTIMIZER_STATE) == states, "neither a module's weights nor a gradient"
    assert followed.notes == []


def test_what_goes_wrong_in_a_hook_is_a_note_and_the_program_goes_on(followed: Followed) -> None:
    class Odd(defaultdict[object, object]):
        def values(self) -> NoReturn:
            raise RuntimeError("not before it is built")

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state = Odd(dict)
    with followed.iteration():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert followed.notes == ["some categories or modules are unknown: RuntimeError: not before it is built"]
    assert "backward" in {moment.phase for moment in followed.moments}
