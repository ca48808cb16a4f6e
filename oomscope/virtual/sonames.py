"""Names of the libraries of the virtual card: one holds all code, an empty one answers to each name that is asked for.

PyTorch's libraries need NVIDIA's by soname. An empty library of ours with that soname satisfies the dynamic loader; its
only content is the need for the card's library, so that ``dlsym`` on a handle of it finds the card's functions.
"""

from __future__ import annotations

CARD = "liboomscope_card.so"
"""Library with the code. Its soname must differ from NVIDIA's: glibc refuses unversioned symbols of a library that is
itself named in the version that is asked for."""

KEEPER = "liboomscope_startup.so"
"""Library preloaded into the processes of a program, so that they find oomscope (``startup.c``)."""


def _of_cuda(version: int, mathematics: int) -> tuple[str, ...]:
    """Return the sonames of a CUDA version, some of whose mathematical libraries count otherwise."""
    toolkit = ("cudart", "cublas", "cublasLt", "cupti", "nvJitLink", "nvrtc")
    others = ("cufft", "cusolver", "cusolverMg")
    return (*(f"lib{name}.so.{version}" for name in toolkit), *(f"lib{name}.so.{mathematics}" for name in others))


_OF_CUDA = {"12": _of_cuda(12, 11), "13": _of_cuda(13, 12)}
_OF_ANY = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libcudnn.so.9",
    "libcudss.so.0",
    "libcufile.so.0",
    "libcurand.so.10",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvshmem_host.so.3",
    "libnvToolsExt.so.1",
    # Parts of cuDNN, which extensions are linked with (TransformerEngine's).
    "libcudnn_adv.so.9",
    "libcudnn_cnn.so.9",
    "libcudnn_engines_precompiled.so.9",
    "libcudnn_engines_runtime_compiled.so.9",
    "libcudnn_graph.so.9",
    "libcudnn_heuristic.so.9",
    "libcudnn_ops.so.9",
    # Names that programs pass to dlopen without a version.
    "libcuda.so",
    "libcudart.so",
    "libcudnn.so",
    "libcupti.so",
    "libcurand.so",
    "libnvidia-ml.so",
    "libnvrtc.so",
)
SONAMES = (*_OF_ANY, *(soname for sonames in _OF_CUDA.values() for soname in sonames))
"""Libraries that builds of torch 2.4 to 2.15 and TransformerEngine need or load by name, and that pynvml and Triton
load."""


def sonames_for(cuda: str) -> tuple[str, ...]:
    """Return the sonames that a process has whose torch is built for the CUDA version ``cuda``.

    Those of another CUDA must not be there: cuDNN's frontend takes the first runtime that it finds in the process.
    """
    return (*_OF_ANY, *_OF_CUDA.get(cuda.partition(".")[0], ()))


def file_of(soname: str) -> str:
    """Return the file that carries ``soname``: the soname itself, but ``cudart`` for ``libcudart``.

    While ``/proc/self/maps`` names a ``libcudart.so``, ``import torch`` also maps every NVIDIA wheel that it finds
    (``torch/__init__.py``, ``_load_global_deps``). The loader goes by the soname, so the file may be called otherwise.
    """
    return soname.replace("libcudart", "cudart")


FILES = (CARD, KEEPER, *map(file_of, SONAMES))
"""All files that are built."""
