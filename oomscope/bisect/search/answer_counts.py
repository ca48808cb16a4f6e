"""What repeated answers say of single states that no line connects (mixtures of keys, corners, tries): pure.

Each state is good or bad, as probable one as the other before any answer. How often a good one answers bad, and a bad
one good, is the same for all of them and has the priors of :mod:`oomscope.bisect.search.posterior`, so that what is
asked often teaches how far to trust what is asked once. Given both rates the states are independent, and the rates
are summed out.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.posterior import AnswerCount, Prior

Floats = NDArray[np.float64]

_ODDS: Final = np.linspace(-9.0, 5.0, 36)
"""Logarithms of the odds of rates, in which their density is smooth: 36 terms are as good as the integral, to 0.001."""
_LOG_WRONG, _LOG_RIGHT = -np.logaddexp(0, -_ODDS), -np.logaddexp(0, _ODDS)
_LOG_PRIOR: Final = Prior().wrong * _LOG_WRONG + Prior().right * _LOG_RIGHT


@dataclass(frozen=True, kw_only=True)
class AnswerCounts:
    """The answers to each of several states, by any name."""

    counts: Mapping[Hashable, AnswerCount] = field(default_factory=dict)

    def told(self, state: Hashable, answer: Answer) -> AnswerCounts:
        """Return the tallies with one more answer, good or bad, of ``state``."""
        return replace(self, counts={**self.counts, state: self.counts.get(state, AnswerCount()).with_one(answer)})

    def probability(self, state: Hashable, answer: Answer) -> float:
        """Return how probable it is that ``state`` is what ``answer``, good or bad, says."""
        log_good, log_bad = _log_likelihoods(self.counts.get(state, AnswerCount()))
        is_bad = 1 / (1 + np.exp(np.clip(log_good - log_bad, -700, 700)))
        bad = float(np.sum(self._weights * is_bad))
        return bad if answer is Answer.BAD else 1 - bad

    @cached_property
    def _weights(self) -> Floats:
        """How probable each pair of rates is after all answers: rows are the rate of good states to answer bad."""
        total = _LOG_PRIOR[:, None] + _LOG_PRIOR[None, :]
        for tally in self.counts.values():
            total = total + _log_likelihood(tally)
        weights = np.exp(total - total.max())
        return np.asarray(weights / weights.sum())


@lru_cache(maxsize=1024)
def _log_likelihood(tally: AnswerCount) -> Floats:
    """Return the log probability of the answers of a state of which nothing is known, by both rates."""
    return np.asarray(np.logaddexp(*_log_likelihoods(tally)))


def _log_likelihoods(tally: AnswerCount) -> tuple[Floats, Floats]:
    """Return the log probability of the answers of a good state (a column) and of a bad one (a row), by rate."""
    good = tally.bad * _LOG_WRONG + tally.good * _LOG_RIGHT
    bad = tally.good * _LOG_WRONG + tally.bad * _LOG_RIGHT
    return good[:, None], bad[None, :]
