"""Lets a program that runs in a clone import the clone's code, where its Python would find the user's checkout.

An editable installation (``pip install -e .``) and an absolute folder on ``PYTHONPATH`` name the user's checkout,
whatever commit a search has laid out. So each Python process of the program replaces such folders by those of the
clone, before anything is imported. What was imported from the user's checkout all the same is told at the end, and so
is what a program in any checkout imported from an installed copy.

Every Python process of the program pays for what is imported here, hence no pathlib.
"""

# ruff: noqa: PTH100, PTH113, PTH118, PTH206, PTH208
from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from oomscope.probe.job import CheckoutTarget

_VARIABLE: Final = "OOMSCOPE_CHECKOUT"
"""The checkout that is measured; then, if it is a clone, the spellings of the user's, one a line."""
_INSTALLED: Final = ("site-packages", "dist-packages")


def variables(target: CheckoutTarget) -> dict[str, str]:
    """Return the variable by which the processes of a program find the checkout that is measured."""
    origin = target.origin
    spellings = dict.fromkeys((os.path.abspath(origin), os.path.realpath(origin)) if origin else ())
    return {_VARIABLE: "\n".join((os.path.abspath(target.repo), *spellings))}


def words_in_clone(words: Sequence[str], target: CheckoutTarget) -> list[str]:
    """Return the words of a command with the clone's paths in place of the user's, where the clone has them."""
    checkout = _Checkout.of(variables(target))
    return list(words) if checkout is None else [checkout.word(word) for word in words]


def arm_from_environment() -> None:
    """Replace the folders of the user's checkout from which this process would import, if it runs in a clone."""
    checkout = _Checkout.of(os.environ)
    if checkout is None:
        return
    sys.path[:] = [checkout.found(entry) for entry in sys.path]
    for mapping in _redirections():
        mapping.update({name: checkout.found(path) for name, path in mapping.items() if isinstance(path, str)})


def imported_from_checkout() -> tuple[str, str] | None:
    """Return the name and the file of a module that is the user's, not the clone's; None where there is none."""
    checkout = _Checkout.of(os.environ)
    if checkout is None:
        return None
    files = ((name, getattr(module, "__file__", None)) for name, module in sorted(sys.modules.items()))
    return next(((name, file) for name, file in files if isinstance(file, str) and checkout.moved(file)), None)


def imported_from_copies() -> list[str]:
    """Return one note for each top-level module that the checkout has and that was imported from an installed copy."""
    checkout = _Checkout.of(os.environ)
    if checkout is None:
        return []
    found = []
    for folder, name in checkout.modules():
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and any(f"{os.sep}{part}{os.sep}" in file for part in _INSTALLED):
            remedy = f"begin the command with env PYTHONPATH={folder} if the checkout's is meant"
            found.append(f"{name} was imported from an installed copy ({file}), not from the checkout: {remedy}")
    return found


class _Checkout:
    """The checkout that is measured, and the user's where this is a clone that stands for it."""

    def __init__(self, place: str, origins: Sequence[str]) -> None:
        self.place, self._origins = place, origins

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> _Checkout | None:
        place, *origins = environment.get(_VARIABLE, "").split("\n")
        return cls(place, origins) if place else None

    def moved(self, path: str) -> str | None:
        """Return where the clone would have what lies at ``path`` in the user's checkout.

        None for all else, such as what is installed in an environment inside the checkout.
        """
        installed = (sys.prefix, sys.base_prefix, self.place)
        if any(_is_below(path, place) for place in installed) or any(part in path.split(os.sep) for part in _INSTALLED):
            return None
        inside = next((path[len(origin) :] for origin in self._origins if _is_below(path, origin)), None)
        return None if inside is None else f"{self.place}{inside}"

    def found(self, path: str) -> str:
        """Return the clone's path in place of the user's, if the clone has it; else ``path``."""
        moved = self.moved(path)
        return path if moved is None or not _exists(moved) else moved

    def word(self, word: str) -> str:
        """Return a word of a command with the clone's path for the user's, such as ``--config=/checkout/a.yaml``."""
        option, equals, value = word.partition("=")
        return f"{option}={self.found(value)}" if equals else self.found(word)

    def modules(self) -> Iterator[tuple[str, str]]:
        """Yield the folders, from the clone's root, and the names of its top-level modules."""
        for folder in (".", "src"):
            try:
                names = sorted(os.listdir(os.path.join(self.place, folder)))
            except OSError:
                continue
            for name in names:
                if name.endswith(".py") or os.path.isfile(os.path.join(self.place, folder, name, "__init__.py")):
                    yield folder, name.removesuffix(".py")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}{os.sep}")


def _exists(path: str) -> bool:
    """Whether there is such a file or folder; a finder may name a module without its suffix."""
    return os.path.lexists(path) or os.path.lexists(f"{path}.py")


def _redirections() -> Iterator[dict[str, Any]]:
    """Yield the tables by which editable installations find modules: those of setuptools, and of ``editables``."""
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__") and isinstance(mapping := getattr(module, "MAPPING", None), dict):
            yield mapping
    finder = getattr(sys.modules.get("editables.redirector"), "RedirectingFinder", None)
    if isinstance(mapping := getattr(finder, "_redirections", None), dict):
        yield mapping
