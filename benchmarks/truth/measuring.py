"""Runs probes on either backend, several at once, each in a fresh process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from oomscope.config.schema import Config
from oomscope.probe import launch
from oomscope.probe.job import ProbeJob
from oomscope.probe.jobs import bundled_job
from oomscope.probe.result import ProbeResult

Backend = Literal["sim", "cuda"]
Item = TypeVar("Item")
Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where measurements are made, and until when.

    Args:
        card: the backend that stands for the card: ``cuda``, or ``sim`` to rehearse.
        folder: where files go.
        at_once: processes side by side.
        until: by the monotonic clock; what has not begun by then is left out.
    """

    card: Backend
    folder: Path
    at_once: int
    until: float

    def each(self, items: Iterable[Item], measure: Callable[[Item], Row], at_once: int | None = None) -> list[Row]:
        """Return ``measure`` of each of ``items``, in order, without those that time left out, which are told of."""
        left_out = []

        def one(item: Item) -> Row | None:
            if time.monotonic() > self.until:
                left_out.append(item)
                return None
            return measure(item)

        with ThreadPoolExecutor(at_once or self.at_once) as pool:
            rows = [row for row in pool.map(one, items) if row is not None]
        if left_out:
            print(f"time was up: {len(left_out)} left out", file=sys.stderr)
        return rows


def measured(
    config: Config, backend: Backend, *, snapshot: Path | None = None, like: ProbeResult | None = None
) -> ProbeResult:
    """Return what a probe of ``config`` gives.

    Args:
        config: what to train.
        backend: where.
        snapshot: a file to write the trace to.
        like: a result of the card; a simulated one gets its total and what it found outside the allocator.
    """
    job = replace(bundled_job(config), backend=backend, snapshot_path=str(snapshot) if snapshot else None)
    if like is not None and backend == "sim":
        job = replace(job, **_surroundings(job, like))
    return launch.run(job)


def _surroundings(job: ProbeJob, like: ProbeResult) -> dict[str, int | str | None]:
    return {
        "limit_bytes": job.limit_bytes or like.limit_bytes,
        "non_torch_bytes": like.non_torch_bytes or 0,
        "other_process_bytes": like.other_process_bytes or 0,
        "gpu": like.gpu,
    }


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
