"""Leaves checkpoints as they are while a program runs on a virtual card, which computes no values to save.

A program that saves ``last.pt`` would put meaningless numbers in the place of trained weights. So what would overwrite,
rename or remove a checkpoint from before the run does nothing, from the first use of the card on. What the program
saves under a new name is there until the run has ended, and is removed then: a program that resumes from its last
checkpoint does the same in each run, and no training resumes from what a probe left.

No file from before is moved or copied, so none is lost, whenever a process is killed.
"""

# ruff: noqa: PTH100, PTH108, PTH111, PTH120, PTH113, PTH116, PTH118 - called whenever the program opens a file
from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import shutil
import stat
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from oomscope.capture.arming import AroundImport
from oomscope.probe.recording.compiled import untraced

_SUFFIXES: Final = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", "/.metadata")
_CACHES: Final = ("XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "HF_HUB_CACHE")
_SAFETENSORS: Final = "safetensors.torch"


class Saved(NamedTuple):
    """A file that a program saved under a new name."""

    path: str
    device: int
    inode: int


class _Function:
    """Stands for a function of Python's, which is no method where a class has it as an attribute."""

    def __init__(self, function: Callable[..., Any], original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._function = untraced(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class Checkpoints:
    """The checkpoints of one process of a program.

    Args:
        began: when the run began (``time.time()``); what was last written before that, is from before.
        on_change: called when there is something new to report.
    """

    def __init__(self, began: float, on_change: Callable[[], None]) -> None:
        self._began = began
        self._on_change = on_change
        self._is_active = False
        self._saved: dict[str, Saved] = {}
        self.left: list[str] = []
        """Files and folders from before that the program would have changed."""

    @property
    def saved(self) -> list[Saved]:
        """New files that the program saved."""
        return list(self._saved.values())

    def follow(self, torch: Any) -> None:
        """Stand between the program and ``torch.save`` and safetensors, which write outside of Python."""
        torch.save = torch.serialization.save = self._saving(torch.save, "f")

        def follow_safetensors() -> None:
            module: Any = sys.modules[_SAFETENSORS]
            module.save_file = self._saving(module.save_file, "filename")

        if _SAFETENSORS in sys.modules:
            follow_safetensors()
        else:
            AroundImport(_SAFETENSORS, then=follow_safetensors).install()

    def begin(self) -> None:
        """Leave checkpoints as they are from now on: what was saved earlier does not depend on the card."""
        if self._is_active:
            return
        self._is_active = True
        builtins.open = io.open = self._opening(io.open)
        for name in ("rename", "replace"):
            setattr(os, name, self._renaming(getattr(os, name)))
        for name in ("remove", "unlink"):
            setattr(os, name, self._removing(getattr(os, name)))
        shutil.rmtree = self._removing_tree(shutil.rmtree)  # type: ignore[assignment]

    # What takes the place of Python's functions ---------------------------------------------------------------

    def _saving(self, save: Callable[..., Any], name: str) -> _Function:
        """Return a stand-in for ``save(what, where)``; ``name`` is that of its second parameter."""

        def saving(*args: Any, **kwargs: Any) -> Any:
            where = args[1] if len(args) > 1 else kwargs.get(name)
            if not self._is_active or not isinstance(where, str | os.PathLike):
                return save(*args, **kwargs)
            if self._leaves(where, any_name=True):
                return None
            result = save(*args, **kwargs)
            self._add(where)
            return result

        return _Function(saving, save)

    def _opening(self, original: Callable[..., Any]) -> _Function:
        def opening(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
            if not (isinstance(mode, str) and "w" in mode and _is_checkpoint(file)):
                return original(file, mode, *args, **kwargs)
            if self._leaves(file):
                return original(_nameless(os.path.dirname(os.path.realpath(file))), mode, *args, **kwargs)
            opened = original(file, mode, *args, **kwargs)
            self._add(file)
            return opened

        return _Function(opening, original)

    def _renaming(self, rename: Callable[..., Any]) -> _Function:
        def renaming(source: Any, target: Any, **folders: Any) -> None:
            if folders or not os.path.lexists(source):
                rename(source, target, **folders)
                return
            if self._leaves(source, is_link_itself=True):
                return
            if self._leaves(target, is_link_itself=True):
                if os.path.isfile(source) and os.lstat(source).st_mtime >= self._began:
                    os.unlink(source)  # which the program wrote, to have it there
                return
            before, after = os.path.realpath(source), os.path.abspath(os.fsdecode(target))
            rename(source, target)
            self._rename(before, os.path.realpath(after))
            if _is_checkpoint(target) and not self._is_old(after):
                self._add(after)

        return _Function(renaming, rename)

    def _removing(self, remove: Callable[..., Any]) -> _Function:
        def removing(path: Any, **folder: Any) -> None:
            if folder or not self._leaves(path, is_link_itself=True):
                remove(path, **folder)

        return _Function(removing, remove)

    def _removing_tree(self, remove: Callable[..., Any]) -> _Function:
        def removing(path: Any, *args: Any, **kwargs: Any) -> None:
            within = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
            if any(_is_checkpoint(each) and self._is_old(each) for each in within):
                self._leave(path)
            else:
                remove(path, *args, **kwargs)

        return _Function(removing, remove)

    # What is known of files -----------------------------------------------------------------------------------

    def _leaves(self, path: Any, *, any_name: bool = False, is_link_itself: bool = False) -> bool:
        """Return whether ``path`` is left as it is: a file from before, with the name of a checkpoint or any."""
        if not (any_name or _is_checkpoint(path)) or not self._is_old(path, is_link_itself=is_link_itself):
            return False
        self._leave(path)
        return True

    def _is_old(self, path: Any, *, is_link_itself: bool = False) -> bool:
        """Whether a file, or the link to it, is from before the run; a device such as ``/dev/null`` is none."""
        with contextlib.suppress(OSError):  # another process removes it
            status = os.lstat(path) if is_link_itself else os.stat(path)
            return os.path.isfile(path) and status.st_mtime < self._began
        return False

    def _leave(self, path: Any) -> None:
        name = os.path.abspath(os.fsdecode(path))
        if name not in self.left:
            self.left.append(name)
            self._on_change()

    def _add(self, path: Any) -> None:
        name = os.path.realpath(os.fsdecode(path))
        if name.startswith(_caches()):  # which it downloaded
            return
        with contextlib.suppress(OSError):  # it is gone already
            status = os.stat(name)
            saved = Saved(name, status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode) and self._saved.get(name) != saved:
                self._saved[name] = saved
                self._on_change()

    def _rename(self, before: str, after: str) -> None:
        """Follow saved files that were renamed, or a folder above them."""
        moved = [each for each in self._saved if each == before or each.startswith(f"{before}{os.sep}")]
        for path in moved:
            saved = self._saved.pop(path)
            name = after + path.removeprefix(before)
            self._saved[name] = saved._replace(path=name)
        if moved:
            self._on_change()


def _caches() -> tuple[str, ...]:
    """Return the folders in which libraries keep what they download."""
    named = (os.environ.get(name) for name in _CACHES)
    return tuple(f"{os.path.realpath(each)}{os.sep}" for each in (*named, os.path.expanduser("~/.cache")) if each)


def _nameless(folder: str) -> int | str:
    """Return a descriptor of a file without a name, for what would have been written in ``folder``."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:  # the file system has none
        return os.devnull


def _is_checkpoint(path: Any) -> bool:
    return isinstance(path, str | bytes | os.PathLike) and f"/{os.fsdecode(path)}".endswith(_SUFFIXES)
