"""Progress on standard error: one line that changes on a terminal, lines that stay with ``--verbose``, else nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from oomscope.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from oomscope.probe.job import Progress

Telling = Literal["quiet", "terminal", "verbose"]
"""No progress at all; progress where a terminal shows it; that and lines that stay, also in a log."""
REFRESHED_PER_S = 4


def telling_of(value: str | None) -> Telling:
    """Return what the two options came to; ``terminal`` where neither was given."""
    return "quiet" if value == "quiet" else "verbose" if value == "verbose" else "terminal"


class Ticker:
    """Tells people of one piece of work while it is done.

    Args:
        what: its name.
        console: where it is told.
        telling: how much.
        is_all: whether nothing follows what is counted.
        clock: seconds.
    """

    def __init__(
        self,
        what: str,
        console: Console,
        telling: Telling,
        *,
        is_all: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from oomscope.report.text.live import Doing

        is_shown = console.is_terminal and not console.is_dumb_terminal and telling != "quiet"
        self._console = console
        self._keeps = telling == "verbose"
        self._keeps_lines = is_shown or telling == "verbose"
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
def shown_progress(what: str, telling: Telling = "terminal", *, is_all: bool = True) -> Iterator[Ticker]:
    """Yield what tells people of ``what`` until the block ends; see :class:`Ticker`."""
    from oomscope.report.text.console import progress_console

    with Ticker(what, progress_console(), telling, is_all=is_all) as ticker:
        yield ticker
