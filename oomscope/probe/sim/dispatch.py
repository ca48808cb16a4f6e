"""Sees every operation on the simulated device: computes its shapes, and has its storages served.

A dispatch mode sits below autograd. Operations that touch the simulated device (or pinned host memory) are run on
fake tensors; everything else, the program's own arithmetic on the host, is run for real. Views and in-place
operations bring no new storage and so allocate nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import UnsupportedOperatorException as UnsupportedOperator
from torch.utils._python_dispatch import TorchDispatchMode

from oomscope.probe.sim import node_streams, parity, standins
from oomscope.probe.sim.autograd import ENGINE_CODE, BackwardGuard
from oomscope.probe.sim.backend import DEVICE_TYPE
from oomscope.probe.sim.fills import HostFills
from oomscope.probe.sim.host import HostMemory
from oomscope.probe.sim.inplace import IN_PLACE_TWINS, can_accumulate, only_owner
from oomscope.probe.sim.memory import SimMemory
from oomscope.probe.sim.origins import Origins
from oomscope.probe.sim.position import Origin, Position
from oomscope.probe.sim.refusals import refuse_cuda, unsupported
from oomscope.probe.sim.shapes import ShapeRules, kept_answers
from oomscope.probe.sim.temporaries import BY_OP, GEMMS, Card, cublas_workspace_bytes
from oomscope.probe.sim.unseen import seen
from oomscope.snapshot.trace import Category

aten = torch.ops.aten

PLAIN_TYPES: Final = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor}
PINNED_FACTORIES: Final = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.zeros.default,
    aten.zeros_like.default,
    aten.full.default,
    aten.rand.default,
    aten.randn.default,
}
DEVICE_QUERY: Final = torch.ops.prim.device.default
"""Where torch asks for the device of a fake tensor; it does so more often than for all operations together."""

FAKE_MODE: Final = torch._C._TorchDispatchModeKey.FAKE

TORCHS_OWN: Final = {"aten", "prims", "c10d", "_c10d_functional"}
"""Namespaces whose errors are the program's; in others they mean a custom kernel without a shape rule."""

IN_PLACE_COLLECTIVES: Final = {torch.ops.c10d.allreduce_, torch.ops.c10d.broadcast_, torch.ops.c10d.send}
"""Collectives whose tensors are the program's own data before and after."""

FSDP_OUTPUTS: Final = {"split_with_sizes_copy": Category.PARAMETER, "chunk_cat": Category.COMMUNICATION}
"""What the operations of torch's FSDP2 write into."""

OWN_RULES: Final = {**standins.SIZED_BY_DATA, **parity.KERNELS}
"""Operations whose outputs are made by a rule of ours instead of torch's shape rule."""


class Call(NamedTuple):
    """One operation on its way through the mode."""

    func: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    origin: Origin
    forward: int
    """In backward: the stack of the forward operation behind it; else 0."""
    from_engine: bool
    """The autograd engine itself calls, not Python code that runs inside backward."""


