"""Results that are used again: kept on disk by key, remembered from a journal; and the output of failed probes.

An entry is a file of its own outside any repository. It is written whole or not at all, and used only if its key
agrees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from oomscope.bisect.run.experiment import Untestable
from oomscope.bisect.run.identity import digest_of
from oomscope.files import write_whole
from oomscope.probe.demand import is_of_the_machine
from oomscope.probe.result import ErrorKind, ProbeResult

_REPEATABLE_FAILURES: frozenset[ErrorKind] = frozenset({"import", "setup", "step", "untestable", "nothing", "exit"})
"""Failures that the same code meets again; a time-out, a crash or a kill may be the machine's."""


def is_repeatable(result: ProbeResult) -> bool:
    """Whether ``result`` would come out the same, so that it may stand for another probe with the same key.

    An OOM of the host or of a library beside the caching allocator would not, nor one that other processes on the
    card had a part in, nor a run whose repetition without a limit was cut off.
    """
    if result.demand_cut:
        return False
    if result.failure is not None:
        return result.failure.kind in _REPEATABLE_FAILURES
    return not is_of_the_machine(result)


def _ignore(problem: str) -> None:
    """Default callback: does nothing."""


@dataclass(frozen=True)
class ResultCache:
    """Probe results by key.

    Args:
        directory: where the files are; made when first written to.
        warn: told, in one line, of entries that cannot be read or written. They are then as good as absent.
        is_read: whether what is there is used; else it is only replaced.
    """

    directory: Path
    warn: Callable[[str], None] = field(default=_ignore)
    is_read: bool = True

    def get(self, key: Mapping[str, Any]) -> ProbeResult | None:
        """Return the result that was kept under ``key``; None where there is none."""
        if not self.is_read:
            return None
        path = self._path(key)
        try:
            entry = json.loads(path.read_bytes())
            if entry["key"] != json.loads(json.dumps(key)):
                self.warn(f"{path}: holds another probe's result; ignored")
                return None
            return ProbeResult.from_json(entry["result"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.warn(f"{path}: cannot be read ({type(error).__name__}); ignored")
            return None

    def put(self, key: Mapping[str, Any], result: ProbeResult) -> None:
        """Keep ``result`` under ``key`` if it is repeatable."""
        if not is_repeatable(result):
            return
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps({"key": key, "result": result.to_json()}).encode(), force=True)
        except OSError as error:
            self.warn(f"{path}: cannot be written ({error.strerror}); the result is not kept")

    def _path(self, key: Mapping[str, Any]) -> Path:
        name = digest_of(key)
        return self.directory / name[:2] / f"{name}.json"


_DIGITS = 10


@dataclass(frozen=True)
class Logs:
    """One file for each thing said; what is said again is the same file.

    Args:
        directory: where the files are; made when first written to.
        warn: told, in one line, of a file that cannot be written.
    """

    directory: Path
    warn: Callable[[str], None]

    def keep(self, text: str, name: str) -> str | None:
        """Write ``text``, said by the probe of ``name``, and return the file's path; None where nothing was kept."""
        if not text:
            return None
        data = text.encode(errors="backslashreplace")
        path = self.directory / f"{name}-{hashlib.sha256(data).hexdigest()[:_DIGITS]}.txt"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_whole(path, data, force=True)
        except OSError as error:
            self.warn(f"{path}: cannot be written ({error.strerror})")
            return None
        return str(path)


Key = Mapping[str, Any]
"""What a result is kept under (:func:`oomscope.bisect.run.identity.key_of`)."""


@dataclass(frozen=True, kw_only=True)
class KeptAnswer:
    """What one measurement answered."""

    answer: ProbeResult | Untestable
    remarks: tuple[str, ...] = ()
    """What the report has to say of it, such as what was not as in a full clone; one line each."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        if isinstance(self.answer, Untestable):
            return {"untestable": self.answer.reason, "said": self.answer.said}
        return {"result": self.answer.to_json(), "remarks": list(self.remarks)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read back what :meth:`to_json` wrote."""
        if "untestable" in document:
            return cls(answer=Untestable(document["untestable"], document["said"]))
        return cls(answer=ProbeResult.from_json(document["result"]), remarks=tuple(document["remarks"]))


class Memory(Protocol):
    """Answers of earlier lives of a search; told of those of this one."""

    def recall(self, key: Key) -> KeptAnswer | None:
        """Return what was answered before; None where nothing was."""
        ...

    def learn(self, key: Key, kept: KeptAnswer) -> None:
        """Keep what was answered to the question that is open."""
        ...


class NoMemory:
    """The memory of a search that keeps no journal."""

    def recall(self, key: Key) -> None:
        """Return None."""
        return

    def learn(self, key: Key, kept: KeptAnswer) -> None:
        """Do nothing."""
