"""The library as it is built from the project's sources: what leaves it, and what it needs."""

from __future__ import annotations

import re

import pytest

from oomscope.virtual.build import platform_tag
from oomscope.virtual.elf import Elf, read_elf
from oomscope.virtual.installed_torch import find_torch, requirements_of
from oomscope.virtual.loading import LIBRARIES
from oomscope.virtual.sonames import CARD, SONAMES, file_of

pytestmark = pytest.mark.skipif(not (LIBRARIES / CARD).is_file(), reason="the virtual card is not built")
INTERFACE = re.compile(
    r"(cu|cuda|cublas|cublasLt|cudnn|cufft|cupti|curand|cusolver|cusparse|cusparseLt|nvml|nvrtc|nvJitLink|nvtx|nccl)"
    r"[A-Z]\w*|cuFile\w+|cudss\w+|nvshmem\w+|__cuda[A-Z]\w+|oomscope_card_\w+"
)


@pytest.fixture(scope="module")
def library() -> Elf:
    return read_elf(LIBRARIES / CARD, exports=True)


def test_it_needs_the_c_library_alone(library: Elf) -> None:
    assert library.soname == CARD
    assert platform_tag(LIBRARIES / CARD).startswith("manylinux_2_")
    assert not [symbol for symbol in library.wanted if INTERFACE.fullmatch(symbol.name)]


def test_it_has_all_that_the_installed_torch_wants(library: Elf) -> None:
    torch = find_torch()
    if torch is None or torch.cuda is None:
        pytest.skip("torch is built without CUDA")
    wants = requirements_of(torch)
    assert len(wants.symbols) > 500
    assert wants.unmet(SONAMES, library.exported) == ()


@pytest.mark.parametrize("soname", SONAMES)
def test_an_empty_library_has_its_name_and_needs_the_card_beside_it(soname: str) -> None:
    elf = read_elf(LIBRARIES / file_of(soname), exports=True)
    assert (elf.soname, elf.needed, elf.search_path) == (soname, (CARD,), ("$ORIGIN",))
    assert not {name for name in elf.exported if INTERFACE.fullmatch(name)}
    assert (LIBRARIES / file_of(soname)).stat().st_size < 32 * 1024
