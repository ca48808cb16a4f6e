"""Progress on standard error: one line that changes on a terminal, lines that stay with ``--verbose``, else nothing.

:class:`Ticker` tells of one piece of work, :class:`LiveProgress` of a search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from oomscope.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

    from oomscope.bisect.results.reporter import SearchPlan, Work
    from oomscope.bisect.results.result import ProbeRecord
    from oomscope.probe.job import Progress
    from oomscope.report.parts import Report


Verbosity = Literal["quiet", "terminal", "verbose"]
"""No progress at all; progress where a terminal shows it; that and lines that stay, also in a log."""
REFRESHED_PER_S = 4


def verbosity_of(value: str | None) -> Verbosity:
    """Return what the two options came to; ``terminal`` where neither was given."""
    return "quiet" if value == "quiet" else "verbose" if value == "verbose" else "terminal"


class Ticker:
    """Tells people of one piece of work while it is done.

    Args:
        what: its name.
        console: where it is told.
        verbosity: how much.
        is_all: whether nothing follows what is counted.
        clock: seconds.
    """

    def __init__(
        self,
        what: str,
        console: Console,
        verbosity: Verbosity,
        *,
        is_all: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from oomscope.report.text.live import Doing

        is_shown = console.is_terminal and not console.is_dumb_terminal and verbosity != "quiet"
        self._console = console
        self._keeps = verbosity == "verbose"
        self._keeps_lines = is_shown or verbosity == "verbose"
        self._clock = clock
        self._doing = Doing(what=printable(what), began=clock(), is_all=is_all)  # replaced: another thread draws it
        self._announced = ""
        self._live: Live | None = self._new_live() if is_shown else None

    @property
    def is_watched(self) -> bool:
        """Whether there is a line that changes, so that what is said often is worth saying."""
        return self._live is not None

    def __enter__(self) -> Ticker:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Take note of what a probe says of itself."""
        self.stage(progress.stage, progress.done, progress.total)

    def stage(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Say what is being done now, and how many of how many are done where it is counted."""
        doing, now = self._doing, self._clock()
        if (stage, total) != (doing.stage, doing.total) or done < doing.done or not doing.moments:
            moments: tuple[float, ...] = (now,)
        else:
            moments = (*doing.moments, *[now] * (done - doing.done))
        self._doing = replace(doing, stage=stage, done=done, total=total, moments=moments)
        if self._keeps and stage and stage != self._announced:
            self._announced = stage
            self._print(f"{doing.what}: {printable(stage)}")

    def line(self, text: str) -> None:
        """Say what came of a part; it stays where it is read."""
        if self._keeps_lines:
            self._print(printable(text))

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _new_live(self) -> Live:
        from rich.live import Live

        return Live(
            console=self._console,
            get_renderable=self._view,
            refresh_per_second=REFRESHED_PER_S,
            transient=True,
            vertical_overflow="crop",
        )

    def _view(self) -> Text:
        from rich.text import Text

        from oomscope.report.text.live import ticker_text

        return Text(ticker_text(self._doing, self._clock()), style="dim", no_wrap=True, overflow="ellipsis")


@contextmanager
def shown_progress(what: str, verbosity: Verbosity = "terminal", *, is_all: bool = True) -> Iterator[Ticker]:
    """Yield what tells people of ``what`` until the block ends; see :class:`Ticker`."""
    from oomscope.report.text.console import progress_console

    with Ticker(what, progress_console(), verbosity, is_all=is_all) as ticker:
        yield ticker


class LiveProgress:
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

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def planned(self, plan: SearchPlan) -> None:
        """Print the plan."""
        from oomscope.report.bisect_report import plan_report

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
        from oomscope.report.text.probes import ProbeLine

        self.close()
        self._watched = replace(self._watched, records=(*self._watched.records, record), asked="")
        self._print(ProbeLine(record))

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

    def _print(self, text: Report | RenderableType) -> None:
        from oomscope.report.text.console import show

        if self._answers is not None:
            show(self._answers, text)
            self._answers.file.flush()


def live_progress_of(value: str | None, *, answers_here: bool) -> LiveProgress:
    """Return the live for what ``--quiet`` and ``--verbose`` came to.

    Args:
        value: of the two options.
        answers_here: answers are part of what the command prints; else they are progress, and go to standard error.
    """
    from oomscope.report.text.console import progress_console, result_console

    verbosity, remarks = verbosity_of(value), progress_console()
    if answers_here:
        answers: Console | None = result_console()
    else:
        answers = remarks if verbosity == "verbose" or (verbosity == "terminal" and remarks.is_terminal) else None
    shown = None if verbosity == "quiet" else remarks
    return LiveProgress(answers, shown, lines=remarks if verbosity == "verbose" else None)
