"""Results of earlier searches on disk, by key, and the output of failed probes.

An entry is a file of its own outside any repository. It is written whole or not at all, and used only if its key
agrees, and so do the packages of the Python that ran a program, and the files outside the checkout that it read.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomscope.bisect.run.identity import digest_of, packages_of
from oomscope.files import write_whole
from oomscope.probe.demand import is_of_the_machine
from oomscope.probe.job import BundledTarget, ProgramTarget
from oomscope.probe.result import ErrorKind, ProbeResult

_REPEATABLE_FAILURES: frozenset[ErrorKind] = frozenset({"import", "setup", "step", "untestable", "nothing", "exit"})
"""Failures that the same code meets again; a time-out, a crash or a kill may be the machine's."""
_DIGITS = 10
_READ_BYTES = 64 << 10
"""Size up to which a file counts by its content, so that a new copy of a configuration is the same file."""


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


@dataclass(frozen=True)
class ResultCache:
    """Probe results by key.

    Args:
        directory: where the files are; made when first written to.
        warn: told, in one line, of entries that cannot be read or written. They count as absent.
        is_read: whether what is there is used; else it is only replaced.
    """

    directory: Path
    warn: Callable[[str], None] = lambda _problem: None
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
            result = ProbeResult.from_json(entry["result"])
            packages = packages_of(result.interpreter)
            is_same = packages is not None and packages == entry["packages"]
            return result if is_same and entry["files"] == _states_of(result.files_outside or ()) else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.warn(f"{path}: cannot be read ({type(error).__name__}); ignored")
            return None

    def put(self, key: Mapping[str, Any], result: ProbeResult) -> None:
        """Keep ``result`` under ``key`` if it is repeatable, and it is known what the Python of a program has.

        A failure of the user's own code is not kept: a network, a hub or a mount may have been its cause.
        """
        kind = key["target"]["kind"]
        may_be_gone = result.failure is not None and kind != BundledTarget.kind
        has_unknown_python = result.interpreter is None and kind == ProgramTarget.kind
        if not is_repeatable(result) or may_be_gone or has_unknown_python or result.files_outside is None:
            return
        if (packages := packages_of(result.interpreter)) is not None:
            files = _states_of(result.files_outside)
            entry = {"key": key, "packages": packages, "files": files, "result": result.to_json()}
            _write(self._path(key), json.dumps(entry).encode(), self.warn)

    def _path(self, key: Mapping[str, Any]) -> Path:
        name = digest_of(key)
        return self.directory / name[:2] / f"{name}.json"


def _states_of(paths: Iterable[str]) -> dict[str, str | list[int] | None]:
    """Return by path what tells a file from a changed one: a hash of its content, of a large one its size and time.

    None stands for a file that is missing or cannot be read.
    """
    return {path: _state_of(Path(path)) for path in paths}


def _state_of(path: Path) -> str | list[int] | None:
    try:
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and found.st_size <= _READ_BYTES:
            return hashlib.sha256(path.read_bytes()).hexdigest()
        return [found.st_size, found.st_mtime_ns]
    except OSError:
        return None


def keep_output(directory: Path, text: str, name: str, warn: Callable[[str], None]) -> str | None:
    """Write ``text``, the output of the probe of ``name``, and return the file's path; None where nothing was kept.

    The same output is the same file.
    """
    if not text:
        return None
    data = text.encode(errors="backslashreplace")
    path = directory / f"{name}-{hashlib.sha256(data).hexdigest()[:_DIGITS]}.txt"
    return str(path) if _write(path, data, warn) else None


def _write(path: Path, data: bytes, warn: Callable[[str], None]) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data, force=True)
    except OSError as error:
        warn(f"{path}: cannot be written ({error.strerror})")
        return False
    return True
