"""Watches a search for people: the plan and each answer as lines, the running probe as a line that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomscope.cli.progress import progress_text
from oomscope.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.status import Status

    from oomscope.bisect.reporter import Plan, Work
    from oomscope.bisect.result import ProbeRecord
    from oomscope.probe.job import Progress


class Onlooker:
    """A reporter that prints; see :class:`oomscope.bisect.reporter.Reporter`.

    Args:
        answers: where the plan and each answer are printed as they come; None prints neither.
        progress: where the running probe is shown, if it is a terminal; None shows nothing.
    """

    def __init__(self, answers: Console | None, progress: Console | None) -> None:
        self._answers = answers
        self._progress = progress if progress is not None and progress.is_terminal else None
        self._status: Status | None = None
        self._running = ""

    def planned(self, plan: Plan) -> None:
        """Print the plan."""
        from oomscope.report.bisect_text import plan_report

        self._print(plan_report(plan))

    def probing(self, name: str, number: int) -> None:
        """Show what is being probed."""
        self._running = f"probe {number}: {printable(name)}"
        if self._progress is not None:
            self._status = self._progress.status(self._running)
            self._status.start()

    def progressed(self, progress: Progress) -> None:
        """Show how far the probe is."""
        if self._status is not None:
            self._status.update(f"{self._running}: {progress_text(progress)}")

    def at_work(self, running: tuple[Work, ...]) -> None:
        """Do nothing: the probe that is asked for is shown."""

    def probed(self, record: ProbeRecord) -> None:
        """Print the answer."""
        from oomscope.report.bisect_text import probe_line

        self.close()
        self._print(probe_line(record))

    def close(self) -> None:
        """Take the changing line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _print(self, text: RenderableType) -> None:
        from oomscope.report.console import show

        if self._answers is not None:
            show(self._answers, text)
            self._answers.file.flush()