class SimMode(TorchDispatchMode):
    """Runs operations without data and feeds the memory.

    Args:
        memory: serves device storages.
        host: accounts for host storages.
        position: where the program is.
        guard: keeps errors that must not cross the autograd engine.
        card: what the formulas of op temporaries depend on.
        op_temporaries: whether kernels' temporaries and cuBLAS workspaces are allocated.
        remember_shapes: whether what a shape rule returned is kept for the next operation of the same signature.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(
        self,
        memory: SimMemory,
        host: HostMemory,
        position: Position,
        guard: BackwardGuard,
        card: Card,
        *,
        op_temporaries: bool,
        remember_shapes: bool,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory
        self._host = host
        self._fills = HostFills()
        self._position = position
        self._guard = guard
        self._card = card
        self._op_temporaries = op_temporaries
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._rules = ShapeRules(self._fake, kept_answers() if remember_shapes else None)
        self._origins = Origins(position, guard)
        self._workspaces: set[tuple[bool, int]] = set()
        self._overflow_flags: set[int] = set()
        self.reads: dict[int, int] = {}
        """How often each stack, by its id in the trace, was given a stand-in for data."""
        self._special: dict[Any, Callable[[Call], Any]] = {
            aten._local_scalar_dense.default: self._read_scalar,
            aten.record_stream.default: self._record_stream,
            aten._pin_memory.default: self._pin,
            aten.is_pinned.default: self._is_pinned,
            aten.copy_.default: self._copy_into,
            aten._to_copy.default: self._to_copy,
            aten.add.Tensor: self._add,
            **dict.fromkeys(IN_PLACE_TWINS, self._accumulate_into_fresh),
            aten.index.Tensor: self._index,
            aten._amp_foreach_non_finite_check_and_unscale_.default: self._check_overflow,
        }

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        if func is DEVICE_QUERY and type(args[0]) is FakeTensor:
            return self._device_of(args[0], sys._getframe(1))
        kwargs = kwargs or {}
        concerned = False
        for kind in types:
            if kind is FakeTensor:
                concerned = True
            elif kind not in PLAIN_TYPES:
                return NotImplemented
        if torch._C._get_dispatch_mode(FAKE_MODE) is not None:
            return func(*args, **kwargs)  # torch itself works out shapes, as DTensor does for its sharding
        if not concerned and not self._asks_for_device(func, kwargs):
            return self._fills.run(func, args, kwargs)
        frame = sys._getframe(1)
        if frame.f_code is not ENGINE_CODE:
            return self._run(func, args, kwargs, frame, from_engine=False)
        if self._guard.stopping:
            return self._guard.keep(RuntimeError("stopping"))
        try:
            return self._run(func, args, kwargs, frame, from_engine=True)
        except BaseException as error:  # noqa: BLE001 - nothing may cross the engine
            return self._guard.keep(error)

    def forget_graph(self) -> None:
        """Drop what is known of autograd nodes; called between iterations."""
        self._origins.forget()

    # One operation ----------------------------------------------------------------------------------------------

    def _asks_for_device(self, func: Any, kwargs: dict[str, Any]) -> bool:
        device = kwargs.get("device")
        if device is not None:
            if device.type == DEVICE_TYPE:
                return True
            if device.type == "cuda":
                refuse_cuda()
        return bool(kwargs.get("pin_memory")) or func is aten._pin_memory.default

    def _device_of(self, tensor: FakeTensor, frame: FrameType) -> torch.device:
        if frame.f_code is not ENGINE_CODE:
            self._origins.note(frame)
        return tensor.fake_device

    def _run(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], frame: FrameType, *, from_engine: bool
    ) -> Any:
        origin, forward = self._origins.locate(frame, from_engine=from_engine)
        call = Call(func, args, kwargs, origin, forward, from_engine)
        return self._special.get(func, self._compute)(call)

    def _compute(self, call: Call, category: Category | None = None) -> Any:
        func, args, kwargs = call.func, call.args, call.kwargs
        if kwargs.get("pin_memory"):
            return self._make_pinned(call)
        written_out = OWN_RULES.get(func)
        if written_out is not None:
            if func in standins.SIZED_BY_DATA:
                self._note_read(call)
            with self._fake:
                out = written_out(*args, **kwargs)
        else:
            out = self._shapes(func, args, kwargs)
        self._adopt(out, call, category or self._category(func))
        if func.namespace == "c10d":
            self._mark_received(func, args)
        elif func.namespace == "fsdp":
            self._mark_gathered(func, kwargs)
        if self._op_temporaries:
            self._temporaries(call)
        return out

    def _shapes(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return self._rules.run(func, args, kwargs)
        except (DynamicOutputShapeException, UnsupportedOperator, NotImplementedError) as error:
            raise unsupported(func, error) from error
        except RuntimeError as error:
            if func.namespace in TORCHS_OWN:
                raise
            raise unsupported(func, error) from error

    def _adopt(self, out: Any, call: Call, category: Category) -> None:
        if isinstance(out, FakeTensor):
            if out.fake_device.type == DEVICE_TYPE:
                self._memory.adopt(out.untyped_storage(), call.origin, category, forward=call.forward)
            elif out.fake_device.type == "cpu":
                self._host.adopt(out.untyped_storage())
        elif isinstance(out, (tuple, list)):
            for item in out:
                self._adopt(item, call, category)

    def _category(self, func: Any) -> Category:
        phase = self._position.moment.phase
        if func.namespace == "c10d":
            return Category.COMMUNICATION
        if phase == "init":
            return Category.UNKNOWN
        if phase == "backward" and torch.is_grad_enabled():
            return Category.ACTIVATION
        return Category.TEMPORARY

    def _mark_received(self, func: Any, args: Sequence[Any]) -> None:
        """Call what a collective writes into a communication buffer; what it changes in place keeps its purpose."""
        if func.overloadpacket in IN_PLACE_COLLECTIVES:
            return
        for tensor in _tensors(args[0]):
            if isinstance(tensor, FakeTensor) and tensor.fake_device.type == DEVICE_TYPE:
                tenant = self._memory.tenant_of(tensor.untyped_storage())
                if tenant is not None and tenant.category is Category.TEMPORARY:
                    self._memory.relabel(tenant, Category.COMMUNICATION)

    def _mark_gathered(self, func: Any, kwargs: dict[str, Any]) -> None:
        """Call what FSDP2 copies out of an all-gather parameters, and what it sends off gradients communication.

        Source: PyTorch torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, which defines these operations.
        """
        category = FSDP_OUTPUTS.get(func.overloadpacket.__name__)
        if category is not None:
            for tensor in _tensors(kwargs.get("out")):
                self._memory.label(tensor.untyped_storage(), category)

    def _temporaries(self, call: Call) -> None:
        if call.func in GEMMS:
            owner = (self._guard.active, call.origin.stream)
            if owner not in self._workspaces:
                self._workspaces.add(owner)
                self._memory.serve(
                    cublas_workspace_bytes(self._card), call.origin, Category.WORKSPACE, forward=call.forward
                )
        row = BY_OP.get(call.func)
        if row is not None:
            self._borrow(call, ((nbytes, row.category) for nbytes in row.sizes(call.args, self._card)))

    def _borrow(self, call: Call, sizes: Iterable[tuple[int, Category]]) -> None:
        with self._memory.borrowed(sizes, call.origin, forward=call.forward):
            pass

    # Operations with a rule of their own ------------------------------------------------------------------------

    def _read_scalar(self, call: Call) -> Any:
        self._memory.synchronize(call.origin.stream)
        tensor = call.args[0]
        if tensor.untyped_storage()._cdata in self._overflow_flags:
            return 0.0
        self._note_read(call)
        return standins.scalar(tensor)

    def _check_overflow(self, call: Call) -> Any:
        """Find no overflow in scaled gradients, so that a ``GradScaler`` lets the optimizer step."""
        self._overflow_flags.add(call.args[1].untyped_storage()._cdata)
        return self._compute(call)

    def _note_read(self, call: Call) -> None:
        self.reads[call.origin.stack] = self.reads.get(call.origin.stack, 0) + 1

    def _record_stream(self, call: Call) -> None:
        tensor, stream = call.args
        self._memory.record_stream(tensor.untyped_storage(), stream.stream_id)

    def _copy_into(self, call: Call) -> Any:
        target, source = call.args[0], call.args[1]
        if not isinstance(target, FakeTensor):
            self._memory.synchronize(call.origin.stream)
            return target
        if not isinstance(source, FakeTensor):
            call = call._replace(args=(target, self._fake.from_tensor(source), *call.args[2:]))
        return self._compute(call)

    def _to_copy(self, call: Call) -> Any:
        source = call.args[0]
        from_host = source.device.type == "cpu"
        if not isinstance(source, FakeTensor):
            call = call._replace(args=(self._fake.from_tensor(source), *call.args[1:]))
        to_device = (call.kwargs.get("device") or source.device).type
        if from_host and to_device == DEVICE_TYPE:
            in_backward = self._position.moment.phase == "backward"
            return self._compute(call, Category.ACTIVATION if in_backward else Category.INPUT)
        if not from_host and to_device == "cpu" and not call.kwargs.get("non_blocking"):
            self._memory.synchronize(call.origin.stream)
        return self._compute(call)

    def _add(self, call: Call) -> Any:
        """Sum gradients in place where CUDA does: the engine's buffer is the first operand's only owner.

        Under any dispatch mode the engine sums out of place. Source: PyTorch
        torch/csrc/autograd/input_buffer.cpp, ``can_accumulate_inplace``.
        """
        if call.from_engine and not call.kwargs and not torch.is_grad_enabled() and can_accumulate(*call.args[:2]):
            self._compute(call._replace(func=aten.add_.Tensor))
            return call.args[0]
        return self._compute(call)

    def _accumulate_into_fresh(self, call: Call) -> Any:
        """Write into the zeros that a backward formula has just made for it, as on CUDA."""
        target = call.args[0]
        if call.from_engine and not torch.is_grad_enabled() and only_owner(target):
            self._compute(call._replace(func=IN_PLACE_TWINS[call.func]))
            return target
        return self._compute(call)

    def _index(self, call: Call) -> Any:
        masks = [index for index in call.args[1] if index is not None and index.dtype in {torch.bool, torch.uint8}]
        if not masks:
            return self._compute(call)
        self._note_read(call)
        with self._fake:
            out = standins.boolean_index(*call.args)
        self._borrow(call, [(mask.numel() * mask.dim() * 8, Category.TEMPORARY) for mask in masks])
        self._adopt(out, call, self._category(call.func))
        return out

    # Pinned host memory -----------------------------------------------------------------------------------------

    def _make_pinned(self, call: Call) -> Any:
        if call.func not in PINNED_FACTORIES:
            raise unsupported(call.func, NotImplementedError("pin_memory=True"))
        host = {**call.kwargs, "pin_memory": False, "device": torch.device("cpu")}
        out = self._shapes(call.func, call.args, host)
        self._host.adopt(out.untyped_storage(), pinned=True)
        return out

    def _pin(self, call: Call) -> Any:
        tensor = call.args[0]
        if not isinstance(tensor, FakeTensor):
            tensor = self._fake.from_tensor(tensor)
        elif self._host.is_pinned(tensor.untyped_storage()):
            return tensor
        return self._make_pinned(call._replace(func=aten.empty_like.default, args=(tensor,), kwargs={}))

    def _is_pinned(self, call: Call) -> bool:
        return self._host.is_pinned(call.args[0].untyped_storage())

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Push the mode, and have what a dispatch mode does not see reach the memory as well."""
        with (
            seen(self._memory, self._host, self._position, self._fake),
            self._fills.installed(),
            node_streams.told(self._origins),
            self,
        ):
            yield


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _tensors(item)
