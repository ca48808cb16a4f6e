"""What a device does for the model: whether it computes, scratch memory that stays, streams beside the computation,
and what Transformer Engine's kernels hold beside the tensors of the model.

Transformer Engine's matrix products have a cuBLAS workspace of their own, and below Hopper its attention is
flash-attn's, which wants the batch first: queries, keys, values and the output are copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from oomscope import virtual
from oomscope.config.schema import Config, FlashKernels
from oomscope.model.base.observer import Observer
from oomscope.units import KiB, MiB

HOPPER = (9, 0)
GROUPED_GEMM_STREAMS = 4
"""Streams of grouped products, each with a workspace (common/util/multi_stream.cpp, nvte_get_num_compute_streams)."""
OVERLAP_STREAMS = 3
"""Streams of products that overlap with communication (pytorch/cpp_extensions/gemm.py, _NUM_MAX_UB_STREAMS)."""


def computes(device: torch.device) -> bool:
    """Whether tensors on ``device`` have values: not on ``meta`` and on a virtual card.

    Where they have none, writing them into memory that is there already may be left out: no memory moves.
    """
    return device.type == "cpu" or (device.type == "cuda" and not virtual.is_loaded())


class MemoryBuffer:
    """The scratch memory of one rank; what a user wrote is gone when the next one comes."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._flat: torch.Tensor | None = None

    def take(self, shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return ``shape`` of the memory, with whatever it holds."""
        numel = torch.Size(shape).numel()
        if self._flat is None or self._flat.numel() < numel:
            self._flat = torch.empty(numel, dtype=dtype, device=device)
            self._observer.role("workspace", [self._flat])
        return self._flat[:numel].view(shape)


class CommunicationStream:
    """A stream beside the computation; on the CPU there is none."""

    def __init__(self, device: torch.device) -> None:
        self._module: Any = None if device.type in ("cpu", "meta") else torch.get_device_module(device)
        self._stream: Any = None if self._module is None else self._module.Stream(device=device)

    def behind_computation(self) -> AbstractContextManager[Any]:
        """Run what is inside on this stream, after what the current one has queued."""
        if self._module is None:
            return nullcontext()
        self._stream.wait_stream(self._module.current_stream())
        return self._module.stream(self._stream)  # type: ignore[no-any-return]

    def join(self) -> None:
        """Let what the current stream does from now on come after this stream's work."""
        if self._module is not None:
            self._module.current_stream().wait_stream(self._stream)


class SideStream(CommunicationStream):
    """Copies between device and pinned memory that run beside the computation; on the CPU, plain copies."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._computes = computes(device)

    def copy(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        """Copy each (target, source) after what the current stream has queued; return an event, None on the CPU."""
        with self.behind_computation():
            for target, source in pairs:
                self._move(target, source, non_blocking=True)
        return None if self._stream is None else self._stream.record_event()

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Copy at once, and return ``target``."""
        self._move(target, source, non_blocking=False)
        return target

    def wait(self, event: Any) -> None:
        """Let what the current stream does from now on come after ``event``."""
        if self._module is not None and event is not None:
            self._module.current_stream().wait_event(event)

    def finish(self, event: Any) -> None:
        """Let the host wait for ``event``."""
        if event is not None:
            event.synchronize()

    def pinned(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Return host memory, pinned where there is a device to copy from."""
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=self._module is not None)

    def keep_for_copies(self, tensor: torch.Tensor) -> None:
        """Keep the block of ``tensor`` from being reused before this stream's copies of it are done."""
        if self._stream is not None:
            tensor.record_stream(self._stream)

    def _move(self, target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool) -> None:
        """Copy; where there are no values, only what takes memory on the way, a change of dtype or of layout.

        On the way to the host the device makes that change, unless the host waits for it (PyTorch
        aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda): nothing is read back.
        """
        is_plain = source.dtype == target.dtype and source.is_contiguous() and target.is_contiguous()
        if self._computes or (source.device.type == "cpu" and not is_plain):
            target.copy_(source, non_blocking=non_blocking)
        elif non_blocking:
            source.to(target.dtype).contiguous()


def capability(device: torch.device) -> tuple[int, int] | None:
    """Return the compute capability of ``device``, None where it is no GPU."""
    if device.type in {"cpu", "meta"}:
        return None
    major, minor = torch.get_device_module(device).get_device_capability(device)
    return int(major), int(minor)


def takes_flash_attn(card: tuple[int, int] | None, kernels: FlashKernels = "auto") -> bool:
    """Whether attention that keeps no scores is flash-attn's on ``card``, and not cuDNN's.

    Of the two cuDNN's is preferred from Hopper on; below, flash-attn's wherever it is installed, as in NVIDIA's
    containers (pytorch/attention/dot_product_attention/utils.py, get_attention_backend). ``attention_backend`` rules
    out the other by NVTE_FLASH_ATTN and NVTE_FUSED_ATTN (Megatron-Core models/common/language_module/
    language_module.py, _set_attention_backend); flash is taken for FlashAttention 2 on every card.
    """
    if card is None or kernels == "fused":
        return False
    return kernels == "flash" or card < HOPPER


def workspaces(config: Config, device: torch.device) -> list[torch.Tensor]:
    """Return the cuBLAS workspaces, which the first products make and which are never freed.

    32 MiB and 1 KiB from Hopper on, else 4 MiB; grouped experts have further ones, one for each of their streams, and
    products that overlap with communication one more, as large as their streams need together
    (pytorch/cpp_extensions/gemm.py, get_cublas_workspace). Routers multiply by Transformer Engine among local layers
    too, unless in fp64 (Megatron-Core transformer/moe/moe_utils.py, RouterGatingLinearFunction).
    """
    card, model = capability(device), config.model
    experts = model.num_moe_experts is not None
    routed = experts and model.moe_router_dtype != "fp64"
    if card is None or not (routed or model.transformer_impl == "transformer_engine"):
        return []
    nbytes = 32 * MiB + KiB if card >= HOPPER else 4 * MiB
    sizes = [nbytes] * (1 + (GROUPED_GEMM_STREAMS if experts and model.moe_grouped_gemm else 0))
    if config.parallel.tp_comm_overlap and config.parallel.tensor_model_parallel_size > 1:
        sizes.append(nbytes * OVERLAP_STREAMS)
    return [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
