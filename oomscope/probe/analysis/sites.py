"""Which line of a stack a person wants to read: the innermost one of the code that is being measured.

For the bundled transformer that is ``oomscope/model``. For a harness it is the checkout first, then the harness
file, then whatever is no library; ahead of them what the job itself puts first on the path, such as other versions of
packages. Paths are given as they read in any checkout, so that lines of two commits,
cloned to different places, are the same line.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import oomscope
from oomscope.probe.job import CheckoutTarget, ProbeJob
from oomscope.probe.result import Site
from oomscope.snapshot.sites import over_layers
from oomscope.snapshot.trace import Frame, Stack

_PACKAGE = Path(oomscope.__file__).resolve().parent
_PYTHON_SUFFIX = ".py"


@dataclass(frozen=True)
class SiteRule:
    """Chooses the frame that stands for a stack.

    Args:
        preferred: paths of files or directories (ending in ``/``), most wanted first.
        hidden: paths whose frames are never chosen while there is another Python frame.
        names: path prefixes that are cut from file names, with what replaces them; longest first.
    """

    preferred: tuple[str, ...]
    hidden: tuple[str, ...]
    names: tuple[tuple[str, str], ...]

    def frame_of(self, stack: Stack) -> Frame | None:
        """Return the innermost frame under the first preferred path that the stack passes through.

        Without one: the innermost Python frame that is not hidden, else the innermost frame, else None.
        """
        preferred = self.preferred_frame(stack)
        if preferred is not None:
            return preferred
        python = [frame for frame in stack if frame.filename.endswith(_PYTHON_SUFFIX)]
        shown = [frame for frame in python if not frame.filename.startswith(self.hidden)]
        return next(iter([*shown, *python, *stack]), None)

    def preferred_frame(self, stack: Stack) -> Frame | None:
        """Return the innermost frame under the first preferred path that the stack passes through; None without one."""
        for root in self.preferred:
            libraries = tuple(path for path in self.hidden if path.startswith(root))  # an environment in the checkout
            for frame in stack:
                if frame.filename.startswith(root) and not frame.filename.startswith(libraries):
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
        for prefix, replacement in self.names:
            if filename.startswith(prefix):
                return replacement + filename.removeprefix(prefix)
        return filename


def site_rule(job: ProbeJob) -> SiteRule:
    """Return the rule for the code that ``job`` measures."""
    libraries = tuple(dict.fromkeys(_library_directories()))
    hidden = (*libraries, _directory(_PACKAGE / "probe"), str(_PACKAGE / "model" / "autograd.py"), "<")
    names = [(directory, "") for directory in libraries] + [(_directory(_PACKAGE.parent), "")]
    if not isinstance(job.target, CheckoutTarget):
        preferred: tuple[str, ...] = (_directory(_PACKAGE / "model"),)
    else:
        checkout = _both_spellings(Path(job.target.repo))
        outside = [spelling for file in job.target.outside for spelling in _both_spellings(Path(file))]
        varied = [_directory(path) for path in _first_on_path(job)]
        preferred = (*varied, *(_directory(path) for path in checkout), *map(str, outside))
        hidden = (*hidden, *(f"{directory}torch/" for directory in varied))
        names = [(directory, "") for directory in preferred[: len(varied) + len(checkout)]] + names
        names += [(_directory(path.parent), "") for path in outside]
    return SiteRule(preferred, hidden, tuple(sorted(names, key=lambda row: -len(row[0]))))


def _first_on_path(job: ProbeJob) -> tuple[Path, ...]:
    """Return the folder that ``job`` itself puts first on Python's path, in both spellings; nothing without one."""
    first = (job.environment.get("PYTHONPATH") or "").partition(os.pathsep)[0]
    return _both_spellings(Path(first)) if first else ()


def _library_directories() -> Iterator[str]:
    """Yield the directories of installed packages and of Python's own library."""
    paths = sysconfig.get_paths()
    for key in ("purelib", "platlib", "stdlib", "platstdlib"):
        if key in paths:
            yield from (_directory(path) for path in _both_spellings(Path(paths[key])))
    yield from (_directory(Path(entry)) for entry in sys.path if Path(entry).name == "site-packages")


def _both_spellings(path: Path) -> tuple[Path, ...]:
    """Return ``path`` as given and with symbolic links followed: frames may hold either."""
    return tuple(dict.fromkeys((path.absolute(), path.resolve())))


def _directory(path: Path) -> str:
    return f"{path}/"
