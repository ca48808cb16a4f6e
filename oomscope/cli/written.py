"""Writes the files of a result so that one that cannot be written takes neither the report nor another with it."""

from __future__ import annotations

from collections.abc import Callable

from oomscope.cli.os_errors import refused_by_system
from oomscope.cli.output import internal_error, remark
from oomscope.cli.streams import OutputError, ReaderGoneError
from oomscope.errors import ExitCode, OomscopeError


def written(*files: Callable[[], object]) -> list[ExitCode]:
    """Write each of ``files``; tell what hindered one, and return the codes of those that are lost."""
    return [code for write in files if (code := _attempt(write)) is not ExitCode.OK]


def _attempt(write: Callable[[], object]) -> ExitCode:
    try:
        write()
    except (OutputError, ReaderGoneError, BrokenPipeError):  # of standard error: there is nobody to tell
        raise
    except OomscopeError as error:
        remark(f"oomscope: {error}")
        return ExitCode.OUTPUT_LOST
    except Exception as error:  # noqa: BLE001 - a defect of a renderer hides no measurement
        refused = refused_by_system(error)
        remark(f"oomscope: {refused or internal_error()}")
        return ExitCode.OUTPUT_LOST if refused else ExitCode.INTERNAL
    return ExitCode.OK
