"""Asks about single states, such as combinations of keys, as often as it takes to be sure of each.

Along a line of commits no good one follows a bad one. Between combinations, corners or tries nothing orders the
answers, so each is weighed by itself. Without noise each state is asked about once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.run.prober import Ahead, AnswerAndResult, Prober, Question
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.measured import Untestable, bytes_of
from oomscope.bisect.search.repeats import Noise, effective_noise, percent, probability_of, rate_of


@dataclass
class Weighing:
    """Asks the prober about single states.

    Args:
        prober: answers.
        asked_for: how to treat noise; None leaves it to the backend.
        decisions: on about how many answers the whole rests: each may be wrong with that share of the whole's error.
    """

    prober: Prober
    asked_for: Noise | None = None
    decisions: int = 1
    _given: dict[str, list[tuple[int, AnswerAndResult]]] = field(default_factory=dict)
    """The answers to each state, by the name of its content, each with the number of its measurement."""
    _settled: dict[str, Answer] = field(default_factory=dict)
    """The conclusion on each state."""
    _is_on_card: bool = False

    def ask(self, question: Question, experiment: Experiment | Untestable, ahead: Ahead = tuple) -> AnswerAndResult:
        """Return the answer to ``question``, with the result that it rests on where something was measured.

        Of several measurements that agree with the conclusion, it is the one with the median requested bytes. A state
        that stays unsure is untestable.
        """
        if isinstance(experiment, Untestable):
            return self.prober.ask(question, experiment, ahead)
        state = self.prober.content_of(experiment)
        if state in self._settled:  # another name for a known state
            record, result = self.prober.ask(question, experiment.repeated(self._typical(state)[0]), ahead)
        else:
            self._ask(state, question, experiment, ahead)
            while self._wants_more(state):
                self._ask(state, question, experiment, ahead)
            self._settled[state] = self._concluded(state)
            record, result = self._typical(state)[1]
        if (answer := self._settled[state]) is not record.answer:
            good, bad = self._counts(state)
            record = replace(record, answer=answer, reason=f"answers contradict each other: {good} good, {bad} bad")
        return record, result

    def remark(self) -> None:
        """Note how sure the answers are together, where they were weighed."""
        noise = self._noise
        settled = {state: answer for state, answer in self._settled.items() if answer is not Answer.UNTESTABLE}
        if noise is None or not settled:
            return
        doubt = sum(1 - self._probability(state, answer) for state, answer in settled.items())
        probes = sum(len(self._given[state]) for state in settled)
        self.prober.note(
            f"{len(settled)} states were probed {probes} times, each until its answer was "
            f"{percent(self._enough(noise))} sure; the probability that all are right is {percent(max(0.0, 1 - doubt))}"
        )

    def _ask(self, state: str, question: Question, experiment: Experiment, ahead: Ahead) -> None:
        number = self.prober.times(experiment) if state in self._given else 0

        def again_then_ahead() -> Iterator[Experiment | Untestable]:
            if self._noise is not None:
                yield experiment.repeated(number + 1)
            yield from ahead()

        record, result = self.prober.ask(question, experiment.repeated(number), again_then_ahead)
        self._given.setdefault(state, []).append((number, (record, result)))
        self._is_on_card |= result is not None and result.backend == "cuda"

    @property
    def _noise(self) -> Noise | None:
        return effective_noise(self.asked_for, may_differ=self._is_on_card)

    def _enough(self, noise: Noise) -> float:
        """Return how sure each answer has to be."""
        return 1 - (1 - noise.confidence) / max(1, self.decisions)

    def _wants_more(self, state: str) -> bool:
        """Whether ``state`` is to be measured again; one that could not be measured is not."""
        _, (last, _) = self._given[state][-1]
        if self._noise is None or last.answer is Answer.UNTESTABLE or len(self._given[state]) >= self._noise.repeats:
            return False
        return self._concluded(state) is Answer.UNTESTABLE

    def _concluded(self, state: str) -> Answer:
        """Return what the answers to ``state`` say together; untestable where they are not sure."""
        given = [record.answer for _, (record, _) in self._given[state]]
        if self._noise is None or given[0] is Answer.UNTESTABLE:
            return given[-1]
        for answer in (Answer.GOOD, Answer.BAD):
            if self._probability(state, answer) >= self._enough(self._noise):
                return answer
        return Answer.UNTESTABLE

    def _probability(self, state: str, answer: Answer) -> float:
        counts = [self._counts(each) for each in self._given]
        rate = rate_of(sum(map(min, counts)), sum(map(sum, counts)))
        return probability_of(answer, self._counts(state), rate)

    def _counts(self, state: str) -> tuple[int, int]:
        given = [record.answer for _, (record, _) in self._given[state]]
        return given.count(Answer.GOOD), given.count(Answer.BAD)

    def _typical(self, state: str) -> tuple[int, AnswerAndResult]:
        """Return the measurement of ``state`` that is reported, with its number."""
        given, concluded = self._given[state], self._settled[state]
        agreeing = [each for each in given if each[1][0].answer is concluded] or given
        sized = [(sizes.requested_bytes, each[0], each) for each in agreeing if (sizes := bytes_of(each[1][1]))]
        known = sorted(sized, key=lambda row: row[:2])
        return known[len(known) // 2][2] if known else agreeing[-1]
