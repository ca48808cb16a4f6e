"""Runs probes on either card, several at once, each in a fresh process that is ended when the time is up."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from oomscope.config.schema import Config
from oomscope.errors import UsageError
from oomscope.probe.job import ProbeJob, bundled_job
from oomscope.probe.process import launch
from oomscope.probe.result import ProbeResult
from oomscope.virtual.cards import DEFAULT_CARD, find_card

Backend = Literal["virtual", "cuda"]
Item = TypeVar("Item")
Row = TypeVar("Row")

LONGEST_S = 180.0
"""No probe takes longer."""
GRACE_S = 20.0
"""What has begun when the time is up may go on so long."""
FLUSH_S = 20.0
"""What is done is handed on as often."""


def _nowhere(_rows: list[Any]) -> None:
    """Keep nothing."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where measurements are made, and until when.

    Args:
        card: the backend that is held against the virtual card: ``cuda``, or ``virtual`` to rehearse.
        folder: where files go.
        at_once: processes side by side.
        until: by the monotonic clock; what has not begun by then is left out.
    """

    card: Backend
    folder: Path
    at_once: int
    until: float
    failed: list[dict[str, str]] = field(default_factory=list)
    """What gave no row, and why."""

    def each(
        self,
        items: Iterable[Item],
        measure: Callable[[Item], Row],
        *,
        at_once: int | None = None,
        name: Callable[[Item], str] = str,
        keep: Callable[[list[Row]], None] = _nowhere,
    ) -> list[Row]:
        """Return ``measure`` of each of ``items``, in order, without those that failed or that time left out.

        Args:
            items: what is measured.
            measure: measures one; whatever it raises costs its own row alone.
            at_once: how many side by side; None: as many as the bench says.
            name: what an item is called among those that failed.
            keep: is given the rows so far, again and again.
        """
        rows: dict[int, Row] = {}
        known = len(self.failed)
        kept, lock = [time.monotonic()], threading.Lock()

        def one(number: int, item: Item) -> None:
            if time.monotonic() > self.until:
                self.failed.append({"name": name(item), "failed": "left out: the time was up"})
                return
            try:
                row = measure(item)
            except Exception as error:  # noqa: BLE001 # the others are worth having
                self.fails(name(item), error, is_said=False)
                return
            with lock:
                rows[number] = row
                if time.monotonic() - kept[0] > FLUSH_S:
                    try:
                        keep([rows[at] for at in sorted(rows)])
                    except Exception as error:  # noqa: BLE001 # it is kept again at the end
                        print(f"not kept on the way: {error!r}", file=sys.stderr)
                    kept[0] = time.monotonic()

        with ThreadPoolExecutor(at_once or self.at_once) as pool:
            for number, item in enumerate(items):
                pool.submit(one, number, item)
        for each in self.failed[known:]:
            print(f"{each['name']}: {each['failed']}", file=sys.stderr)
        return [rows[at] for at in sorted(rows)]

    def fails(self, name: str, error: BaseException, *, is_said: bool = True) -> None:
        """Note what gave no row, and print it where ``is_said``."""
        self.failed.append({"name": name, "failed": f"{type(error).__name__}: {error}"})
        if is_said:
            print(f"{name}: {self.failed[-1]['failed']}", file=sys.stderr)

    def measured(
        self,
        config: Config,
        backend: Backend,
        *,
        snapshot: Path | None = None,
        like: ProbeResult | None = None,
        demand: bool = True,
    ) -> ProbeResult:
        """Return what a probe of ``config`` gives.

        Args:
            config: what to train.
            backend: where.
            snapshot: a file to write the trace to.
            like: a result of the card; the virtual one gets its total and what it found outside the allocator.
            demand: whether what fails on the virtual card is run once more without a limit.
        """
        job = replace(bundled_job(config), backend=backend, snapshot_path=str(snapshot) if snapshot else None)
        left = max(5.0, self.until + GRACE_S - time.monotonic())
        job = replace(job, timeout_s=min(job.timeout_s, LONGEST_S, left), measure_demand=demand)
        if like is not None and backend == "virtual":
            job = replace(job, **_surroundings(job, like))
        return launch.run(job)


def _surroundings(job: ProbeJob, like: ProbeResult) -> dict[str, Any]:
    return {
        "limit_bytes": job.limit_bytes or like.limit_bytes,
        "non_torch_bytes": like.non_torch_bytes or 0,
        "other_process_bytes": like.other_process_bytes or 0,
        "gpu": known_gpu(like.gpu),
    }


def known_gpu(name: str | None) -> str | None:
    """Return a card by the name that the driver gives it; for a stranger the default one."""
    try:
        return find_card(name).name if name else None
    except UsageError as error:
        print(f"{error}: played as {DEFAULT_CARD}", file=sys.stderr)
        return DEFAULT_CARD


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
