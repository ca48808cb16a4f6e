"""What the commands that probe many variants of a configuration share: how it is loaded, and results that are kept."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from oomscope.cli.options.source import ConfigSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomscope.cli.terminal.progress import Ticker
    from oomscope.config.load import LoadedConfig
    from oomscope.probe.job import ProbeJob, Progress
    from oomscope.probe.result import ProbeResult
    from oomscope.probe.tuning.variants import LoadWith, Probe


def load_with(source: ConfigSource) -> LoadWith:
    """Return what loads ``source`` with further overrides; all pipeline stages are probed unless it names a rank."""
    names_rank = "probe.rank" in source.load(enforce=False).origins
    own = source.overrides if names_rank else ("probe.rank=worst", *source.overrides)

    def load(overrides: Sequence[str]) -> LoadedConfig:
        return replace(source, overrides=(*own, *overrides)).load()

    return load


def kept_probe(*, fresh: bool, ticker: Ticker | None = None) -> Probe:
    """Return a probe that remembers: what was measured before is not measured again, unless ``fresh``.

    Results lie where ``oomscope bisect`` keeps its own.

    Args:
        fresh: measure again.
        ticker: told how far each probe is; None where several run side by side, or nobody looks.
    """
    from oomscope.bisect.run.cache import ResultCache
    from oomscope.bisect.run.identity import Content, Machine, key_of
    from oomscope.bisect.run.places import Places
    from oomscope.probe.process import warm
    from oomscope.probe.tuning.variants import launched

    cache, machine = ResultCache(Places.default().results), Machine.here(os.environ)
    numbers = count(1)

    def measured(job: ProbeJob, stop: threading.Event) -> ProbeResult:
        if ticker is None:
            return launched(job, stop)
        number = next(numbers)

        def told(progress: Progress) -> None:
            ticker.stage(f"probe {number}: {progress.stage}", progress.done, progress.total)

        return warm.run(job, told, stop=stop)

    def probe(job: ProbeJob, stop: threading.Event) -> ProbeResult:
        key = key_of(job, Content(), machine, os.environ)
        known = None if fresh else cache.get(key)
        if known is not None:
            return known
        result = measured(job, stop)
        cache.put(key, result)
        return result

    return probe
