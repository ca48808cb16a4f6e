"""Refuses a search whose target no end has: the name is a slip, and every probe would say the same.

A configuration is a path, which git knows. An entry is a function, which only running the commit would show for sure;
but where no file of its module's name lies in the commit, or the file does not write the function's name anywhere,
there is none. In doubt it counts as there: behind links and submodules, in compiled modules, in files that bind names
by other means, and in commits that are repaired or built.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from oomscope.bisect.targets.preparation import Preparation
from oomscope.bisect.targets.subjects import ConfigInRepo, OwnCode, path_in_repo
from oomscope.bisect.vcs.commits import Commit
from oomscope.bisect.vcs.git import reading
from oomscope.bisect.vcs.repository import Repository
from oomscope.errors import GitError, UsageError
from oomscope.probe.job import EntryTarget

if TYPE_CHECKING:
    import git

_ROOTS: Final = ((), ("src",))
"""Where modules are looked for in the folder that is measured: there, then in its ``src/``."""
_COMPILED: Final = (".so", ".pyd", ".pyc")
_MAY_HOLD_ANYTHING: Final = b"import *"
"""Stands for the text of what cannot be read as Python."""
_OTHER_MEANS: Final = re.compile(rb"import\s*\(?\s*\*|\b(?:__getattr__|__path__|globals|vars|exec|setattr|modules)\b")
"""What binds names that are written nowhere."""


def refuse_absent(
    choice: ConfigInRepo | OwnCode, preparation: Preparation, repository: Repository, ends: Sequence[Commit]
) -> None:
    """Refuse a configuration or an entry that none of ``ends`` has.

    Raises:
        UsageError: there is none.
    """
    nobody = f"neither {' nor '.join(end.short for end in ends)} has" if len(ends) > 1 else f"{ends[0].short} lacks"
    if isinstance(choice, ConfigInRepo):
        if not any(repository.objects_at(ends, path_in_repo(choice.path))):
            remedy = "give it from the root of the repository"
            raise UsageError(f"{nobody} this file", where=f"--config {choice.path}", remedy=remedy)
        return
    target = choice.target_at("")
    if isinstance(target, EntryTarget) and not preparation:
        folder = PurePosixPath(repository.inside).parts
        absent = [_absent(repository, end, folder, target.entry) for end in ends]
        if all(absent):
            what = " or ".join(dict.fromkeys(each for each in absent if each))
            root = "the root of the checkout" if not folder else f"{repository.inside}/ (see --repo)"
            remedy = f"name it as it is imported from {root} or its src/"
            raise UsageError(f"{nobody} {what}", where=f"--entry {target.entry}", remedy=remedy)


def _absent(repository: Repository, end: Commit, folder: Sequence[str], entry: str) -> str | None:
    """Return what of ``entry`` the commit surely lacks; None where it may have all of it."""
    module, _, path = entry.partition(":")
    try:
        with reading(repository.common) as repo:
            tree = repo.commit(end.hash).tree
            texts = [text for root in _ROOTS for text in _texts(tree, (*folder, *root, *module.split(".")))]
    except GitError:  # an object is missing
        return None
    if not texts:
        return f"a module {module}"
    return None if any(_may_bind(text, path.partition(".")[0]) for text in texts) else f"{path} in {module}"


def _texts(tree: git.Tree, parts: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the text of each module that ``parts``, counted from ``tree``, may stand for."""
    name, *rest = parts
    folder = next((item for item in tree if item.name == name), None)
    if folder is not None and _leads_elsewhere(folder):
        yield _MAY_HOLD_ANYTHING
    elif folder is not None and folder.type == "tree":
        own = list(_files(folder, "__init__"))
        yield from _texts(folder, tuple(rest)) if rest else own
        if rest and any(_may_bind(text, rest[0]) for text in own):
            yield _MAY_HOLD_ANYTHING
    if not rest:
        yield from _files(tree, name)


def _files(tree: git.Tree, name: str) -> Iterator[bytes]:
    """Yield the text of each file of ``tree`` that the module ``name`` may be."""
    for item in tree:
        if item.name == f"{name}.py":
            yield _MAY_HOLD_ANYTHING if _leads_elsewhere(item) else item.data_stream.read()
        elif item.name.startswith(f"{name}.") and item.name.endswith(_COMPILED):
            yield _MAY_HOLD_ANYTHING


def _leads_elsewhere(item: Any) -> bool:
    """Whether ``item`` of a tree is a submodule or a symbolic link."""
    return item.type == "submodule" or stat.S_ISLNK(item.mode)


def _may_bind(text: bytes, name: str) -> bool:
    """Whether a module of this ``text`` may have ``name``."""
    written = re.search(rb"\b" + re.escape(name.encode()) + rb"\b", text) is not None
    return written or not name.isascii() or _OTHER_MEANS.search(text) is not None
