"""The period of a sequence of kinds: the lag at which it agrees with itself, whatever noise there is.

One autocorrelation tells the likely lags; only these are counted exactly, so that a long sequence takes little more
than a Fourier transform.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.lifetimes import Indices

MIN_PERIOD: Final = 4
"""Allocations below which a repetition is no iteration."""
MIN_AGREEMENT: Final = 0.95
"""Share of allocations that must be the same one period later."""
READINGS: Final = 4
COUNTED: Final = 24
"""Likely periods of each reading that are counted exactly; each takes as long as the sequence is."""
ROUNDING: Final = 1e-6
"""What a Fourier transform may be off by."""


def period_of(kinds: Indices) -> int | None:
    """Return the smallest lag at which a sequence of kinds repeats itself; None where it does not.

    At lag p, ``kinds[i] == kinds[i + p]`` must hold for 95 % of all places, and at least two whole periods be there;
    where few kinds make up most of the sequence, so that places agree at any lag, it must hold for half of those that
    chance leaves. What repeats itself at fewer than :data:`MIN_PERIOD` has no period, although it does so at multiples
    as well. Of the likely lags (:func:`likely_lags`) the agreement is counted exactly.
    """
    if len(kinds) < 2 * MIN_PERIOD:
        return None
    by_chance = float(np.square(np.bincount(kinds) / len(kinds)).sum())
    needed = max(MIN_AGREEMENT, (1 + by_chance) / 2)
    for lag in likely_lags(kinds, needed):
        if np.mean(kinds[:-lag] == kinds[lag:]) >= needed:
            return lag if lag >= MIN_PERIOD else None
    return None


def likely_lags(kinds: Indices, needed: float) -> list[int]:
    """Return lags at which ``needed`` of the places may agree, rising.

    A pair of different kinds adds -1 to 1 to :func:`_agreement`, so no lag that reads below ``2 * needed - 1`` is one.
    A sequence with much noise has a great many above it; the first ones that reach each of some higher readings, too,
    are enough, for a true period stands out among its neighbours.
    """
    lags = np.arange(1, len(kinds) // 2 + 1)
    reading = _agreement(kinds)[lags]
    steps = np.linspace(2 * needed - 1, 1, READINGS, endpoint=False)
    first = [lags[reading >= step - ROUNDING][:COUNTED] for step in steps]
    return [int(lag) for lag in np.unique(np.concatenate(first))]


def _agreement(kinds: Indices) -> NDArray[np.float64]:
    """Return about which share of the sequence agrees with itself, for each lag.

    It is one autocorrelation of random unit vectors, one a kind, of which equal ones give 1 and different ones 0 on
    average.
    """
    length = len(kinds)
    padded = 1 << (2 * length - 1).bit_length()
    angle = np.random.default_rng(0).uniform(0, 2 * np.pi, int(kinds.max()) + 1)
    spectrum = np.fft.fft(np.exp(1j * angle[kinds]), padded)
    correlation = np.fft.ifft(np.abs(spectrum) ** 2)[:length].real
    return np.asarray(correlation / (length - np.arange(length)))
