"""Where in a repository a reader is sent for a case: the line of code that it is about, else that of the suite.

Shell commands that go on from a night, whole: a reader pastes them into a shell and has to add nothing. Paths count
from the folder in which they are pasted. Reports that are read elsewhere have them from the root of the suite's
repository, since the folder in which a runner measured is on no other machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from oomscope.gate.culprit import with_variables
from oomscope.gate.night.result import CaseResult, GateResult, Place
from oomscope.gate.suite.identity import baseline_beside


def suite_path(night: GateResult) -> str:
    """Return what the suite is called in every checkout: its path from the root of its repository, with slashes."""
    return night.home.path if night.home is not None else Path(night.suite).name


def place_of(case: CaseResult, night: GateResult) -> Place:
    """Return the line for ``case``: of code where the night knows one in the suite's repository, else of the suite."""
    return case.place or Place(path=suite_path(night), line=max(1, case.line))


@dataclass(frozen=True, kw_only=True)
class Commands:
    """The commands of one night."""

    suite: str
    baseline: str = ""
    """Empty for the one beside the suite."""
    variables: Mapping[str, str]

    @classmethod
    def of(cls, night: GateResult) -> Commands:
        """Return those for the root of a checkout; outside of git, where there is only one, for any folder."""
        if night.home is None:
            return cls.seen_from(night, None)
        return cls.seen_from(night, Path(night.suite.removesuffix(suite_path(night))))

    @classmethod
    def seen_from(cls, night: GateResult, folder: Path | None) -> Commands:
        """Return those for ``folder``; for any folder where there is none."""
        suite, baseline = Path(night.suite), Path(night.baseline)
        is_beside = baseline in {baseline_beside(suite), Path(baseline_beside(suite).name)}
        return cls(
            suite=_path(suite, folder),
            baseline="" if is_beside else _path(baseline, folder),
            variables=night.variables,
        )

    def run(self, names: Sequence[str], *options: str) -> str:
        """Return the command that measures the cases ``names`` again, all without any."""
        return self._command("run", *_each("--case", names), *options)

    def update(self, names: Sequence[str] = (), *, accept: Sequence[str] = ()) -> str:
        """Return the command that accepts what is new or better of the cases ``names``, and ``accept`` as they are."""
        return self._command("update", *_each("--case", (*names, *accept)), *_each("--accept", accept))

    def calibrate(self, names: Sequence[str]) -> str:
        """Return the command that writes bands for the cases ``names``."""
        return self._command("calibrate", *_each("--case", names), "--write")

    def _command(self, verb: str, *words: str) -> str:
        baseline = ("--baseline", self.baseline) if self.baseline else ()
        return with_variables(self.variables, shlex.join(["oomscope", "gate", verb, self.suite, *words, *baseline]))


def _each(option: str, names: Sequence[str]) -> list[str]:
    return [word for name in names for word in (option, name)]


def _path(path: Path, folder: Path | None) -> str:
    """Return ``path`` as a word that no command takes for an option."""
    text = str(path.relative_to(folder)) if folder is not None and path.is_relative_to(folder) else str(path)
    return f"./{text}" if text.startswith("-") else text
