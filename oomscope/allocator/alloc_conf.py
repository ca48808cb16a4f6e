"""The text of a ``PYTORCH_ALLOC_CONF``: taken apart and put together, and parsed, every key checked as torch does.

What a key means is a field of ``settings.py``. The messages are torch's, and name the column besides. Sources:
``ConfigTokenizer`` and ``AcceleratorAllocatorConfig`` in c10/core/AllocatorConfig.{h,cpp},
c10/cuda/CUDAAllocatorConfig.cpp.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from oomscope.allocator.engine.constants import DIVISION_INTERVALS, LARGE_SEGMENT_DEFAULT
from oomscope.errors import AllocatorConfError
from oomscope.printable import quoted
from oomscope.torch_versions import CONF_VARIABLE
from oomscope.units import MiB

EXPANDABLE = "expandable_segments:True"
Version = tuple[int, int]
Value = int | float | bool | tuple[int, ...]

_SIZE_MAX = (1 << 64) - 1
_MAX_SIZE_MB = _SIZE_MAX // MiB
_MAX_PINNED_THREADS = 128
_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]]+")
_INTEGER = re.compile(r"[+-]?\d+")
_REAL = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|infinity|inf)", re.IGNORECASE)

SINCE: dict[str, Version] = {
    "expandable_segments": (2, 1),
    "max_split_size_mb": (2, 0),
    "max_non_split_rounding_mb": (2, 5),
    "large_segment_size_mb": (2, 11),
    "garbage_collection_threshold": (2, 0),
    "roundup_power2_divisions": (2, 0),
    "per_process_memory_fraction": (2, 10),
    "throw_on_cudamalloc_oom": (2, 12),
    "backend": (2, 0),
}
"""The first torch version of each key that matters on the device."""

INERT_BOOLS = (
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_background_threads",
    "pinned_free_catch_all",
    "graph_capture_record_stream_reuse",
)
INERT_SIZES = (
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
)
"""Keys of host memory, locking and graph capture: they cannot change a result here, so any version may have them."""

REFUSED = {
    "expandable_segments_reserve": "only reservations of 9/8 of the device are modelled",
    "expandable_segments_reserve_by_class": "only reservations of 9/8 of the device are modelled",
}


def pairs_of(conf: str) -> list[tuple[str, str]]:
    """Return keys and values; commas inside brackets belong to the value."""
    parts: list[str] = []
    depth = 0
    for piece in conf.replace(" ", "").split(","):
        if depth:
            parts[-1] += f",{piece}"
        elif piece:
            parts.append(piece)
        depth += piece.count("[") - piece.count("]")
    return [(key, value) for key, _, value in (part.partition(":") for part in parts)]


def joined(settings: Iterable[tuple[str, str | None]]) -> str:
    """Return ``settings`` as one text, without those that are None."""
    return ",".join(f"{key}:{value}" for key, value in settings if value is not None)


def merged(conf: str, addition: str) -> str:
    """Return ``conf`` with the settings of ``addition`` in place of its own ones of the same key."""
    return joined((dict(pairs_of(conf)) | dict(pairs_of(addition))).items())


class Token(NamedTuple):
    """A word or a separator, and the column (from 1) where it starts."""

    text: str
    column: int


def tokenize(conf: str) -> list[Token]:
    """Split at ``,``, ``:``, ``[`` and ``]``, leaving white space out wherever it stands, as torch does."""
    tokens = []
    for match in _TOKEN.finditer(conf):
        if word := "".join(match[0].split()):
            indent = len(match[0]) - len(match[0].lstrip())
            tokens.append(Token(word, 1 + match.start() + indent))
    return tokens


def parse_conf(conf: str, version: Version, large_segment_size: int) -> dict[str, Value]:
    """Return the value of each key that ``conf`` names: sizes in bytes, divisions as 16 numbers.

    Raises:
        AllocatorConfError: what torch of this version would refuse, or what has no rules here.
    """
    return _Parser(conf, version, large_segment_size).parse()


class _Parser:
    def __init__(self, conf: str, version: Version, large_segment_size: int) -> None:
        self._tokens = tokenize(conf)
        self._end = Token("", len(conf) + 1)
        self._at = 0
        self._version = version
        self._large_segment_size = large_segment_size
        self._readers: dict[str, Callable[[], Value]] = {
            "expandable_segments": self._bool,
            "max_split_size_mb": lambda: self._split_size("max_split_size_mb"),
            "max_non_split_rounding_mb": lambda: self._split_size("max_non_split_rounding_mb"),
            "large_segment_size_mb": self._segment_size,
            "garbage_collection_threshold": self._gc_threshold,
            "roundup_power2_divisions": self._divisions,
            "per_process_memory_fraction": self._fraction,
            "throw_on_cudamalloc_oom": self._bool,
            "backend": self._backend,
            "pinned_num_register_threads": self._pinned_threads,
        }
        self._readers |= dict.fromkeys(INERT_BOOLS, self._bool)
        self._readers |= dict.fromkeys(set(INERT_SIZES) - {"pinned_num_register_threads"}, self._integer)

    def parse(self) -> dict[str, Value]:
        if self._version >= (2, 11):
            self._find_segment_size()
        values: dict[str, Value] = {}
        while self._at < len(self._tokens):
            name = self._key()
            self._expect(":")
            values[name] = self._readers[name]()
            if self._at < len(self._tokens):
                self._expect(",")
        return values

    def _find_segment_size(self) -> None:
        """Read ``large_segment_size_mb`` ahead of the rest, as torch does: other keys are checked against it."""
        for index, token in enumerate(self._tokens):
            if token.text == "large_segment_size_mb":
                self._at = index + 1
                self._expect(":")
                self._large_segment_size = self._segment_size()
        self._at = 0

    def _key(self) -> str:
        token = self._take("an option")
        name = token.text.replace("hip", "cuda")
        if name in REFUSED:
            raise self._error(f"{name} cannot be modelled: {REFUSED[name]}", token, "leave it out")
        if name not in self._readers:
            near = difflib.get_close_matches(name, self._readers, 1)
            remedy = f"did you mean {near[0]}?" if near else "see torch's notes on PYTORCH_ALLOC_CONF for the keys"
            raise self._error(f"Unrecognized key {quoted(token.text)} in CUDA allocator config", token, remedy)
        since = SINCE.get(name, (2, 0))
        if self._version < since:
            known = f"torch {since[0]}.{since[1]}"
            raise self._error(f"Unrecognized key {quoted(token.text)}, which {known} introduced", token, "leave it out")
        return name

    def _split_size(self, name: str) -> int:
        token, megabytes = self._number()
        least = self._large_segment_size // MiB
        if self._version < (2, 11):
            least = LARGE_SEGMENT_DEFAULT // MiB
        strictly = self._version < (2, 10)
        if megabytes < least or (strictly and megabytes == least):
            sign = ">" if strictly else ">="
            raise self._error(f"CachingAllocator option {name} too small, must be {sign} {least}", token)
        return min(megabytes, _MAX_SIZE_MB) * MiB

    def _segment_size(self) -> int:
        token, megabytes = self._number()
        if megabytes <= 10:
            raise self._error("CachingAllocator option large_segment_size_mb must be > 10 MB", token)
        return min(megabytes, _MAX_SIZE_MB) * MiB

    def _gc_threshold(self) -> float:
        token, value = self._real()
        if not 0 < value < 1:
            raise self._error("garbage_collect_threshold is invalid, set it in (0.0, 1.0)", token)
        return value

    def _fraction(self) -> float:
        token, value = self._real()
        if not 0 <= value <= 1:
            raise self._error("per_process_memory_fraction is invalid, set it in [0.0, 1.0]", token)
        return value

    def _divisions(self) -> tuple[int, ...]:
        if not self._sees("["):
            token, divisions = self._number()
            if not _is_power_of_two(divisions):
                raise self._error("For roundups, the divisions has to be power of 2", token)
            return (divisions,) * DIVISION_INTERVALS
        self._expect("[")
        intervals = [0] * DIVISION_INTERVALS
        named: int | None = None
        while not self._sees("]"):
            named = self._interval(intervals, named)
            if not self._sees("]"):
                self._expect(",")
        self._expect("]")
        return tuple(intervals)

    def _interval(self, intervals: list[int], named: int | None) -> int | None:
        """Read ``MiB:divisions`` or ``>:divisions`` into ``intervals``; return the last interval named."""
        token = self._take("an interval")
        self._expect(":")
        value, divisions = self._number()
        if divisions and not _is_power_of_two(divisions):
            raise self._error("For roundups, the divisions has to be power of 2 or 0 to disable roundup", value)
        if token.text == ">":
            start = 0 if named is None else named + (1 if self._version >= (2, 10) else 0)
            intervals[start:] = [divisions] * (DIVISION_INTERVALS - start)
            return named
        megabytes = self._integer_of(token)
        if not _is_power_of_two(megabytes):
            raise self._error("For roundups, the intervals have to be power of 2", token)
        index = min(megabytes.bit_length() - 1, DIVISION_INTERVALS - 1)
        if named is None:
            intervals[:index] = [divisions] * index
        intervals[index] = divisions
        return index

    def _backend(self) -> bool:
        token = self._take("a backend")
        if token.text in {"cudaMallocAsync", "hipMallocAsync"}:
            reason = "its pool belongs to the CUDA driver, whose algorithm is not published"
            raise self._error(f"backend:{token.text} cannot be modelled: {reason}", token, "use backend:native")
        if token.text != "native":
            raise self._error("Unknown allocator backend, options are native and cudaMallocAsync", token)
        return True

    def _pinned_threads(self) -> int:
        token, threads = self._number()
        if not _is_power_of_two(threads):
            raise self._error(f"Number of register threads has to be power of 2, got {threads}", token)
        if threads > _MAX_PINNED_THREADS:
            least = f"Number of register threads should be less than or equal to {_MAX_PINNED_THREADS}"
            raise self._error(f"{least}, got {threads}", token)
        return threads

    def _bool(self) -> bool:
        token = self._take("'True' or 'False'")
        if token.text not in {"True", "False"}:
            raise self._error(f"Expected 'True' or 'False' but got {quoted(token.text)}", token)
        return token.text == "True"

    def _integer(self) -> int:
        return self._number()[1]

    def _number(self) -> tuple[Token, int]:
        token = self._take("a number")
        return token, self._integer_of(token)

    def _integer_of(self, token: Token) -> int:
        """Read the number that a token starts with, as ``std::stoull`` does: the rest is ignored, a minus wraps."""
        match = _INTEGER.match(token.text)
        if match is None or abs(int(match[0])) > _SIZE_MAX:
            raise self._error(f"expected a number but got {quoted(token.text)}", token)
        return int(match[0]) % (_SIZE_MAX + 1)

    def _real(self) -> tuple[Token, float]:
        token = self._take("a number")
        match = _REAL.match(token.text)
        if match is None:
            raise self._error(f"expected a number but got {quoted(token.text)}", token)
        return token, float(match[0])

    def _sees(self, text: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].text == text

    def _take(self, what: str) -> Token:
        if self._at >= len(self._tokens):
            raise self._error(f"expected {what}, but the settings end here", self._end)
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, text: str) -> None:
        token = self._take(repr(text))
        if token.text != text:
            raise self._error(f"expected {quoted(text)} but got {quoted(token.text)}", token)

    def _error(self, message: str, token: Token, remedy: str | None = None) -> AllocatorConfError:
        return AllocatorConfError(message, where=f"{CONF_VARIABLE}, column {token.column}", remedy=remedy)


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0
