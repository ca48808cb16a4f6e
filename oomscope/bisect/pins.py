"""The commits that the revisions of a request stand for: read once, so that a search goes on though branches move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from oomscope.bisect.commits import Repository
from oomscope.bisect.ranges import FileAt, RevisionRange
from oomscope.bisect.request import CommitRequest, ConfigRequest, SearchRequest, SurroundingsRequest
from oomscope.errors import GitError
from oomscope.files import real_path

Pins = dict[str, str]
"""Hashes of commits by the side that they are: ``good``, ``bad``."""


def pins_of(request: SearchRequest) -> Pins:
    """Return the commits that ``request`` names; none of a side that is a file or is to be looked for.

    Raises:
        GitError: there is no such repository, or no such commit.
        UsageError: results would be kept in git's own directory.
        InputError: there is no place for them.
    """
    revisions = _revisions(request)
    if not revisions:
        request.places.make()
        return {}
    repository = Repository.open(_repo(request))
    request.places.refuse_inside(repository.common)
    request.places.make()
    return {side: repository.resolve(revision).hash for side, revision in revisions.items()}


def pinned(request: SearchRequest, pins: Mapping[str, str]) -> SearchRequest:
    """Return ``request`` with the commits ``pins`` in place of the revisions that they stood for."""
    if isinstance(request, CommitRequest):
        ends = request.range
        good = pins.get("good", ends.good)
        return replace(request, range=RevisionRange(good=good, bad=pins.get("bad", ends.bad)))
    if isinstance(request, SurroundingsRequest):
        return replace(request, revision=pins.get("good", request.revision))
    if isinstance(request, ConfigRequest):
        files = {"good": request.range.good, "bad": request.range.bad}
        held = {
            side: replace(file, commit=pins[side]) if isinstance(file, FileAt) and side in pins else file
            for side, file in files.items()
        }
        return replace(request, range=replace(request.range, **held))
    return request


def title_of(request: SearchRequest) -> str:
    """Return the ends of ``request`` as they were written."""
    return request.revision if isinstance(request, SurroundingsRequest) else str(getattr(request, "range", ""))


def place_of(request: SearchRequest) -> str:
    """Return git's own directory of the repository of ``request``, else the directory of the search."""
    return place_at(_repo(request))


def place_at(directory: Path) -> str:
    """Return git's own directory at or above ``directory``, else ``directory``."""
    try:
        return str(Repository.open(directory).common.resolve())
    except GitError:
        return str(real_path(directory))


def _repo(request: SearchRequest) -> Path:
    repo = getattr(request, "repo", None)
    return repo if isinstance(repo, Path) else Path()


def _revisions(request: SearchRequest) -> dict[str, str]:
    if isinstance(request, CommitRequest):
        sides = {"good": request.range.good, "bad": request.range.bad}
        return {side: revision for side, revision in sides.items() if revision}
    if isinstance(request, SurroundingsRequest):
        return {"good": request.revision}
    if isinstance(request, ConfigRequest):
        files = {"good": request.range.good, "bad": request.range.bad}
        return {side: file.revision for side, file in files.items() if isinstance(file, FileAt)}
    return {}
