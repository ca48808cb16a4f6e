"""A line of commits is searched within the promised number of probes, whatever paths are chosen and whatever breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.lines.culprit import LineSearch
from oomscope.bisect.lines.line import Line
from oomscope.bisect.results.result import ProbeRecord
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.run.prober import Question
from oomscope.bisect.search.line import Answer, extra_probes
from oomscope.bisect.search.measured import Untestable
from oomscope.bisect.vcs.repository import Commit, CommitLine
from oomscope.probe.result import ProbeResult

GOOD, BAD, UNTESTABLE = Answer.GOOD, Answer.BAD, Answer.UNTESTABLE


@dataclass
class Answering:
    """Stands for subject and prober: every commit is measured by itself, and its answer is known."""

    answers: Sequence[Answer]
    asked: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def contents(self, commits: Sequence[Commit]) -> list[str]:
        return [commit.tree for commit in commits]

    def experiment(self, commit: Commit) -> Untestable:
        return Untestable("never measured")

    def ask(
        self, question: Question, _experiment: Experiment | Untestable, _ahead: object, /
    ) -> tuple[ProbeRecord, ProbeResult | None]:
        position = int(question.commit or "")
        self.asked.append(position)
        record = ProbeRecord(number=len(self.asked), role=question.role, answer=self.answers[position], reason="known")
        return record, None

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass(frozen=True)
class Case:
    """A line that turns bad once, with the positions on the chosen paths (None: no paths)."""

    answers: tuple[Answer, ...]
    culprit: int
    chosen: frozenset[int] | None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    last = draw(st.integers(1, 40))
    culprit = draw(st.integers(1, last))
    answers = [GOOD] * culprit + [BAD] * (last + 1 - culprit)
    for position in draw(st.sets(st.integers(1, last - 1), max_size=last)) if last > 1 and draw(st.booleans()) else ():
        answers[position] = UNTESTABLE
    chosen = draw(st.none() | st.frozensets(st.integers(1, last), min_size=1))
    return Case(tuple(answers), culprit, chosen)


def commit(position: int) -> Commit:
    name = str(position)
    return Commit(hash=name, tree=name, parents=(), author="", date="", subject=name)


@given(cases())
def test_the_answer_is_as_narrow_as_can_be_and_the_promise_is_kept(case: Case) -> None:
    world = Answering(case.answers)
    first, *others = map(commit, range(len(case.answers)))
    touching = None if case.chosen is None else frozenset(map(str, case.chosen))
    track = Line.of(CommitLine(base=first, commits=tuple(others), touching=touching), world, world)  # type: ignore[arg-type]
    found = LineSearch(track).run().found
    assert found is not None
    assert found.last_good == max(place for place in range(case.culprit) if case.answers[place] is GOOD)
    assert found.first_bad == min(place for place, answer in enumerate(case.answers) if answer is BAD)
    assert len(set(world.asked)) == len(world.asked)

    met = sum(case.answers[place] is UNTESTABLE for place in world.asked)
    is_proven = case.culprit in track.chosen and case.answers[case.culprit - 1] is not UNTESTABLE
    promised = track.probes_at_most + (0 if is_proven and not met else track.probes_more)
    assert len(world.asked) - met <= promised + 2 * extra_probes(met)


def test_the_promise_is_the_least_that_can_be_kept() -> None:
    """The last of 10 is on the paths: both ends and its parent prove it; 4 more find any of the 9 before it."""
    first, *others = map(commit, range(11))
    commits = CommitLine(base=first, commits=tuple(others), touching=frozenset({"10"}))
    track = Line.of(commits, Answering(()), Answering(()))  # type: ignore[arg-type]
    assert (track.probes_at_most, track.probes_more) == (3, 4)
    asked = []
    for culprit in range(1, 11):
        world = Answering([GOOD] * culprit + [BAD] * (11 - culprit))
        LineSearch(Line.of(commits, world, world)).run()  # type: ignore[arg-type]
        asked.append(len(world.asked))
    assert asked[-1] == 3
    assert max(asked) == 3 + 4
