"""Lets a program that runs in a clone import the clone's code, where its Python would find the user's checkout.

An editable installation (``pip install -e .``) and an absolute folder on ``PYTHONPATH`` name the user's checkout,
whatever commit a search has laid out. So each Python process of the program replaces such folders by those of the
clone, before anything is imported. What was still imported from elsewhere is reported at the end.

A clone is one of ``git clone --shared``: git notes in it where the objects of the user's repository lie.
Every Python process of the program pays for what is imported here, hence no pathlib.
"""

# ruff: noqa: PTH100, PTH110, PTH112, PTH113, PTH117, PTH118, PTH119, PTH120, PTH122, PTH123, PTH206, PTH208
from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_VARIABLE: Final = "OOMSCOPE_CHECKOUT"
"""Variable with the checkout that is measured and, if it is a clone, the user's work trees, one a line."""
_INSTALLED: Final = ("site-packages", "dist-packages")
_EXTENSIONS: Final = (".so", ".pyd")
_SOURCES: Final = (".c", ".cc", ".cpp", ".cxx", ".cu", ".pyx")
_GIT: Final = ".git"


class Imported(NamedTuple):
    """Modules that a process imported from elsewhere than from the measured checkout."""

    replaced: str = ""
    """Module of the user's checkout, with its file, imported in place of the commit's. Empty for none."""
    notes: tuple[str, ...] = ()


def variables(checkout: str) -> dict[str, str]:
    """Return the variable by which the processes of a program find the checkout that is measured."""
    return {_VARIABLE: "\n".join((os.path.abspath(checkout), *_work_trees(checkout)))}


def words_in_clone(words: Sequence[str], checkout: str) -> list[str]:
    """Return the words of a command with the clone's paths in place of the user's, where the clone has them."""
    clone = _Checkout(os.path.abspath(checkout), _work_trees(checkout))
    return [clone.word(word) for word in words]


def is_clone(checkout: str) -> bool:
    """Whether a checkout is a clone that stands for a checkout of the user's."""
    return bool(_work_trees(checkout))


def arm_from_environment() -> None:
    """Replace the folders of the user's checkout from which this process would import, if it runs in a clone."""
    checkout = _Checkout.of(os.environ)
    if checkout is None or not checkout.origins:
        return
    sys.path[:] = [checkout.found(entry) if isinstance(entry, str) else entry for entry in sys.path]
    for mapping in _redirections():
        for name, paths in mapping.items():
            if isinstance(paths, str):
                mapping[name] = checkout.found(paths)
            elif isinstance(paths, list):
                paths[:] = map(checkout.found, paths)


def imported() -> Imported:
    """Return what this process imported from elsewhere."""
    checkout = _Checkout.of(os.environ)
    if checkout is None:
        return Imported()
    replaced, notes = "", []
    files = dict(_files_of_modules())
    for name, file in sorted(files.items()) if checkout.origins else ():
        moved = checkout.moved(file)
        if moved is None or _is_same(moved, file):
            continue
        if os.path.lexists(moved):
            replaced = replaced or f"{name} ({file})"
        else:
            notes.append(f"{name} was imported from your checkout ({file}), and the commit does not have it")
    for folder, name in checkout.modules():
        file = files.get(name, "") if name != "oomscope" else ""  # oomscope itself is never imported from a checkout
        if file and not checkout.has(file) and not _is_of_python(file) and checkout.moved(file) is None:
            remedy = f"if you mean the checkout's own {name}, begin the command with env PYTHONPATH={folder}"
            notes.append(f"{name} was imported from {file}, not from the checkout: {remedy}")
    for name in checkout.compiled() if checkout.origins else ():
        file = files.get(name, "")
        if _is_installed(file) and file.endswith(_EXTENSIONS):
            remedy = "bisect --setup 'python setup.py build_ext --inplace' builds it anew for each commit"
            notes.append(f"{name} was imported from {file}, the same build at every commit: {remedy}")
    return Imported(replaced, tuple(notes))


