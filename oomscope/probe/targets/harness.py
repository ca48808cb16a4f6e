"""Loads what builds a target from a checkout: a harness file outside it, or an entry, a function inside it.

The checkout (and its ``src/``) comes first on ``sys.path``; the harness itself is loaded from wherever it lies,
under a name that no import statement can produce, so that it never shadows a module of the checkout. Its own folder
comes last: a module beside it can be imported, unless the checkout or an installed package has one of that name.

An entry (``pkg.module:function``) lies in each commit, so whatever is wrong with it is that commit's own fault. An
installed module of that name would be measured in place of every commit, and is refused.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import reduce
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Final, cast

import oomscope
from oomscope.errors import InputError, TargetError
from oomscope.printable import quoted
from oomscope.probe.job import CheckoutTarget, EntryTarget, HarnessTarget
from oomscope.probe.recording.settings import listed
from oomscope.probe.targets.context import Context, Target
from oomscope.probe.targets.importing import forget_modules, make_importable, takes_one_argument

Setup = Callable[[Context], object]
"""The function that a harness defines; :func:`build_target` checks what it returns."""

_MODULE = "<oomscope harness>"
_SETUP_REMEDY = "define setup(ctx: oomscope.Context) -> oomscope.Target"
_ENTRY: Final = "see that it is there, from the root of the checkout or its src/"
_SIGNATURE: Final = "define it as function(ctx: oomscope.Context) -> oomscope.Target"


class HarnessError(InputError):
    """The harness or entry cannot drive any code, whatever is under test.

    A file that is no Python or has no ``setup(ctx)``, a text that is not an entry, or one that is no command.
    """


def check_harness(path: Path) -> None:
    """Read the harness file without running any of it.

    Raises:
        HarnessError: there is no such file, or it is no Python.
    """
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "no such harness file"
        raise HarnessError(what, where=str(path), remedy="give --harness the path of a Python file")
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f"{path}:{error.lineno}" if error.lineno else str(path)
        raise HarnessError(f"{type(error).__name__}: {error.msg}", where=place, remedy="fix the harness") from None
    except (OSError, ValueError) as error:
        raise HarnessError(f"cannot be read: {error}", where=str(path), remedy="give a Python file") from None


def harness_files(path: Path) -> list[Path]:
    """Return the harness and the modules beside it that its import statements reach.

    Of a package beside it all modules are returned. What is imported by other means is not found.
    """
    found: dict[Path, None] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found[file] = None
            waiting.extend(_imported_beside(path.parent, file))
    return list(found)


def place_of(target: CheckoutTarget) -> Path:
    """Return the folder of the checkout that is measured.

    Raises:
        HarnessError: there is no such checkout.
        TargetError: the checkout has no such folder.
    """
    if not Path(target.repo).is_dir():
        raise HarnessError("no such checkout", where=target.repo, remedy="give --repo the directory of the checkout")
    if not target.place.is_dir():
        remedy = "begin where it has it: the folder is the one that --repo names"
        raise TargetError("the checkout has no such folder", where=target.folder, remedy=remedy)
    return target.place


def load_setup(target: HarnessTarget) -> Setup:
    """Return the ``setup`` function of the harness file, with the checkout made importable.

    Whatever the harness or the checkout raises while being imported passes through.

    Raises:
        HarnessError: there is no such file or no such checkout, or the file defines no ``setup(ctx)``.
        TargetError: see :func:`place_of`.
    """
    path = Path(target.harness)
    check_harness(path)
    make_importable(place_of(target), path.parent)
    setup = getattr(_load(path), "setup", None)
    if not callable(setup):
        raise HarnessError("the harness defines no function setup", where=str(path), remedy=_SETUP_REMEDY)
    if not takes_one_argument(setup):
        raise HarnessError("setup cannot be called with ctx alone", where=str(path), remedy=_SETUP_REMEDY)
    return cast("Setup", setup)


def check_entry(entry: str) -> None:
    """Check the text that names an entry.

    Raises:
        HarnessError: it names none, or one of oomscope's own.
    """
    module, colon, function = entry.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
        raise HarnessError(
            f"{quoted(entry)} is not an entry", where="--entry", remedy=f"write pkg.module:function; {_ENTRY}"
        )
    if module.partition(".")[0] == oomscope.__name__:
        raise HarnessError(
            f"{quoted(entry)} is in oomscope, which is never imported from the checkout",
            where="--entry",
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


def build_target(setup: Setup, context: Context, *, where: str) -> Target:
    """Call ``setup`` and check what it returns; a bare callable counts as ``Target(step)``.

    Args:
        setup: a harness's function, or an entry.
        context: passed to it.
        where: the harness or entry, for messages.

    Raises:
        TargetError: it returned no target, or one whose step, model or optimizer is none.
    """
    returned = setup(context)
    target = Target(returned) if callable(returned) else returned
    if not isinstance(target, Target):
        raise TargetError(
            f"setup returned {_kind(target)}, not a target",
            where=where,
            remedy="return oomscope.Target(step, model=..., optimizer=...) where step() runs one iteration",
        )
    if not callable(target.step):
        raise TargetError(
            f"the step of the Target that setup returned is {_kind(target.step)}, not a function",
            where=where,
            remedy="give Target a function without arguments that runs one iteration: Target(step)",
        )
    if inspect.iscoroutinefunction(target.step) or inspect.isgeneratorfunction(target.step):
        raise TargetError(
            "calling the step that setup returned runs nothing: it is a generator or a coroutine",
            where=where,
            remedy="give Target a plain function that runs one iteration: Target(step)",
        )
    for name, attribute in (("model", "named_modules"), ("optimizer", "state")):  # their classes are the user's
        for each in listed(getattr(target, name)):
            if isinstance(each, type) or not hasattr(each, attribute):
                raise TargetError(
                    f"the {name} of the Target that setup returned is {_kind(each)}, not one {name} or a list of them",
                    where=where,
                    remedy=f"give Target(step, {name}=...) what torch trains with, or leave it out",
                )
    return target


def forget(target: CheckoutTarget) -> None:
    """Drop what was imported of the checkout and of what drives it, so that the next load starts afresh."""
    forget_modules(Path(target.repo), (file for path in target.outside for file in harness_files(Path(path))))


def _imported_beside(folder: Path, file: Path) -> Iterator[Path]:
    """Yield the files in ``folder`` that the import statements of ``file`` name."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return  # to import it will fail, and say why
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    for name in sorted({name.partition(".")[0] for name in names}):
        if (folder / f"{name}.py").is_file():
            yield folder / f"{name}.py"
        elif (folder / name).is_dir():
            yield from sorted((folder / name).rglob("*.py"))


def _load(path: Path) -> ModuleType:
    loader = SourceFileLoader(_MODULE, str(path))  # whatever the file's name ends in
    spec = ModuleSpec(_MODULE, loader, origin=str(path))
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[_MODULE]
        raise
    return module


def _kind(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    return "nothing" if value is None else f"an object of type {type(value).__name__}"
