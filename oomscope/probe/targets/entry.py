"""Loads an entry: a function of the checkout itself, named ``pkg.module:function``, that builds the target.

It lies in each commit, so whatever is wrong with it is that commit's own fault. Only the text that names it is the
user's. A module of that name from elsewhere (an installed copy of the same project, say) would be measured in place of
every commit, and is refused.
"""

from __future__ import annotations

import importlib
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Final, cast

import oomscope
from oomscope.errors import TargetError
from oomscope.probe.job import EntryTarget
from oomscope.probe.targets.harness import HarnessError, Setup, place_of
from oomscope.probe.targets.importing import make_importable, takes_one_argument

_OPTION: Final = "--entry"
_ENTRY: Final = "see that it is there, from the root of the checkout or its src/"
_REMEDY: Final = "write pkg.module:function, as it is imported from the root of the checkout or its src/"
_SIGNATURE: Final = "define it as function(ctx: oomscope.Context) -> oomscope.Target"


def check_entry(entry: str) -> None:
    """Check the text that names an entry.

    Raises:
        HarnessError: it names none, or one of oomscope's own.
    """
    module, colon, function = entry.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
        raise HarnessError(f"{entry!r} is not an entry", where=_OPTION, remedy=_REMEDY)
    if module.partition(".")[0] == oomscope.__name__:
        raise HarnessError(
            f"{entry!r} is in oomscope, which is never taken from the checkout",
            where=_OPTION,
            remedy="run the checkout's own oomscope with --command",
        )


def load_entry(target: EntryTarget) -> Setup:
    """Return the function that ``target`` names, with the checkout made importable.

    Whatever the checkout raises while being imported passes through.

    Raises:
        HarnessError: the text names no entry, or there is no such checkout.
        TargetError: the checkout has no such folder, module or function, or it cannot be called with ``ctx`` alone.
    """
    check_entry(target.entry)
    place = place_of(target)
    make_importable(place)
    module, _, path = target.entry.partition(":")
    try:
        function = reduce(getattr, path.split("."), cast("object", _imported(module, place)))
    except AttributeError:
        raise TargetError(f"the module has no {path}", where=module, remedy=_SIGNATURE) from None
    if not callable(function) or not takes_one_argument(function):
        raise TargetError(f"{path} cannot be called with ctx alone", where=module, remedy=_SIGNATURE)
    return cast("Setup", function)


def _imported(name: str, place: Path) -> ModuleType:
    """Return the module ``name`` of the checkout."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that the module imports
        raise TargetError(f"the checkout has no module {error.name}", where=name, remedy=_ENTRY) from None
    origin = getattr(module, "__file__", None)
    if origin is None or not Path(origin).resolve().is_relative_to(place.resolve()):
        found = f"it was found at {origin}" if origin else "it is not a module with a file"
        raise TargetError(f"the checkout has no such module: {found}", where=name, remedy=_ENTRY)
    return module
