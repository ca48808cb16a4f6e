"""Which line of a stack a person wants to read: the innermost one of the code that is being measured.

For the bundled transformer that is ``oomscope/model``. For a harness it is the checkout first, then the harness
file, then whatever is no library; ahead of them what the job itself puts first on the path, such as other versions of
packages. Paths are given as they read in any checkout, so that lines of two commits,
cloned to different places, are the same line.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import oomscope
from oomscope.probe.job import CheckoutTarget, ProbeJob
from oomscope.probe.result import Site
from oomscope.snapshot.sites import is_python, is_user_code, over_layers
from oomscope.snapshot.trace import Frame, Stack

_PACKAGE = Path(oomscope.__file__).resolve().parent
_LIBRARY: Final = re.compile(
    r"(^|.*/)(lib(64)?/python3(\.\d+t?)?/)?(site|dist)-packages/|.*/lib(64)?/python3(\.\d+t?)?/"
)
"""Packages and Python's library of an environment: the program's (it may lie in the checkout) or oomscope's."""

_OF_NOTEBOOK: Final = re.compile(r".*/ipykernel_\d+/(?=\d+\.py$)")
"""File of a notebook's cell: a hash of its code, in a folder with the number of the process."""


@dataclass(frozen=True)
class SiteRule:
    """Chooses the frame that stands for a stack.

    Args:
        preferred: paths of files or directories (ending in ``/``), most wanted first.
        hidden: paths whose frames are never chosen while there is another of the user's code or of a package.
        names: path prefixes that are cut from file names, with what replaces them; longest first.
        start: the folder in which the code begins; a relative name, as ``runpy.run_path("train.py")`` gives, is of a
            file there, if that exists.
    """

    preferred: tuple[str, ...]
    hidden: tuple[str, ...]
    names: tuple[tuple[str, str], ...]
    start: str = ""

    def frame_of(self, stack: Stack) -> Frame | None:
        """Return the innermost frame under the first preferred path that the stack passes through.

        Without one: the innermost frame outside packages, else outside torch, else of Python, else the innermost.
        """
        preferred = self.preferred_frame(stack)
        if preferred is not None:
            return preferred
        shown = [frame for frame in stack if is_user_code(frame) and not frame.filename.startswith(self.hidden)]
        own = [frame for frame in shown if not _LIBRARY.match(frame.filename)]
        python = [frame for frame in stack if is_python(frame)]
        return next(iter([*own, *shown, *python, *stack]), None)

    def preferred_frame(self, stack: Stack) -> Frame | None:
        """Return the innermost frame under the first preferred path that the stack passes through; None without one."""
        for root in self.preferred:
            for frame in stack:
                path = self._whole(frame.filename)
                below = path.removeprefix(root)
                if below != path and not path.startswith(self.hidden) and not _LIBRARY.match(below):
                    return frame
        return None

    def site_of(self, stack: Stack, module: str = "") -> Site | None:
        """Return the site that stands for ``stack``, None where the stack is empty."""
        frame = self.frame_of(stack)
        if frame is None:
            return None
        return Site(file=self.name_of(frame.filename), line=frame.line, function=frame.name, module=module)

    def group_of(self, stack: Stack, module: str = "") -> Site | None:
        """Return :meth:`site_of`, with one name for the modules of a list: ``layers.*.mlp`` for ``layers.3.mlp``.

        In a table the same line of eighty equal layers is one row.
        """
        return self.site_of(stack, over_layers(module))

    def name_of(self, filename: str) -> str:
        """Return ``filename`` as it reads in any checkout."""
        filename = self._whole(filename)
        for prefix, replacement in self.names:
            if filename.startswith(prefix):
                filename = replacement + filename.removeprefix(prefix)
                break
        if _OF_NOTEBOOK.match(filename):
            return _OF_NOTEBOOK.sub("ipykernel/", filename)
        library = _LIBRARY.match(filename)
        return filename[library.end() :] if library else filename

    def _whole(self, filename: str) -> str:
        """Return the path of a file that has a relative name; ``filename`` where there is no such file."""
        if not self.start or filename.startswith("/") or not filename.endswith(".py"):
            return filename
        path = os.path.normpath(Path(self.start, filename))
        return path if Path(path).is_file() else filename


def site_rule(job: ProbeJob) -> SiteRule:
    """Return the rule for the code that ``job`` measures."""
    hidden: tuple[str, ...] = (_directory(_PACKAGE / "probe"), str(_PACKAGE / "model" / "autograd.py"))
    names, start = [(_directory(_PACKAGE.parent), "")], ""
    if not isinstance(job.target, CheckoutTarget):
        preferred: tuple[str, ...] = (_directory(_PACKAGE / "model"),)
    else:
        checkout, start = _both_spellings(Path(job.target.repo)), str(job.target.place.absolute())
        outside = [spelling for file in job.target.outside for spelling in _both_spellings(Path(file))]
        varied = [_directory(path) for path in _first_on_path(job)]
        preferred = (*varied, *(_directory(path) for path in checkout), *map(str, outside))
        hidden = (*hidden, *(f"{directory}torch/" for directory in varied))
        names = [(directory, "") for directory in preferred[: len(varied) + len(checkout)]] + names
        names += [(_directory(path.parent), "") for path in outside]
    return SiteRule(preferred, hidden, tuple(sorted(names, key=lambda row: -len(row[0]))), start)


def _first_on_path(job: ProbeJob) -> tuple[Path, ...]:
    """Return the folder that ``job`` itself puts first on Python's path, in both spellings; nothing without one."""
    first = (job.environment.get("PYTHONPATH") or "").partition(os.pathsep)[0]
    return _both_spellings(Path(first)) if first else ()


def _both_spellings(path: Path) -> tuple[Path, ...]:
    """Return ``path`` as given and with symbolic links followed: frames may hold either."""
    return tuple(dict.fromkeys((path.absolute(), path.resolve())))


def _directory(path: Path) -> str:
    return f"{path}/"
