"""Undoes what a program does to checkpoints while it runs on a virtual card, which computes no values to save.

A program that saves ``last.pt`` would put meaningless numbers in the place of trained weights, and one that resumes
from ``last.pt`` would do something else in a second run. So each of its processes keeps what it is about to replace or
remove beside it, under another name; after each run the probe puts that back and removes what is new.

Looked after are the files that ``torch.save`` and safetensors write, and those with the usual suffixes that Python
opens, renames or removes, from the first use of the card on: what a program prepares before that is no result of it.
"""

# ruff: noqa: PTH100, PTH105, PTH116, PTH113, PTH114, PTH115, PTH118, PTH120, PTH123 - called for each event
from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from oomscope.capture.arming import AroundImport

LOG: Final = "checkpoints.jsonl"
"""The file of a run's folder that says what is kept where, a line each; it is written before anything is done."""
_SUFFIXES: Final = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", "/.metadata")
_KEPT: Final = ".oomscope"
"""How the names end under which something is kept; what comes before tells its name, and which was kept first."""
_SAFETENSORS: Final = "safetensors.torch"


class Checkpoints:
    """What one process of a program does to checkpoints.

    Args:
        folder: the run's, which takes the log; what lies in it is not looked after.
    """

    def __init__(self, folder: str) -> None:
        self._log = os.path.join(folder, LOG)
        self._handled = {os.path.realpath(folder)}
        """What is in the log, and so is all below it."""
        self._new_folders: set[str] = set()
        self._state = threading.local()
        self._began = 0.0
        self._on: dict[str, Callable[..., None]] = {
            "open": self._opens,
            "os.rename": self._renames,
            "os.remove": self._removes,
            "os.link": self._links,
            "os.symlink": lambda source, target, folder: self._links(source, target, -1, folder),
            "os.mkdir": self._makes_folder,
            "shutil.rmtree": self._removes_tree,
        }
        """By the names of Python's audit events."""

    def follow(self, torch: Any) -> None:
        """Be told where ``torch.save`` and safetensors write, of which no audit event tells."""
        torch.save = self._followed(torch.save, "f")

        def follow_safetensors() -> None:
            module: Any = sys.modules[_SAFETENSORS]
            module.save_file = self._followed(module.save_file, "filename")

        if _SAFETENSORS in sys.modules:
            follow_safetensors()
        else:
            AroundImport(_SAFETENSORS, then=follow_safetensors).install()

    def begin(self) -> None:
        """Look after checkpoints from now on, until the process ends."""
        if not self._began:
            self._began = time.time()
            sys.addaudithook(self._heard)

    def _followed(self, save: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return ``save(what, where)``; ``name`` is that of its second parameter."""

        @functools.wraps(save)
        def followed(*args: Any, **kwargs: Any) -> Any:
            where = args[1] if len(args) > 1 else kwargs.get(name)
            if self._began and isinstance(where, str | os.PathLike):
                with self._unheard():
                    self._writes(os.path.realpath(where), truncates=True)
            return save(*args, **kwargs)

        return followed

    # What the program is about to do --------------------------------------------------------------------------

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        act = self._on.get(event)
        if act is not None and not getattr(self._state, "is_unheard", False):
            with self._unheard():
                act(*args)

    @contextmanager
    def _unheard(self) -> Iterator[None]:
        """Do not hear what is done inside, and let none of its errors reach the program."""
        self._state.is_unheard = True
        try:
            with contextlib.suppress(Exception):
                yield
        finally:
            self._state.is_unheard = False

    def _opens(self, path: Any, _: Any, flags: Any) -> None:
        if flags & (os.O_WRONLY | os.O_RDWR):
            written = os.path.realpath(_text(path))
            if written in self._handled or _is_checkpoint(path):
                self._writes(written, truncates=bool(flags & os.O_TRUNC))

    def _renames(self, source: Any, target: Any, source_folder: int, target_folder: int) -> None:
        before, after = _place(source, source_folder), _place(target, target_folder)
        if before in self._new_folders:
            self._new_folders.add(after)
            self._add(after)
        elif before in self._handled or _is_checkpoint(before) or _is_checkpoint(after):
            if _is_checkpoint(before) or os.lstat(before).st_mtime < self._began:  # else it has just been written
                self._replaces(before)
            self._replaces(after)

    def _links(self, _: Any, target: Any, __: int, folder: int) -> None:
        if _is_checkpoint(target):
            self._replaces(_place(target, folder))

    def _removes(self, path: Any, folder: int) -> None:
        if _is_checkpoint(path):
            self._replaces(_place(path, folder))

    def _makes_folder(self, path: Any, _: Any, folder: int) -> None:
        made = _place(path, folder)
        if not os.path.lexists(made):
            self._new_folders.add(made)

    def _removes_tree(self, path: Any, folder: int | None = None) -> None:
        removed = _place(path, -1 if folder is None else folder)
        names = (name for _, _, files in os.walk(removed) for name in files)
        if not self._is_handled(removed) and any(_is_checkpoint(name) or name.endswith(_KEPT) for name in names):
            shutil.copytree(removed, self._add(removed, keep=True), symlinks=True, copy_function=_link)

    # What is done first ---------------------------------------------------------------------------------------

    def _writes(self, path: str, *, truncates: bool) -> None:
        """Keep the file at ``path``, which will be written to."""
        if self._is_handled(path):
            if os.path.isfile(path) and os.stat(path).st_nlink > 1:  # what is kept may be the same file
                _separate(path)
        elif not os.path.lexists(path):
            self._is_new(path)
        elif os.path.isfile(path):
            keep = os.rename if truncates else shutil.copy2  # it makes another
            keep(path, self._add(path, keep=True))

    def _replaces(self, path: str) -> None:
        """Keep the file at ``path``, which will lose its name."""
        if self._is_handled(path):
            return
        if not os.path.lexists(path):
            self._is_new(path)
        elif os.path.isfile(path) or os.path.islink(path):
            _link(path, self._add(path, keep=True))

    def _is_new(self, path: str) -> None:
        """Note a file to be removed, with its folder if that is new as well: the rest of a checkpoint is in there."""
        folder = os.path.dirname(path)
        self._add(folder if folder in self._new_folders else path)

    def _is_handled(self, path: str) -> bool:
        while path not in self._handled:
            path, below = os.path.dirname(path), path
            if path == below:
                return False
        return True

    def _add(self, path: str, *, keep: bool = False) -> str:
        """Write ``path`` into the log, and return where to keep what is there; an empty text for what is new."""
        self._handled.add(path)
        folder, name = os.path.split(path)
        kept = os.path.join(folder, f".{name}.{time.time_ns()}{_KEPT}") if keep else ""
        with open(self._log, "a") as log:
            log.write(json.dumps({"path": path, "kept": kept}) + "\n")
        return kept


def put_back(folder: Path, working: Path) -> tuple[str, ...]:
    """Undo what the processes of a run did to checkpoints, of which none may be left, and return notes on it.

    Args:
        folder: the run's.
        working: the folder that the program ran in.
    """
    log = folder / LOG
    if not log.is_file():
        return ()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in reversed(lines):
        with contextlib.suppress(OSError):  # what is kept stays where it is
            _put_back(Path(line["path"]), Path(line["kept"]) if line["kept"] else None)
    log.unlink()
    left = [line["kept"] for line in lines if line["kept"] and os.path.lexists(line["kept"])]
    paths = list(dict.fromkeys(Path(line["path"]) for line in lines))
    shown = [str(path.relative_to(working)) if path.is_relative_to(working) else str(path) for path in paths]
    named = ", ".join(shown[:2]) + (f" and {len(shown) - 2} more" if len(shown) > 2 else "")
    undone = f"checkpoints that the program wrote or removed are as they were before the run ({named})"
    notes = [f"{undone}: a virtual card computes no values to save"]
    return (*notes, *(f"a checkpoint could not be put back, and is in {each}" for each in left))


def _put_back(path: Path, kept: Path | None) -> None:
    if kept is None:
        _remove(path)
    elif os.path.lexists(kept):  # else the process was killed before it did anything
        path.parent.mkdir(parents=True, exist_ok=True)
        place = _of_another_probe(path, kept) or path
        _remove(place)
        kept.replace(place)


def _of_another_probe(path: Path, kept: Path) -> Path | None:
    """Return where a probe that still runs keeps what the program of this one wrote, which it will put back."""
    names = sorted(each.name for each in path.parent.iterdir() if each.name.startswith(f".{path.name}."))
    return next((path.with_name(name) for name in names if name.endswith(_KEPT) and name > kept.name), None)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link(source: str, target: str) -> None:
    """Give a file a second name, or copy it where the file system has no second names."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _separate(path: str) -> None:
    """Make a file that has several names one of its own under this name."""
    copy = f"{path}.{time.time_ns()}{_KEPT}"
    shutil.copy2(path, copy)
    os.replace(copy, path)


def _is_checkpoint(path: Any) -> bool:
    return f"/{_text(path)}".endswith(_SUFFIXES)


def _text(path: Any) -> str:
    """Return a path as text; an empty one for a descriptor."""
    return "" if isinstance(path, int) else os.fsdecode(path)


def _place(path: Any, folder: int) -> str:
    """Return the absolute path that a call names, relative to an open folder where it has one (not -1)."""
    text = _text(path)
    if folder >= 0:
        text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    parent, name = os.path.split(os.path.abspath(text))
    return os.path.join(os.path.realpath(parent), name)