def _files_of_modules() -> Iterator[tuple[str, str]]:
    """Yield the names and files of imported modules, without attribute access: lazy modules would load, some raise."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType):
            file = ModuleType.__getattribute__(module, "__dict__").get("__file__")
            if isinstance(file, str):
                yield name, file


class _Checkout:
    """The checkout that is measured, and the user's work trees where this is a clone that stands for them."""

    def __init__(self, place: str, origins: Sequence[str]) -> None:
        self.place, self.origins = place, origins
        self._real: dict[str, str] = {}

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> _Checkout | None:
        place, *origins = environment.get(_VARIABLE, "").split("\n")
        return cls(place, origins) if place else None

    def has(self, path: str) -> bool:
        """Whether ``path`` lies in the checkout, and is not of an environment inside it."""
        return not _is_installed(path) and any(_is_below(each, self.place) for each in (path, self._resolved(path)))

    def moved(self, path: str) -> str | None:
        """Return where the clone would have what lies at ``path`` in the user's checkout.

        None for all else, such as what is installed in an environment inside the checkout.
        """
        if not self.origins or self.has(path) or _is_installed(path):
            return None
        for spelling in (path, self._resolved(path)):
            if any(_is_below(spelling, prefix) for prefix in (sys.prefix, sys.base_prefix)):
                return None
            for origin in self.origins:
                if _is_below(spelling, origin):
                    return f"{self.place}{spelling[len(origin) :]}"
        return None

    def found(self, path: str) -> str:
        """Return the clone's path in place of the user's, if the clone has it; else ``path``."""
        moved = self.moved(path)
        return path if moved is None or not _exists(moved) else moved

    def word(self, word: str) -> str:
        """Return a word of a command with the clone's path for the user's, such as ``--config=/checkout/a.yaml``."""
        option, equals, value = word.partition("=")
        return f"{option}={self.found(value)}" if equals and os.path.isabs(value) else self.found(word)

    def modules(self) -> Iterator[tuple[str, str]]:
        """Yield the folders, from the root, and the names of the checkout's top-level modules."""
        for folder, name in self._files():
            if name.endswith(".py") or os.path.isfile(os.path.join(self.place, folder, name, "__init__.py")):
                yield folder, name.removesuffix(".py")

    def compiled(self) -> Iterator[str]:
        """Yield the names of top-level modules that are compiled, as those of their sources tell them."""
        stems = (os.path.splitext(name) for _, name in self._files())
        yield from (stem for stem, suffix in stems if suffix in _SOURCES)

    def _files(self) -> Iterator[tuple[str, str]]:
        """Yield the files in the folders that hold top-level modules, with these folders."""
        for folder in (".", "src"):
            try:
                names = sorted(os.listdir(os.path.join(self.place, folder)))
            except OSError:
                continue
            yield from ((folder, name) for name in names)

    def _resolved(self, path: str) -> str:
        """Return an absolute path with its folder's symbolic links followed."""
        if not os.path.isabs(path):
            return path
        folder, name = os.path.split(path)
        if folder not in self._real:
            self._real[folder] = os.path.realpath(folder)
        return os.path.join(self._real[folder], name)


def _work_trees(checkout: str) -> list[str]:
    """Return the work trees of the repository whose objects a clone shares; none of a checkout of its own."""
    place = os.path.abspath(checkout)
    while not os.path.exists(os.path.join(place, _GIT)) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    objects = _first_line(os.path.join(place, _GIT, "objects", "info", "alternates"))
    if not os.path.isabs(objects):
        return []
    common = os.path.dirname(objects)
    found = [os.path.dirname(common)] if os.path.basename(common) == _GIT else []
    linked = os.path.join(common, "worktrees")
    names = sorted(os.listdir(linked)) if os.path.isdir(linked) else []
    trees = (_first_line(os.path.join(linked, name, "gitdir")) for name in names)
    found += [os.path.dirname(tree) for tree in trees if tree]
    return list(dict.fromkeys(spelling for each in found for spelling in (each, os.path.realpath(each))))


def _first_line(file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as text:
            return text.readline().rstrip("\n")
    except OSError:
        return ""


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}{os.sep}")


def _is_installed(path: str) -> bool:
    """Whether ``path`` lies in a folder of installed packages."""
    return any(part in path.split(os.sep) for part in _INSTALLED)


def _is_same(one: str, other: str) -> bool:
    """Whether two paths lead to one file, such as through a link of the clone to the user's checkout."""
    return os.path.realpath(one) == os.path.realpath(other)


def _is_of_python(file: str) -> bool:
    """Whether a module is of Python's own library."""
    return _is_below(file, os.path.dirname(os.__file__)) and not _is_installed(file)


def _exists(path: str) -> bool:
    """Whether there is such a file or folder; a finder may name a module without its suffix."""
    return os.path.lexists(path) or os.path.lexists(f"{path}.py")


def _redirections() -> Iterator[dict[str, Any]]:
    """Yield the tables by which editable installations find modules: those of setuptools, and of ``editables``."""
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            for table in ("MAPPING", "NAMESPACES"):
                if isinstance(mapping := getattr(module, table, None), dict):
                    yield mapping
    finder = getattr(sys.modules.get("editables.redirector"), "RedirectingFinder", None)
    if isinstance(mapping := getattr(finder, "_redirections", None), dict):
        yield mapping
