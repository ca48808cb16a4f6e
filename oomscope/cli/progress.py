"""Progress on standard error: one line that changes on a terminal, one line a stage elsewhere, nothing when quiet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from oomscope.printable import printable

if TYPE_CHECKING:
    from oomscope.probe.job import Progress


class OnProgress(Protocol):
    """Receives what a running probe says of itself."""

    def __call__(self, progress: Progress, /) -> None:
        """Take note of one step."""
        ...


def progress_text(progress: Progress) -> str:
    """Return ``step 1 of 2``."""
    from oomscope.report.words import stage_text

    return stage_text(progress)


@contextmanager
def shown_progress(what: str, *, quiet: bool = False) -> Iterator[OnProgress]:
    """Yield a receiver of progress that shows it while ``what`` is measured."""
    from oomscope.report.console import progress_console

    what = printable(what)
    console = progress_console()
    if quiet:
        yield lambda _progress: None
    elif console.is_terminal:
        with console.status(what) as status:
            yield lambda progress: status.update(f"{what}: {progress_text(progress)}")
    else:
        stages: set[str] = set()

        def announce(progress: Progress) -> None:
            if progress.stage not in stages:
                stages.add(progress.stage)
                console.print(f"{what}: {progress.stage}")

        yield announce
