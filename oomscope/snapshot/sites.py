"""Lines of code that allocate, and which line of a stack stands for it: the innermost one of the user's own code.

Snapshots come from other machines, so a frame is judged by its path alone: C++ frames, torch itself and what it
generates, Python's own library, libraries that only pass calls on, and oomscope's measuring code are passed over. A
stack without any Python frame, such as those of autograd's own threads, is named by the operation that its C++ frames
tell of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from oomscope.printable import one_line

NAME_LENGTH: Final = 240
"""Characters of a name that a report shows: C++ functions have long ones, and a file can hold any."""


class Frame(NamedTuple):
    """One line of a stack."""

    filename: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} {self.name}"


Stack = tuple[Frame, ...]
"""Frames of a stack, innermost first, as in PyTorch's snapshots."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A line of code that allocates."""

    file: str
    line: int
    function: str
    module: str = ""
    """Dotted module path where known."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}" if self.file else self.function

    @property
    def brief(self) -> str:
        """``…/model/mlp.py:88 forward``; of a place without a file, such as an operator, its name.

        One line, whatever the snapshot holds.
        """
        function = brief_name(self.function)
        return f"{brief_name(short_path(self.file))}:{self.line} {function}" if self.file else function


def brief_name(name: str) -> str:
    """Return a name out of a snapshot without breaks of lines and columns, the middle of a very long one left out."""
    half = NAME_LENGTH // 2
    short = name if len(name) <= NAME_LENGTH else f"{name[:half]}…{name[-half:]}"
    return one_line(short)


def short_path(path: str) -> str:
    """Return the last three components of ``path``: enough to recognise a file in a table."""
    pieces = path.split("/")
    return path if len(pieces) <= 3 else "/".join(["…", *pieces[-3:]])


def over_layers(module: str) -> str:
    """Return one name for the equal modules of a list: ``layers.*.mlp`` for ``layers.3.mlp``."""
    return ".".join("*" if part.isdigit() else part for part in brief_name(module).split("."))


@dataclass(frozen=True, kw_only=True)
class SiteBytes:
    """Requested bytes of one site, by category."""

    site: Site
    bytes: int
    count: int
    """Number of blocks."""
    category: str


_NOT_USER_CODE: Final = re.compile(
    r"""
      ^<                                                    # <frozen importlib>, <string>
    | (^|/) (site|dist)-packages/ torch (_npu|gen|ao)? /    # an installed torch
    | (^|/) torch/ (_|amp/|autograd/|cuda/|distributed/|func|fx/|nn/|optim/|overrides|storage|tensor|utils/|xpu/)
    | /lib(64)?/python3(\.\d+)?/ (?! (site|dist)-packages/ )  # Python's own library
    | (^|/) torchinductor_ [^/]* /                        # code that torch.compile generates
    | (^|/) (site|dist)-packages/ (triton|einops|opt_einsum|jaxtyping|typeguard|beartype) /
    | (^|/) oomscope/probe/
    """,
    re.VERBOSE,
)


_CPP_OPERATIONS: Final = (
    (re.compile(r"torch::autograd::generated::(\w+?)(?:_apply_functional|::apply)?\("), "{} (autograd, C++)"),
    (re.compile(r"torch::autograd::(AccumulateGrad)\b"), "{} (autograd, C++)"),
    (re.compile(r"at::_ops::(\w+)::call"), "{} (operator, C++)"),
)
"""Nodes as torch/csrc/autograd/generated/Functions.h names them, operators as ATen/ops does."""


_MEASURING: Final = re.compile(r"(^|/)oomscope/(probe|capture)/")
"""Code of oomscope that runs inside the program that is measured."""


def is_measuring(frame: Frame) -> bool:
    """Return whether a frame is oomscope's own, between the program and PyTorch."""
    return bool(_MEASURING.search(frame.filename))


def is_python(frame: Frame) -> bool:
    """Return whether a frame is Python's; C++ frames have no file (``??``) or a C++ one."""
    return frame.filename.endswith(".py") or frame.filename.startswith("<")


def is_user_code(frame: Frame) -> bool:
    """Return whether a frame is Python code outside torch, Python's library and oomscope's probe."""
    return is_python(frame) and not _NOT_USER_CODE.search(frame.filename)


def user_frame(stack: Stack) -> Frame | None:
    """Return the innermost frame of user code; without one the innermost Python frame, then the innermost at all."""
    for wanted in (is_user_code, is_python):
        for frame in stack:
            if wanted(frame):
                return frame
    return stack[0] if stack else None


def site_of(stack: Stack, module: str = "") -> Site | None:
    """Return the site that stands for ``stack``; None where the stack is empty."""
    frame = user_frame(stack)
    if frame is None:
        return None
    if not is_python(frame):
        return Site(file="", line=0, function=_operation(stack), module=module)
    return Site(file=frame.filename, line=frame.line, function=frame.name, module=module)


def _operation(stack: Stack) -> str:
    """Return what C++ frames show: the node of autograd's graph, else the operator, else the innermost function."""
    for pattern, template in _CPP_OPERATIONS:
        for frame in stack:
            if found := pattern.search(frame.name):
                return template.format(found[1])
    return f"{stack[0].name} (C++)"
