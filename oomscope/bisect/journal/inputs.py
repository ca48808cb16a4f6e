"""What a search is made of besides its commits: the files that it reads and what surrounds it, as digests.

A search goes on only where they are what they were; what changed is then named. Values of variables may be secret: of
each a few bits are kept, which tell a change and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomscope.bisect.requests import ConfigRequest
from oomscope.bisect.run.identity import Machine, digest_of, is_heeded
from oomscope.bisect.run.request import SearchRequest
from oomscope.bisect.targets.subjects import ConfigInRepo
from oomscope.probe.job import HarnessTarget, ProbeJob
from oomscope.probe.machine.environment import child_environment
from oomscope.probe.targets.harness import harness_files

if TYPE_CHECKING:
    from oomscope.bisect.changes.change_set import ChangeSet

HOW_IT_RUNS = ("deadline_s", "use_cache", "places", "jobs", "journal", "cluster")
"""Fields of a request that change no answer."""
_BITS_OF_A_VALUE = 4
"""Hexadecimal digits."""
_WORDS = {"sources": "oomscope's own code", "oomscope": "oomscope's version"}


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What all measurements of a search depend on, whatever is asked."""

    versions: Mapping[str, str]
    packages: str
    """Hash of the installed distributions; empty where none can matter."""
    gpus: tuple[str, ...]
    variables: Mapping[str, str]
    """The variables that the target sees, each with a few bits of its value's hash; none where it sees none."""
    environment: str
    """Hash of all of them with their values."""

    @classmethod
    def here(cls, request: SearchRequest, environment: Mapping[str, str]) -> Surroundings:
        """Return what surrounds a search for ``request`` now."""
        machine = Machine.here(environment)
        seen = {} if _is_bundled(request) else _variables(environment)
        return cls(
            versions=dict(machine.versions),
            packages=machine.packages if seen else "",
            gpus=machine.gpus,
            variables={name: digest_of({name: value})[:_BITS_OF_A_VALUE] for name, value in seen.items()},
            environment=digest_of(seen),
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "gpus": list(self.gpus)}

    def changes_since(self, before: Mapping[str, Any]) -> list[str]:
        """Return what is not as it was ``before`` (as :meth:`to_json` wrote it, or a torn line of it), in words."""
        try:
            return self._changes_since(before)
        except (KeyError, TypeError, AttributeError):
            return ["the surroundings, which its first line does not tell whole"]

    def _changes_since(self, before: Mapping[str, Any]) -> list[str]:
        versions = [_WORDS.get(name, name) for name in _changed(before["versions"], self.versions)]
        names = [*versions, *_changed(before["variables"], self.variables)]
        if not names and before["environment"] != self.environment:
            names.append("a variable")
        if before["packages"] != self.packages:
            names.append("the installed packages")
        if list(before["gpus"]) != list(self.gpus):
            names.append("the GPUs or their driver")
        return names


def inputs_of(request: SearchRequest) -> dict[str, str]:
    """Return the SHA-256 of each file that a search for ``request`` reads, by path, and of each layer, by its ends."""
    files = {str(file): _digest_of_file(file) for path in _paths(request) for file in _with_its_modules(path)}
    layers: tuple[ChangeSet, ...] = getattr(request, "layers", ())
    return files | {f"{layer.good}..{layer.bad}": _digest_of_layer(layer) for layer in layers}


def changed_inputs(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names of the inputs that are not as they were."""
    return _changed(before, now)


def plain(value: Any) -> Any:
    """Return ``value``, a request or a part of one, as JSON values for people and programs to read.

    Layers may hold secrets and are written by the names of their changes alone.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: _names_of(own) if each.name == "layers" else plain(own)
            for each in fields(value)
            if each.name not in HOW_IT_RUNS and (own := getattr(value, each.name)) is not None
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


def _names_of(layers: Sequence[ChangeSet]) -> list[list[str]]:
    return [list(layer.keys) for layer in layers]


def _is_bundled(request: SearchRequest) -> bool:
    """Whether the bundled transformer is measured, which sees only the variables that are measured."""
    return isinstance(request, ConfigRequest) or isinstance(getattr(request, "subject", None), ConfigInRepo)


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    job = ProbeJob(target=HarnessTarget(harness="", repo=""))
    return {name: value for name, value in child_environment(job, environment).items() if is_heeded(name)}


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _paths(value: Any) -> Iterator[Path]:
    """Yield the files that ``value`` names in any of its fields."""
    if isinstance(value, Path):
        if value.is_file():
            yield value
    elif is_dataclass(value):
        for each in fields(value):
            if each.name not in (*HOW_IT_RUNS, "layers"):
                yield from _paths(getattr(value, each.name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths(item)


def _with_its_modules(path: Path) -> list[Path]:
    """Return ``path``, and the modules beside it that it imports."""
    return [path, *(file for file in harness_files(path) if file != path)] if path.suffix == ".py" else [path]


def _digest_of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest_of_layer(layer: ChangeSet) -> str:
    return digest_of({key: [str(layer.change(key).good), str(layer.change(key).bad)] for key in layer.keys})
