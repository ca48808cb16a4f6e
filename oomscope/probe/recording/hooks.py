"""Follows a program that reports nothing itself, by hooks on its modules, on autograd and on its optimizers.

Forward is what runs from the start of an iteration and inside the root module, loss what follows it, backward what the
autograd engine runs, optimizer what follows backward until the step is over, and other what comes then. A gradient that
is to be differentiated again is no backward: it belongs to the phase round it. A microbatch ends with its backward. A
compiled model is one module: while torch.compile traces its parts, hooks do nothing, which leaves them out of the
compiled code.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Final, TypeVar

import torch
from torch.autograd import Variable, graph
from torch.nn.modules import module as module_hooks
from torch.nn.parameter import is_lazy
from torch.optim import optimizer as optim
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

from oomscope import virtual
from oomscope.capture.steps import count_stepped, stepped_by
from oomscope.probe.recording.blocks import LabelledBlocks, collectives_labelled, tensors_in
from oomscope.probe.recording.collector import KeptObjects, gc_paused
from oomscope.probe.recording.compiled import untraced
from oomscope.probe.recording.growing import GrowingContainers
from oomscope.probe.recording.position import Position
from oomscope.probe.recording.replaced import backward_through, creates_graph, replaced
from oomscope.snapshot.trace import AFTER_BACKWARD, OTHER, Category
from oomscope.units import format_size
from oomscope.virtual.settings import is_computed

_ABOUT_OUR_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"  # torch/_dynamo/eval_frame.py
_Member = TypeVar("_Member")

_OBJECTS_IN_STATES: Final = 2
"""Objects inside each other in which libraries keep states: preconditioners, projectors."""


class Follower:
    """Follows a target from outside.

    Args:
        position: learns phases and modules.
        blocks: learns roles.
        growing: learns when iterations begin.
        kept: leaves what hooks make and keep out of the count of Python's collector.
        notes: receives a sentence on what went wrong in a hook; the program goes on without an error.
    """

    def __init__(
        self,
        position: Position,
        blocks: LabelledBlocks,
        growing: GrowingContainers,
        kept: KeptObjects,
        notes: list[str],
    ) -> None:
        self._kept = kept
        self._position = position
        self._blocks = blocks
        self._growing = growing
        self._notes = notes
        # Held weakly: what the program lets go is to be freed.
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._roots_are_given = False
        self._parameters_run = WeakTensorKeyDictionary()
        self._leaves = WeakTensorKeyDictionary()  # followed tensors: whether they are weights, not inputs
        self._reached = WeakTensorKeyDictionary()  # those of them that backward reached
        self._optimizers = WeakIdKeyDictionary()
        self._microbatch = 0
        self._backward_depth = 0

    def watch(self, models: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Learn the target's modules, parameters and optimizers."""
        for model in models:
            self._roots_are_given = True
            self._learn(_uncompiled(model))
        for optimizer in optimizers:
            self._note_optimizer(optimizer)
        self.label()

    def iteration_begins(self, index: int) -> None:
        """Count microbatches anew, look for lists that the last iteration grew, and label weights that it replaced."""
        self._microbatch = 0
        self._growing.iteration_begins()
        for model in self._roots:
            with self.unharmed():
                self._label_weights(model)
        self._position.imply("forward", iteration=index, microbatch=0)

    def label(self) -> None:
        """Label parameters, gradients and optimizer states as they are now; what they share is the model's."""
        for optimizer in self._optimizers:
            with self.unharmed():
                self._label_states(optimizer)
        for model in self._roots:
            with self.unharmed():
                self._label_weights(model)
                main = (getattr(each, "main_grad", None) for each in parameters(model))
                self._blocks.label(Category.MAIN_GRADIENT, main)

    def label_all(self) -> None:
        """Label also what models hold that have not run yet: a run that ends here does not reach them."""
        with self.unharmed():
            self.label()
        with gc_paused():
            for each in gc.get_objects():
                if issubclass(type(each), torch.nn.Module):
                    with self.unharmed():
                        self._label_unseen(each)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hook every module's forward, every backward, and every optimizer's making and steps."""
        engine, make = Variable._execution_engine.run_backward, optim.Optimizer.__init__

        def followed(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # backward is being traced into a joint graph
                return engine(*args, **kwargs)
            # torch.func asks for a graph of every gradient.
            is_inner = creates_graph(args) and not torch._C._are_functorch_transforms_active()
            marked = self._announced_on_threads_of if is_inner else self._backward
            with marked(args[0] if args else ()):
                return engine(*args, **kwargs)

        @functools.wraps(make)
        def made(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            with self.unharmed():
                self._note_optimizer(optimizer)
                self._label_states(optimizer)

        handles = [
            module_hooks.register_module_forward_pre_hook(self._before_forward),
            module_hooks.register_module_forward_hook(self._after_forward, always_call=True),
            optim.register_optimizer_step_pre_hook(self._before_step),
            optim.register_optimizer_step_post_hook(self._after_step),
        ]
        try:
            optimizers = replaced([(optim.Optimizer, "__init__", made)])
            with backward_through(followed), collectives_labelled(self._blocks), optimizers, warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=_ABOUT_OUR_HOOKS)
                yield
        finally:
            for handle in handles:
                handle.remove()

    # Modules --------------------------------------------------------------------------------------------------

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._position.module_depth == 0:
            with self.unharmed():
                self._model_begins(module, [args, _keyword_arguments(sys._getframe(1))])
        self._position.enter_module(self._names.get(module, ""))

    def _after_forward(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._position.leave_module()
        with self.unharmed():
            if module in self._names:
                self._note_parameters_of(module)
            if self._position.module_depth == 0 and self._is_root(module):
                self._imply("loss")

    def _model_begins(self, module: torch.nn.Module, given: list[Any]) -> None:
        if self._is_root(module):
            self._imply("forward")
            if self._backward_depth == 0:
                inputs = [each for each in tensors_in(given) if self._is_input(each)]
                self._blocks.label(Category.INPUT, inputs)
                with self._kept:
                    self._follow_gradients(inputs, are_weights=False)

    def _is_input(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` was given to a model from outside: no operation made it, and it is no weight."""
        return tensor.grad_fn is None and not _is_parameter(tensor) and not self._leaves.get(tensor)

    def _is_root(self, module: torch.nn.Module) -> bool:
        """Whether ``module`` is one of the target's models; where none was named, any outermost one with parameters.

        Backward only runs parts of models again.
        """
        module = _uncompiled(module)
        if module in self._roots:
            return True
        if self._roots_are_given or self._backward_depth > 0 or next(parameters(module), None) is None:
            return False
        with self._kept:
            self._learn(module)
            self._label_weights(module)
        return True

    def _label_weights(self, model: torch.nn.Module) -> None:
        self._blocks.label(Category.KEPT, buffers(model))
        self._label_parameters(list(parameters(model)))

    def _label_parameters(self, weights: list[torch.nn.Parameter]) -> None:
        self._blocks.label(Category.PARAMETER, weights)
        parts = (getattr(each, "ds_tensor", None) for each in weights)  # a rank's part, in DeepSpeed's ZeRO-3
        self._blocks.label(Category.PARAMETER, parts)

    def _label_unseen(self, module: torch.nn.Module) -> None:
        """Label the weights of a module that has not run, which may still be in the making (``copy.deepcopy``)."""
        if module not in self._names:
            own = vars(module)
            held, weights = (
                [each for each in own.get(name, {}).values() if each is not None and not is_lazy(each)]
                for name in ("_buffers", "_parameters")
            )
            self._blocks.label(Category.KEPT, held)
            self._label_parameters(weights)

    def _note_parameters_of(self, module: torch.nn.Module) -> None:
        """Remember what a module ran with: FSDP2 gives it whole parameters then, which collect gradients too."""
        for parameter in module._parameters.values():
            if isinstance(parameter, torch.nn.Parameter) and parameter not in self._parameters_run:
                with self._kept:
                    self._parameters_run[parameter] = None

    def _learn(self, model: torch.nn.Module) -> None:
        self._roots.add(model)
        for name, module in named_modules(model):
            self._names.setdefault(module, name)
        self._follow_gradients(parameters(model), are_weights=True)

    def _follow_gradients(self, tensors: Iterable[torch.Tensor], *, are_weights: bool) -> None:
        """Label the gradients of leaves as they arrive."""
        for tensor in tensors:
            if tensor.requires_grad and tensor.is_leaf:
                if tensor not in self._leaves:
                    tensor.register_post_accumulate_grad_hook(self._gradient_arrived)
                self._leaves[tensor] = are_weights

    # Autograd -------------------------------------------------------------------------------------------------

    @contextmanager
    def _backward(self, roots: Any) -> Iterator[None]:
        """Mark a backward pass, on the calling thread and on those that the engine runs the graph on."""
        self._backward_depth += 1
        if self._backward_depth == 1:
            self._imply("backward")
        try:
            with self._announced_on_threads_of(roots):
                yield
        finally:
            self._backward_depth -= 1
            if self._backward_depth == 0:
                with self.unharmed():
                    models = (each for model in self._roots for each in parameters(model))
                    gradients = (each.grad for each in (*models, *self._parameters_run.keys()))
                    self._blocks.label(Category.GRADIENT, _distinct(gradients))
                self._microbatch += 1
                self._imply(AFTER_BACKWARD)

    @contextmanager
    def _announced_on_threads_of(self, roots: Any) -> Iterator[None]:
        """Announce the position where backward from ``roots`` comes to a card: its nodes run on a thread of its own."""
        caller = threading.get_ident()

        def started(_: Any) -> None:
            if not torch.compiler.is_compiling() and threading.get_ident() != caller:
                self._position.announce()

        with ExitStack() as hooks:
            listed = roots if isinstance(roots, (tuple, list)) else (roots,)
            found = (getattr(root, "node", None) or getattr(root, "grad_fn", None) for root in listed)
            nodes = [node for node in found if node is not None]
            with self.unharmed():
                nodes += _behind_another_device(nodes, self._blocks.cards_used())
            for node in nodes:
                hooks.callback(node.register_prehook(started).remove)
            yield

    def _gradient_arrived(self, parameter: torch.Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        with self.unharmed():
            if parameter not in self._reached:
                with self._kept:
                    self._reached[parameter] = None
            self._blocks.label(Category.GRADIENT, (parameter.grad,))
            if self._leaves.get(parameter) and not _is_parameter(parameter):
                self._blocks.label(Category.PARAMETER, (parameter,))

    # Optimizers -----------------------------------------------------------------------------------------------

    @untraced
    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with self.unharmed():
            if self._optimizers.get(optimizer) != count_stepped(optimizer):  # ``add_param_group`` adds some later
                self._note_optimizer(optimizer)
            if isinstance(optimizer, torch.optim.LBFGS) and virtual.is_loaded() and not is_computed(os.environ):
                self._note_history_of(optimizer)
        self._imply("optimizer", microbatch=-1)

    def _note_history_of(self, optimizer: torch.optim.LBFGS) -> None:
        """Note what the vectors of LBFGS may need: values that are not computed end its inner iterations early."""
        group = optimizer.param_groups[0]
        size = sum(each.nbytes for each in group["params"] if each.is_cuda)
        note = (
            "LBFGS ends its inner iterations by values that a virtual card does not compute: its history may come to "
            f"hold {group['history_size']} pairs of vectors, {format_size(2 * group['history_size'] * size)}, which "
            "were not all measured"
        )
        if size and note not in self._notes:
            self._notes.append(note)

    @untraced
    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with self.unharmed():
            self._label_states(optimizer)
        self._microbatch = 0
        self._imply(OTHER, microbatch=-1)

    def _note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        with self._kept:
            self._optimizers[optimizer] = count_stepped(optimizer)
            self._follow_gradients(stepped_by(optimizer), are_weights=True)

    def _label_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Label states, parameters, and gradients that the program sets itself.

        Plain tensors that backward does not come to are states where they are copies of weights in another type (master
        weights): where there is a model to train whose parameters have one.
        """
        stepped = list(stepped_by(optimizer))
        gradients = {id(each.grad) for each in stepped if each.grad is not None}
        states = tensors_in(list(optimizer.state.values()), objects=_OBJECTS_IN_STATES)
        self._blocks.label(Category.OPTIMIZER_STATE, (each for each in states if id(each) not in gradients))
        self._blocks.label(Category.PARAMETER, (each for each in stepped if _is_parameter(each)))
        if given := [each for each in stepped if each.grad is not None and each not in self._reached]:
            self._blocks.label(Category.GRADIENT, (each.grad for each in given))
        if plain := [each for each in given if not _is_parameter(each)]:
            trained = {each.dtype for model in self._roots for each in parameters(model) if each.requires_grad}
            for each in plain:
                is_copy = bool(trained - {each.dtype})
                self._blocks.label(Category.OPTIMIZER_STATE if is_copy else Category.PARAMETER, (each,))

    @contextmanager
    def unharmed(self) -> Iterator[None]:
        """Turn an error inside into a note of the result, so that the program goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a program's own classes raise when they are read
            note = f"some categories or modules are unknown: {type(error).__name__}: {error}"
            if note not in self._notes:
                self._notes.append(note)

    def _imply(self, phase: str, microbatch: int | None = None) -> None:
        """Set the phase, unless the program sets its own, is not yet training, or recomputes in backward."""
        inside_backward = self._backward_depth > 0 and phase != "backward"
        if not self._position.is_set_by_program and self._position.is_training and not inside_backward:
            self._position.imply(phase, microbatch=self._microbatch if microbatch is None else microbatch)


def _behind_another_device(roots: list[graph.Node], cards: int) -> list[graph.Node]:
    """Return the nodes below ``roots`` with which backward may come to a card from the host or from another one.

    There are none if the program has allocated on one card alone (``cards`` says on how many), and the roots are on it.
    """
    if cards < 2 and None not in map(_card_of, roots):
        return []
    entered: list[graph.Node] = []
    seen, waiting = set(roots), list(roots)
    while waiting:
        node = waiting.pop()
        card = _card_of(node)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
                if _card_of(following) not in {card, None}:
                    entered.append(following)
    return entered


def _card_of(node: graph.Node) -> torch.device | None:
    """Return the card on whose thread the engine runs a node, by the gradients that it takes; None for the host."""
    taken_by = getattr(node, "_input_metadata", ())  # torch 2.4 has none; it matters from torch 2.10 on
    return next((taken.device for taken in taken_by if taken.device.type != "cpu"), None)


def named_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules of a model with their names, each once, whatever their classes make of ``named_modules``.

    ``torch.nn.Module`` asks each child for its own; RemoteModule, whose modules are in another process, raises then.
    """
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting:
        name, module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield name, module
            named = ((f"{name}.{own}" if name else own, child) for own, child in module._modules.items())
            waiting += reversed([(own, child) for own, child in named if child is not None])


def parameters(model: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """Yield the parameters also of a model with an attribute of that name (Megatron's DDP has a list ``buffers``)."""
    return _distinct(each for _, module in named_modules(model) for each in module._parameters.values())


def buffers(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the buffers of a model in the same way."""
    return _distinct(each for _, module in named_modules(model) for each in module._buffers.values())


def _distinct(members: Iterable[_Member | None]) -> Iterator[_Member]:
    """Yield each of ``members`` once."""
    seen: set[int] = set()
    for each in members:
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each


def _is_parameter(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter)


def _uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model behind what ``torch.compile`` returned for it; another model itself."""
    plain = getattr(model, "_orig_mod", model)  # torch/_dynamo/eval_frame.py, OptimizedModule
    return plain if isinstance(plain, torch.nn.Module) else model


def _keyword_arguments(caller: FrameType) -> object:
    """Return the keyword arguments of a module's call, which torch does not pass to global hooks.

    Args:
        caller: the function of ``torch.nn.Module._call_impl`` that runs the hooks.
    """
    return caller.f_locals.get("kwargs")
