"""Sets torch's generator of random numbers on the host forward by any number of draws, without drawing them.

The generator is the Mersenne Twister MT19937: 624 words of 32 bits, of which each draw hands out the next; when all
are handed out, the next 624 are made of them by a rule that is linear over GF(2). So the words after N draws are a sum
of words that come soon, and which ones, the polynomial x^N modulo the characteristic polynomial of the rule says.

Sources: M. Matsumoto, T. Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998), for the rule and its polynomial;
H. Haramoto et al., "Efficient Jump Ahead for F2-Linear Random Number Generators", INFORMS J. on Computing 20 (2008).
Layout of the state: PyTorch aten/src/ATen/CPUGeneratorImpl.cpp and aten/src/ATen/core/MT19937RNGEngine.h.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import torch

WORDS: Final = 624
_MIDDLE: Final = 397
_DEGREE: Final = 19937
_MATRIX: Final = 0x9908B0DF
_LOWER_BITS: Final = 31

_LEFT: Final = 8
"""Byte of the state at which the number of words that are left begins (int32); then, as int32, whether it is seeded."""
_NEXT: Final = 16
"""Byte at which the index of the next word begins (uint64)."""
_KEY: Final = 24
"""Byte at which the words begin (uint64 each)."""

DRAWN_ONE_BY_ONE: Final = 50_000_000
"""Draws up to which drawing and dropping takes less time than the polynomial."""


def advanced(state: torch.Tensor, draws: int) -> torch.Tensor:
    """Return what ``torch.Generator.get_state`` would return after ``draws`` more draws of 32 bits.

    Args:
        state: of a generator on the host, uint8[5056]; it is left as it is.
        draws: a float takes one, a double two.
    """
    state = state.clone()
    if draws:
        key, used = _read(state)
        blocks = (used + draws - 1) // WORDS
        _write(state, _later(key, blocks), used + draws - blocks * WORDS)
    return state


def _read(state: torch.Tensor) -> tuple[np.ndarray, int]:
    """Return the words, uint32[624], and how many of them are handed out."""
    raw = state.numpy()
    left = int(raw[_LEFT : _LEFT + 4].view(np.int32)[0])
    following = int(raw[_NEXT : _NEXT + 8].view(np.uint64)[0])
    return raw[_KEY : _KEY + 8 * WORDS].view(np.uint64).astype(np.uint32), WORDS if left == 1 else following


def _write(state: torch.Tensor, key: np.ndarray, used: int) -> None:
    raw = state.numpy()
    raw[_KEY : _KEY + 8 * WORDS].view(np.uint64)[:] = key
    raw[_LEFT : _LEFT + 4].view(np.int32)[0] = WORDS + 1 - used
    raw[_NEXT : _NEXT + 8].view(np.uint64)[0] = used


def _later(key: np.ndarray, blocks: int) -> np.ndarray:
    """Return the words ``blocks`` times 624 draws later."""
    if blocks * WORDS <= DRAWN_ONE_BY_ONE:
        twister = _twister(key)
        twister.random_raw(blocks * WORDS, output=False)
        return _words(twister)
    # The lower bits of the very first word are no part of the state, so the sums begin at the second.
    powers = np.flatnonzero(_bits(_power_of_x(blocks * WORDS - 1)))
    windows = np.lib.stride_tricks.sliding_window_view(_soon(key)[1:], WORDS)
    jumped: np.ndarray = np.bitwise_xor.reduce(windows[powers], axis=0)
    return jumped


def _soon(key: np.ndarray) -> np.ndarray:
    """Return ``key`` and as many of the words after it as a sum may need."""
    twister, words = _twister(key), [key]
    for _ in range(_DEGREE // WORDS + 2):
        twister.random_raw(WORDS, output=False)
        words.append(_words(twister))
    return np.concatenate(words)


def _twister(key: np.ndarray) -> np.random.MT19937:
    """Return numpy's generator of the same kind, with all words of ``key`` handed out."""
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": WORDS}}
    return twister


def _words(twister: np.random.MT19937) -> np.ndarray:
    words: np.ndarray = twister.state["state"]["key"]
    return words


# Polynomials over GF(2): bit i of an integer is the coefficient of x^i ------------------------------------------


def _power_of_x(exponent: int) -> int:
    """Return x^exponent modulo the characteristic polynomial."""
    power = 1
    for digit in f"{exponent:b}":
        power = _remainder(int(f"{power:b}", 4) << int(digit))  # written in base 4, a number's bits are spread out
    return power


def _remainder(polynomial: int) -> int:
    while high := polynomial >> _DEGREE:
        polynomial &= (1 << _DEGREE) - 1
        for power in _lower_powers():
            polynomial ^= high << power
    return polynomial


@cache
def _lower_powers() -> tuple[int, ...]:
    """Return the powers of x in the characteristic polynomial below the highest. Source: Matsumoto & Nishimura."""

    def times(polynomial: int, shift: int) -> int:
        return polynomial << WORDS - shift ^ polynomial << _MIDDLE - shift

    upper, polynomial = 1, 0
    for bit in reversed(range(_LOWER_BITS, 32)):
        polynomial ^= upper * (_MATRIX >> bit & 1)
        upper = times(upper, 0)
    for bit in reversed(range(_LOWER_BITS)):
        polynomial ^= upper * (_MATRIX >> bit & 1)
        upper = times(upper, 1)
    return tuple(np.flatnonzero(_bits(polynomial ^ upper))[:-1].tolist())


def _bits(polynomial: int) -> np.ndarray:
    raw = polynomial.to_bytes((polynomial.bit_length() + 7) // 8, "little")
    return np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")
