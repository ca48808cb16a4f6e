"""Watches a search for people: the plan and each answer as lines, and on a terminal what goes on between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from oomscope.cli.terminal.progress import telling_of
from oomscope.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from oomscope.bisect.results.reporter import SearchPlan, Work
    from oomscope.bisect.results.result import ProbeRecord
    from oomscope.probe.job import Progress

REFRESHED_PER_S = 4


class Onlooker:
    """A reporter that prints; see :class:`oomscope.bisect.results.reporter.Reporter`.

    Args:
        answers: where the plan and each answer are printed as they come; None prints neither.
        progress: where is shown what runs, if it is a terminal; None shows nothing.
        clock: seconds.
        lines: where a line is printed for each stage of each probe, for logs; None prints none.
    """

    def __init__(
        self,
        answers: Console | None,
        progress: Console | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        lines: Console | None = None,
    ) -> None:
        from oomscope.report.text.live import Watched

        is_shown = progress is not None and progress.is_terminal and not progress.is_dumb_terminal
        self._answers = answers
        self._progress = progress if is_shown else None
        self._clock = clock
        self._lines = lines
        self._told: set[str] = set()
        self._live: Live | None = None
        self._watched = Watched()  # replaced, never changed: another thread draws it

    def __enter__(self) -> Onlooker:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def planned(self, plan: SearchPlan) -> None:
        """Print the plan."""
        from oomscope.report.text.bisect import plan_report

        self.close()
        self._watched = replace(self._watched, plan=plan, planned_at=len(self._watched.records))
        self._print(plan_report(plan))

    def probing(self, name: str, number: int) -> None:
        """Remember what is asked for: it is shown once it runs, for many answers are known already."""
        self._watched = replace(self._watched, asked=name)

    def progressed(self, progress: Progress) -> None:
        """Do nothing: :meth:`at_work` tells of every slot."""

    def at_work(self, running: tuple[Work, ...]) -> None:
        """Show what runs in each slot."""
        before = {work.slot: work.label for work in self._watched.running}
        since, now = dict(self._watched.since), self._clock()
        began = {
            work.slot: since.get(work.slot, now) if before.get(work.slot) == work.label else now for work in running
        }
        self._watched = replace(self._watched, running=running, since=tuple(began.items()))
        if running:
            self._tell(running)
            self._show()

    def probed(self, record: ProbeRecord) -> None:
        """Print the answer."""
        from oomscope.report.text.bisect import probe_line

        self.close()
        self._watched = replace(self._watched, records=(*self._watched.records, record), asked="")
        self._print(probe_line(record))

    def close(self) -> None:
        """Take away what is shown."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _tell(self, running: tuple[Work, ...]) -> None:
        """Print what began since the last time."""
        if self._lines is None:
            return
        texts = {f"{work.label}: {work.progress.stage if work.progress else 'start'}" for work in running if work.label}
        for text in sorted(texts - self._told):
            self._lines.print(printable(text), soft_wrap=True)
        self._told = texts

    def _show(self) -> None:
        if self._progress is None or self._live is not None:
            return
        from rich.live import Live

        self._live = Live(
            console=self._progress,
            get_renderable=self._view,
            refresh_per_second=REFRESHED_PER_S,
            transient=True,
            vertical_overflow="crop",
        )
        self._live.start(refresh=True)

    def _view(self) -> RenderableType:
        from oomscope.report.text.live import live_view

        return live_view(self._watched, self._clock())

    def _print(self, text: RenderableType) -> None:
        from oomscope.report.text.console import show

        if self._answers is not None:
            show(self._answers, text)
            self._answers.file.flush()


def onlooker_of(value: str | None, *, answers_here: bool) -> Onlooker:
    """Return the onlooker for what ``--quiet`` and ``--verbose`` came to.

    Args:
        value: of the two options.
        answers_here: answers are part of what the command prints; else they are progress, and go to standard error.
    """
    from oomscope.report.text.console import progress_console, result_console

    telling, remarks = telling_of(value), progress_console()
    if answers_here:
        answers: Console | None = result_console()
    else:
        answers = remarks if telling == "verbose" or (telling == "terminal" and remarks.is_terminal) else None
    shown = None if telling == "quiet" else remarks
    return Onlooker(answers, shown, lines=remarks if telling == "verbose" else None)
