"""Everything that is made of a night once its exit code stands: each on its own, so that none hides another.

A renderer with a defect, a full disk or a reader that went away leaves the exit code of a night that is not green as
it is; a green night ends with the code of what failed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.cli.terminal.output import internal_error, print_json, print_report, remark, write_file
from oomscope.cli.terminal.streams import OutputError, ReaderGoneError
from oomscope.errors import ExitCode, InputError, OomscopeError, gravest
from oomscope.files import real_path
from oomscope.gate.checkouts import home_of

if TYPE_CHECKING:
    from oomscope.cli.gate.options import OutputOptions
    from oomscope.gate.night.result import GateResult

_ROOTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE")
"""What GitHub, GitLab and Jenkins call the folder of the checkout."""
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


class Outputs:
    """The outputs of ``night``, made one after the other."""

    def __init__(self, night: GateResult) -> None:
        self._night = night
        self._lost: list[ExitCode] = []

    @property
    def exit_code(self) -> ExitCode:
        """That of the night; where it is green, that of the gravest output that failed."""
        return self._night.exit_code or gravest(self._lost)

    def attempt(self, make: Callable[[], object]) -> None:
        """Make one output, and tell of it where it fails."""
        try:
            make()
        except (OutputError, ReaderGoneError) as error:  # raised again when the streams are closed, with this code
            self._lost.append(error.exit_code)
            error.exit_code = self._night.exit_code or error.exit_code
        except InputError as error:
            self._failed(ExitCode.OUTPUT_LOST, error)
        except OSError as error:
            self._failed(ExitCode.OUTPUT_LOST, _unwritable(error))
        except Exception:  # noqa: BLE001 - a defect of a renderer hides neither the status nor the other outputs
            self._failed(ExitCode.INTERNAL, internal_error())

    def offer(self, make: Callable[[], object]) -> None:
        """Make an output that nobody asked for: where it fails, that is told, and costs a green night nothing."""
        lost = len(self._lost)
        self.attempt(make)
        del self._lost[lost:]

    def _failed(self, code: ExitCode, error: OomscopeError) -> None:
        self._lost.append(code)
        self.attempt(lambda: remark(f"oomscope: {error}"))


def write_outputs(
    night: GateResult,
    options: OutputOptions,
    *,
    as_json: bool,
    keep: Callable[[], object] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ExitCode:
    """Keep, write and print ``night``, and return what the command ends with.

    Args:
        night: what came of it.
        options: what is written where.
        as_json: print the document in place of the report.
        keep: puts the night into the ledger; before all else, since the search for a commit rests on it.
        environment: tells the checkout's folder and GitHub's file for summaries.
    """
    outputs = Outputs(night)
    if keep is not None:
        outputs.attempt(keep)
    if options.result is not None:
        outputs.attempt(partial(_document, options.result, night))
    outputs.attempt(lambda: _print(night, as_json=as_json))
    for make in _files(night, options, environment):
        outputs.attempt(make)
    if options.annotations:
        outputs.attempt(partial(_annotate, night, environment))
    if options.summary is None and environment.get(SUMMARY_VARIABLE):
        outputs.offer(partial(_append_summary, night, environment))
    return outputs.exit_code


def keep_outputs(
    night: GateResult,
    options: OutputOptions,
    *,
    keep: Callable[[], object] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Keep and write ``night`` before a search that may be interrupted, or killed with a job whose time is over.

    :func:`write_outputs` writes over all of it, and tells what is written then.
    """
    outputs = Outputs(night)
    if keep is not None:
        outputs.attempt(keep)
    if options.result is not None:
        outputs.attempt(partial(_document, options.result, night, is_told=False))
    for make in _files(night, options, environment, is_told=False):
        outputs.attempt(make)


def _document(path: Path, night: GateResult, *, is_told: bool = True) -> None:
    write_file(path, json.dumps(night.to_json(), allow_nan=False), is_told=is_told)


def _print(night: GateResult, *, as_json: bool) -> None:
    if as_json:
        print_json(night.to_json())
    else:
        from oomscope.report.gate_commands import Commands
        from oomscope.report.text.gate import gate_report

        print_report(gate_report(night, Commands.seen_from(night, real_path(Path()))))
    sys.stdout.flush()


def _files(
    night: GateResult, options: OutputOptions, environment: Mapping[str, str], *, is_told: bool = True
) -> Iterator[Callable[[], object]]:
    """Yield what makes each file that was asked for; nothing is imported or rendered before it is called."""
    paths = {option: path for option, path in options.files if option in RENDERERS and path is not None}
    for option, path in paths.items():
        yield partial(_render, option, path, night, environment, is_told=is_told)


def _render(option: str, path: Path, night: GateResult, environment: Mapping[str, str], *, is_told: bool) -> None:
    module, _, function = RENDERERS[option].partition(":")
    render: Callable[[GateResult], str | bytes] = getattr(import_module(module), function)
    write_file(path, render(homed(night, environment)), is_told=is_told)


def _annotate(night: GateResult, environment: Mapping[str, str]) -> None:
    from oomscope.report.ci.github import annotation_commands

    for command in annotation_commands(homed(night, environment)):
        remark(command)


def _append_summary(night: GateResult, environment: Mapping[str, str]) -> None:
    """Append to the summary of the step, to which its other commands write as well, what there is room for."""
    from oomscope.report.ci.github import SUMMARY_ROOM, summary

    path = Path(environment[SUMMARY_VARIABLE])
    used = path.stat().st_size if path.exists() else 0
    text = summary(homed(night, environment), SUMMARY_ROOM - used)
    if not text:
        raise InputError("the summary of this step is full", where=str(path), remedy="give the gate a step of its own")
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{text}" if used else text)


def homed(night: GateResult, environment: Mapping[str, str]) -> GateResult:
    """Return ``night`` with its suite's home: as it was measured, else as git or the CI system know it here."""
    from oomscope.gate.suite.identity import Home

    if night.home is not None:
        return night
    suite = real_path(Path(night.suite))
    if (home := home_of(suite)) is not None:
        return replace(night, home=home)
    for name in _ROOTS:
        root = real_path(Path(environment.get(name) or suite))
        if suite != root and suite.is_relative_to(root):
            return replace(night, home=Home(path=suite.relative_to(root).as_posix()))
    return night


RENDERERS: dict[str, str] = {
    "--junit": "oomscope.report.ci.junit:junit_document",
    "--html": "oomscope.report.html.gate:night_page",
    "--summary": "oomscope.report.ci.github:summary",
    "--comment": "oomscope.report.ci.github:comment",
}
"""Option to the function that makes its file, imported when it is needed."""


def _unwritable(error: OSError) -> OutputError:
    return OutputError(f"cannot write: {error.strerror}", where=error.filename, remedy="choose another place")
