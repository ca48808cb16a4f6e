"""The positions of a line: neighbouring commits that measure the same are one position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from oomscope.bisect.results.result import Role
from oomscope.bisect.search.line import Search
from oomscope.bisect.targets.subjects import Subject
from oomscope.bisect.vcs.commits import Commit
from oomscope.bisect.vcs.repository import CommitLine


@dataclass(frozen=True, kw_only=True)
class Track:
    """The commits of a line by what is measured of them.

    Neighbours that measure the same thing (the same file, the same tree) share one position, named by the first of
    them: the one with the change.
    """

    positions: tuple[tuple[Commit, ...], ...]
    """Position 0 begins with the good end; the last one ends with the bad end."""
    chosen: tuple[int, ...]
    """Positions from 1 on that begin with a commit on the chosen paths; all of them where none were chosen."""

    @classmethod
    def of(cls, line: CommitLine, subject: Subject) -> Track:
        """Return the track of ``line`` for ``subject``."""
        walked = (line.base, *line.commits)
        contents = subject.contents(walked)
        firsts = [place for place in range(len(walked)) if place == 0 or contents[place] != contents[place - 1]]
        positions = tuple(walked[first:end] for first, end in zip(firsts, [*firsts[1:], len(walked)], strict=True))
        chosen = (place for place in range(1, len(positions)) if line.is_chosen(positions[place][0]))
        return cls(positions=positions, chosen=tuple(chosen))

    @property
    def last(self) -> int:
        """The position of the bad end."""
        return len(self.positions) - 1

    @cached_property
    def asked_first(self) -> tuple[int, ...]:
        """The positions that are asked about before all others, in order; both ends are among them."""
        return tuple(dict.fromkeys((0, *self.chosen, self.last)))

    @property
    def probes_at_most(self) -> int:
        """The probes with an answer that may be needed, both ends included.

        That is while the culprit is one of the chosen and its parent can be tested, which proves it.
        """
        if self.last == 0:
            return 1
        proof = 1 if len(self.chosen) < self.last else 0
        return 2 + Search.over(len(self.asked_first) - 1).probes_left + proof

    @property
    def probes_more(self) -> int:
        """How many more may be needed where it is not."""
        hidden = self.last - len(self.chosen)
        return Search.over(hidden).probes_left if hidden else 0


@dataclass(frozen=True, kw_only=True)
class LineEnds:
    """The ends of a line, as people and records name them."""

    good: str
    bad: str
    good_role: Role
    bad_role: Role
    between_role: Role
    """Of all positions in between."""
    are_needed: bool
    """Whether nothing can be said where one of them cannot be tested."""


ENDS = LineEnds(
    good="the good end",
    bad="the bad end",
    good_role="good end",
    bad_role="bad end",
    between_role="search",
    are_needed=True,
)
BRANCH_ENDS = LineEnds(
    good="its beginning",
    bad="the merge",
    good_role="merged branch",
    bad_role="merged branch",
    between_role="merged branch",
    are_needed=False,
)
"""Of what a merge brought in; an end that cannot be tested is one more untestable position there."""
