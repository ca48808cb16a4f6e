"""Names the suspects of a search that ended before it could open their merges: those of the line, and all that merges
among them brought in. Without these the list would leave out a culprit that came in through a merge.
"""

from __future__ import annotations

from collections.abc import Sequence

from oomscope.bisect.commits import Repository
from oomscope.bisect.headers import Commit
from oomscope.bisect.probed_line import ProbedLine
from oomscope.bisect.result import Suspect
from oomscope.bisect.search import Found
from oomscope.bisect.subjects import Subject


def all_suspects(
    repository: Repository,
    search: ProbedLine,
    found: Found,
    *,
    good: Sequence[Commit] = (),
) -> tuple[Suspect, ...]:
    """Return the suspects of ``found``, each merge among them after what it brought in that changes what is measured.

    Args:
        repository: where they are.
        search: along which line.
        found: the positions on it that could not be told apart.
        good: commits that are known to be good, beside the last good one of the line: what they contain is acquitted.
    """
    on_line = {commit.hash for position in search.track.positions for commit in position}
    acquitted = (search.last_commit(found.last_good), *good)
    named: list[Suspect] = []
    for position, suspect in zip(found.suspects, search.suspects(found), strict=True):
        for merge in search.track.positions[position]:
            if not merge.is_merge or merge == search.merge:
                continue
            brought = [commit for commit in repository.between(acquitted, merge) if commit.hash not in on_line]
            on_line.update(commit.hash for commit in brought)
            named += [
                Suspect(
                    commit=commit.hash,
                    subject=commit.subject,
                    reason=f"not probed; brought in by the merge {merge.short}",
                )
                for commit in _changing(repository, search.subject, brought)
            ]
        named.append(suspect)
    return tuple(named)


def _changing(repository: Repository, subject: Subject, commits: Sequence[Commit]) -> list[Commit]:
    """Return those of ``commits`` that do not measure the same as their first parent."""
    parents = repository.read_headers([commit.parents[0] for commit in commits if commit.parents])
    known = list({commit.hash: commit for commit in (*parents, *commits)}.values())
    contents = dict(zip((commit.hash for commit in known), subject.contents(known), strict=True))
    return [commit for commit in commits if not commit.parents or contents[commit.hash] != contents[commit.parents[0]]]
