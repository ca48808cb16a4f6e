"""Works out what an operation returns, and remembers the answer for each signature of its arguments.

Training repeats the same operations on tensors of the same shapes thousands of times, and torch's shape rules take
longer, also where they are cached, than everything else the simulation does. What comes back for a remembered
signature has the metadata and the aliasing of what the rule itself returned; an operation whose result is not settled
by the signature is never remembered. All runs of a process share what is remembered, as they share torch's own cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

META: Final = torch.device("meta")

PLAIN_VALUES: Final = frozenset(
    {type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format}
)
"""Types of arguments that are as good as their value."""

RULES_OF_TORCH: Final = frozenset({"aten", "prims"})
"""Namespaces whose rules look at their arguments alone; the rule of a custom operation is code like any other."""

UNSETTLED: Final = frozenset({torch.Tag.inplace_view, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
"""Tags of operations that change the metadata of an input, or whose result depends on data."""

PLACED_BY_STORAGE: Final = torch.ops.aten.as_strided.default
"""Its offset counts from the start of the storage; every other view counts from its input."""

Signature: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Fresh:
    """An output with a storage of its own."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class View:
    """An output on the storage of an input."""

    source: int
    """Which of the tensors among the arguments."""
    size: tuple[int, ...]
    stride: tuple[int, ...]
    beyond: int
    """Elements from the input's first to its own."""


@dataclass(frozen=True, slots=True)
class Same:
    """An output that is one of the inputs."""

    source: int


@dataclass(frozen=True, slots=True)
class Plain:
    """An output that is no tensor."""

    value: int | float | None


Output: TypeAlias = Fresh | View | Same | Plain


@dataclass(frozen=True, slots=True)
class Answer:
    """What an operation returns for one signature."""

    outputs: tuple[Output, ...]
    container: type[list[Any]] | type[tuple[Any, ...]] | None
    """None where the operation returns its one output bare; a named tuple comes back as a plain one."""


Answers: TypeAlias = dict[Any, dict[Signature, Answer | None]]
"""What is remembered, by operation and signature; None in place of an answer that cannot be given again."""

MOST_KEPT: Final = 20_000
"""Signatures from which on a process forgets them all when a run begins: some tens of MiB."""

_kept: Answers = {}


def kept_answers() -> Answers:
    """Return the answers that the runs of this process share."""
    if sum(map(len, _kept.values())) >= MOST_KEPT:
        _kept.clear()
    return _kept


