"""How often answers are wrong: what is believed of such a rate before any answer, and after some.

A rate has a Beta prior, which is worth so many answers seen before. Sequences of right and wrong answers are then
weighed with the rate integrated out exactly (the Beta-Bernoulli model; Gelman et al., *Bayesian Data Analysis*, 2.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

CREDIBLE = 0.95
"""Share of the belief that an interval of :class:`Rate` holds."""
_ODDS = np.linspace(-25.0, 25.0, 10_001)
"""Logarithms of the odds of rates. In these a Beta density is smooth and falls to nothing on both sides, also where
that of the rate itself is highest at 0 or 1: sums of it are as good as integrals."""
_LOG_RATE, _LOG_REST = -np.logaddexp(0, -_ODDS), -np.logaddexp(0, _ODDS)


@dataclass(frozen=True, kw_only=True)
class Prior:
    """A Beta distribution over a rate of wrong answers.

    By default it is worth seven answers of which one was wrong: probes are mostly right, yet a few contradictions
    outweigh it (``benchmarks/bisect_noise.py`` compares others). ``wrong`` of 0 stands for answers that are never
    wrong.
    """

    wrong: float = 1.0
    right: float = 6.0

    def log_likelihood(self, wrong: int, right: int) -> float:
        """Return the logarithm of the probability of one sequence of so many answers; -inf where it cannot be."""
        if self.wrong == 0:
            return -math.inf if wrong else 0.0
        seen = _log_beta(self.wrong + wrong, self.right + right)
        return seen - _log_beta(self.wrong, self.right)

    def mean(self, wrong: int, right: int) -> float:
        """Return the expected rate after so many answers: the probability that the next one is wrong."""
        return (self.wrong + wrong) / (self.wrong + self.right + wrong + right)


NEVER_WRONG = Prior(wrong=0.0, right=1.0)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What is believed of a rate: its mean and the central interval that holds ``CREDIBLE`` of the belief."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """Return JSON values."""
        return asdict(self)


def mixed_rate(prior: Prior, seen: Sequence[tuple[float, int, int]]) -> Rate:
    """Return what is believed of a rate where it is uncertain which answers were wrong.

    Args:
        prior: the belief before any answer.
        seen: how probable each case is, with its numbers of wrong and right answers.
    """
    mean = sum(probability * prior.mean(wrong, right) for probability, wrong, right in seen)
    if prior.wrong == 0:
        return Rate(mean=mean, low=0.0, high=0.0)
    density = np.zeros_like(_ODDS)
    for probability, wrong, right in seen:
        powers = (prior.wrong + wrong) * _LOG_RATE + (prior.right + right) * _LOG_REST
        density += probability * np.exp(powers - _log_beta(prior.wrong + wrong, prior.right + right))
    below = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    tail = (1 - CREDIBLE) / 2
    low, high = (1 / (1 + math.exp(-np.interp(share, below / below[-1], _ODDS))) for share in (tail, 1 - tail))
    return Rate(mean=mean, low=low, high=high)


def _log_beta(first: float, second: float) -> float:
    return math.lgamma(first) + math.lgamma(second) - math.lgamma(first + second)
