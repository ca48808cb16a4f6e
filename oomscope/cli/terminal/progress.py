"""Progress on standard error: one line that changes on a terminal, permanent lines with ``--verbose``, else nothing.

:class:`Ticker` shows one piece of work, :class:`LiveProgress` a search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from oomscope.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from oomscope.bisect.results.reporter import RunningProbe, SearchPlan
    from oomscope.bisect.results.result import ProbeRecord
    from oomscope.probe.job import Progress
    from oomscope.report.parts import Report


class Ticker:
    """Shows one piece of work while it is done.

    Args:
        what: its name.
        console: where it is shown.
        verbosity: ``quiet``, ``verbose`` or None.
        is_all: whether nothing follows what is counted.
    """

    def __init__(self, what: str, console: Console, verbosity: str | None, *, is_all: bool) -> None:
        from oomscope.report.text.ticker import WorkState

        is_shown = console.is_terminal and not console.is_dumb_terminal and verbosity != "quiet"
        self._console = console
        self._is_verbose = verbosity == "verbose"
        self._work = WorkState(
            what=printable(what), began=time.monotonic(), is_all=is_all
        )  # replaced: a thread draws it
        self._announced = ""
        self._live = _live(console, self._view) if is_shown else None

    @property
    def is_watched(self) -> bool:
        """Whether there is a line that changes, so that frequent updates are useful."""
        return self._live is not None

    def __enter__(self) -> Ticker:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show the progress of a probe."""
        self.stage(progress.stage, progress.done, progress.total)

    def stage(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Show what is being done now, and how many of how many are done where it is counted."""
        doing, now = self._work, time.monotonic()
        if (stage, total) != (doing.stage, doing.total) or done < doing.done or not doing.moments:
            moments: tuple[float, ...] = (now,)
        else:
            moments = (*doing.moments, *[now] * (done - doing.done))
        self._work = replace(doing, stage=stage, done=done, total=total, moments=moments)
        if self._is_verbose and stage and stage != self._announced:
            self._announced = stage
            self._console.print(f"{doing.what}: {printable(stage)}", soft_wrap=True)

    def line(self, text: str) -> None:
        """Print the result of a part."""
        if self._is_verbose or self._live is not None:
            self._console.print(printable(text), soft_wrap=True)

    def _view(self) -> RenderableType:
        from rich.text import Text

        from oomscope.report.text.ticker import ticker_text

        return Text(ticker_text(self._work, time.monotonic()), style="dim", no_wrap=True, overflow="ellipsis")


def _live(console: Console, view: Callable[[], RenderableType]) -> Live:
    from rich.live import Live

    return Live(console=console, get_renderable=view, refresh_per_second=4, transient=True, vertical_overflow="crop")


@contextmanager
def shown_progress(what: str, verbosity: str | None, *, is_all: bool = True) -> Iterator[Ticker]:
    """Yield what shows the progress of ``what`` until the block ends; see :class:`Ticker`."""
    from oomscope.report.text.console import progress_console

    with Ticker(what, progress_console(), verbosity, is_all=is_all) as ticker:
        yield ticker


class LiveProgress:
    """A reporter that prints; see :class:`oomscope.bisect.results.reporter.Reporter`.

    Args:
        answers: where the plan and each answer are printed as they come; None prints neither.
        progress: where is shown what runs, if it is a terminal; None shows nothing.
        lines: where a line is printed for each stage of each probe, for logs; None prints none.
    """

    def __init__(self, answers: Console | None, progress: Console | None, lines: Console | None = None) -> None:
        from oomscope.report.text.live import Watched

        is_shown = progress is not None and progress.is_terminal and not progress.is_dumb_terminal
        self._answers = answers
        self._progress = progress if is_shown else None
        self._lines = lines
        self._shown: set[str] = set()
        self._live: Live | None = None
        self._watched = Watched()  # replaced, never changed: another thread draws it

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def planned(self, plan: SearchPlan) -> None:
        """Print the plan."""
        from oomscope.report.commands.bisect import plan_report

        self._watched = replace(self._watched, plan=plan, planned_at=len(self._watched.records))
        self._print(plan_report(plan))

    def probing(self, name: str, number: int) -> None:
        """Store the probe's name; it is shown when the probe starts, since many results are cached."""
        self._watched = replace(self._watched, asked=name)

    def at_work(self, running: tuple[RunningProbe, ...]) -> None:
        """Show what runs in each slot."""
        before = {work.slot: work.label for work in self._watched.running}
        since, now = dict(self._watched.since), time.monotonic()
        began = {
            work.slot: since.get(work.slot, now) if before.get(work.slot) == work.label else now for work in running
        }
        self._watched = replace(self._watched, running=running, since=tuple(began.items()))
        if self._lines is not None and running:
            texts = {f"{work.label}: {work.progress.stage if work.progress else 'start'}" for work in running}
            for text in sorted(texts - self._shown):
                self._lines.print(printable(text), soft_wrap=True)
            self._shown = texts
        if self._progress is not None and running and self._live is None:
            self._live = _live(self._progress, self._view)
            self._live.start(refresh=True)

    def probed(self, record: ProbeRecord) -> None:
        """Print the answer."""
        from oomscope.report.text.probes import ProbeLine

        self._watched = replace(self._watched, records=(*self._watched.records, record), asked="")
        self._print(ProbeLine(record))

    def _close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _view(self) -> RenderableType:
        from oomscope.report.text.live import live_view

        return live_view(self._watched, time.monotonic())

    def _print(self, text: Report | RenderableType) -> None:
        from oomscope.report.text.console import show

        self._close()
        if self._answers is not None:
            show(self._answers, text)
            self._answers.file.flush()


def live_progress_of(verbosity: str | None, *, answers_here: bool) -> LiveProgress:
    """Return the reporter of a search.

    Args:
        verbosity: ``quiet``, ``verbose`` or None.
        answers_here: answers are part of the command's output; else they are progress, on standard error.
    """
    from oomscope.report.text.console import progress_console, result_console

    remarks = progress_console()
    if answers_here:
        answers: Console | None = result_console()
    else:
        is_wanted = verbosity == "verbose" or (verbosity is None and remarks.is_terminal)
        answers = remarks if is_wanted else None
    shown = None if verbosity == "quiet" else remarks
    return LiveProgress(answers, shown, remarks if verbosity == "verbose" else None)