class ShapeRules:
    """Torch's shape rules with a memory.

    Args:
        fake: the mode that the rules run in.
        answers: where answers are kept; None to run torch's rule for every operation.
    """

    def __init__(self, fake: FakeTensorMode, answers: Answers | None) -> None:
        self._fake = fake
        self._answers = answers
        self._attributes: dict[torch.device, dict[str, Any]] = {}
        self._guard_data_pointer = (
            torch._C._set_warn_deprecated_on_mutable_data_ptr
            if fake._allow_unsafe_data_ptr_access
            else torch._C._set_throw_on_mutable_data_ptr
        )

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what ``func`` returns; whatever torch's rule raises passes through."""
        answers = self._answers_for(func)
        inputs: list[FakeTensor] = []
        signature = self._signature(args, kwargs, inputs) if answers is not None else None
        if answers is None or signature is None:
            return self._fake.dispatch(func, (), args, kwargs)
        answer = answers.get(signature)
        if answer is not None:
            return self._repeat(answer, inputs)
        if signature in answers:
            return self._fake.dispatch(func, (), args, kwargs)
        sizes = _storage_sizes(inputs)
        out = self._fake.dispatch(func, (), args, kwargs)
        unchanged = _storage_sizes(inputs) == sizes and self._signature(args, kwargs, []) == signature
        answers[signature] = self._answer(out, inputs) if unchanged else None
        return out

    # Signatures -------------------------------------------------------------------------------------------------

    def _answers_for(self, func: Any) -> dict[Signature, Answer | None] | None:
        """Return the answers of ``func`` so far, or None to keep none."""
        if self._answers is None:
            return None
        answers = self._answers.get(func)
        if answers is None and _settled_by_signature(func):
            answers = self._answers[func] = {}
        return answers

    def _signature(self, args: Sequence[Any], kwargs: Mapping[str, Any], inputs: list[FakeTensor]) -> Signature | None:
        """Return all that the result may depend on, and append the tensors to ``inputs``; None where there is more."""
        key: list[Any] = [torch.is_inference_mode_enabled(), torch.get_default_dtype(), *kwargs]
        if not (self._describe(args, key, inputs) and self._describe(kwargs.values(), key, inputs)):
            return None
        first_at: dict[int, int] = {}
        for index, tensor in enumerate(inputs):
            first = first_at.setdefault(id(tensor), index)
            if first != index:
                key += (first, index)  # one tensor given twice, as to an operation that writes over its input
        return tuple(key)

    def _describe(self, values: Iterable[Any], key: list[Any], inputs: list[FakeTensor]) -> bool:
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.constant is not None or value.fake_mode is not self._fake:
                    return False
                inputs.append(value)
                key.append(_metadata(value))
            elif kind in PLAIN_VALUES:
                key += (kind, value)  # with the type, for 1 == 1.0 == True
            elif kind is list or kind is tuple:
                key += (kind, len(value))
                if not self._describe(value, key, inputs):
                    return False
            else:
                return False
        return True

    # Repeating --------------------------------------------------------------------------------------------------

    def _repeat(self, answer: Answer, inputs: Sequence[FakeTensor]) -> Any:
        made = [self._made(output, inputs) for output in answer.outputs]
        return answer.container(made) if answer.container is not None else made[0]

    def _made(self, output: Output, inputs: Sequence[FakeTensor]) -> FakeTensor | int | float | None:
        if isinstance(output, Fresh):
            meta = torch.empty_strided(output.size, output.stride, dtype=output.dtype, device=META)
            return self._faked(meta, output.device)
        if isinstance(output, View):
            source = inputs[output.source]
            with in_kernel_invocation_manager(self._fake):
                meta = torch.as_strided(source, output.size, output.stride, source.storage_offset() + output.beyond)
            return self._faked(meta, source.fake_device)
        return inputs[output.source] if isinstance(output, Same) else output.value

    def _faked(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """Return what ``FakeTensor(mode, meta, device)`` returns, in a third of the time."""
        attributes = self._attributes.get(device)
        if attributes is None:
            attributes = self._attributes[device] = dict(vars(FakeTensor(self._fake, meta, device)))
        fake = torch.Tensor._make_subclass(
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
        )
        self._guard_data_pointer(fake)
        vars(fake).update(attributes)
        return fake

    # Learning ---------------------------------------------------------------------------------------------------

    def _answer(self, out: Any, inputs: Sequence[FakeTensor]) -> Answer | None:
        """Return how to make ``out`` again, None where a copy would not be the same in every respect."""
        container = next((kind for kind in (list, tuple) if isinstance(out, kind)), None)
        values = out if container is not None else (out,)
        outputs: list[Output] = []
        born: set[int] = set()
        for value in values:
            output = self._output(value, inputs)
            if output is None:
                return None
            if isinstance(output, Fresh):
                storage = value.untyped_storage()._cdata
                if storage in born:
                    return None
                born.add(storage)
            outputs.append(output)
        return Answer(tuple(outputs), container)

    def _output(self, value: Any, inputs: Sequence[FakeTensor]) -> Output | None:
        """Return what ``value`` is to ``inputs``; None where the signature does not tell."""
        if type(value) in {type(None), bool, int, float}:
            return Plain(value)
        if type(value) is not FakeTensor:
            return None
        for index, tensor in enumerate(inputs):
            if tensor is value:
                return Same(index)
        storage = value.untyped_storage()._cdata
        bases = {id(tensor): i for i, tensor in enumerate(inputs) if tensor.untyped_storage()._cdata == storage}
        size, stride = tuple(value.shape), value.stride()
        output: Fresh | View
        if not bases:
            output = Fresh(size, stride, value.dtype, value.fake_device)
        elif len(bases) == 1:
            (base,) = bases.values()
            output = View(base, size, stride, int(value.storage_offset() - inputs[base].storage_offset()))
        else:
            return None
        return output if _alike(self._made(output, inputs), value) else None


def _settled_by_signature(func: Any) -> bool:
    return func.namespace in RULES_OF_TORCH and func is not PLACED_BY_STORAGE and UNSETTLED.isdisjoint(func.tags)


def _metadata(tensor: FakeTensor) -> tuple[Any, ...]:
    """Return what a shape rule looks at; the dispatch keys tell conjugate, negative, sparse and the like.

    Where in its storage a tensor begins is not looked at, but by ``as_strided``: parameters that are views of one
    buffer would each have a signature of its own.
    """
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.fake_device,
        torch._C._dispatch_keys(tensor).raw_repr(),
    )


def _storage_sizes(tensors: Iterable[FakeTensor]) -> list[int]:
    return [tensor.untyped_storage().nbytes() for tensor in tensors]


def _alike(first: Any, second: FakeTensor) -> bool:
    return (
        _metadata(first) == _metadata(second)
        and first.storage_offset() == second.storage_offset()
        and first.untyped_storage().nbytes() == second.untyped_storage().nbytes()
        and first.requires_grad == second.requires_grad
        and vars(first) == vars(second)
    )
