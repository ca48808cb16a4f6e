"""The fixture ``probe``: ``oomscope probe`` as a function, which keeps its results for the limits of the test."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from oomscope.pytest_plugin.limits import one_failure

if TYPE_CHECKING:
    from oomscope.probe.result import ProbeResult

_FilePath = str | PathLike[str]


class Probing:
    """Measures for one test; relative paths are taken from pytest's root directory."""

    def __init__(self, root: Path, settings: dict[str, object]) -> None:
        self._root = root
        self._settings = settings
        self.results: list[ProbeResult] = []
        """Every result that was handed out."""

    def __call__(
        self,
        *words: _FilePath,
        preset: str | None = None,
        harness: _FilePath | None = None,
        entry: str | None = None,
        command: str | None = None,
        metric_regex: str | None = None,
        snapshot_glob: str | None = None,
        repo: _FilePath | None = None,
        limit: str | int | None = None,
        gpu: str | None = None,
        backend: Literal["auto", "virtual", "cuda"] | None = None,
        rank: int | str | None = None,
        world_size: int | None = None,
        iterations: int | None = None,
        timeout: float | None = None,
    ) -> ProbeResult:
        """Measure in processes of its own, and return the result: it fits, or it went out of memory.

        Args:
            words: a configuration file, and overrides such as ``"data.micro_batch_size=2"``.
            preset: a preset in place of the file.
            harness: your own code through this file; the same goes for ``entry`` and ``command``.
            entry: ``pkg.module:function``.
            command: any program, read by ``metric_regex`` or ``snapshot_glob``.
            metric_regex: finds the bytes in what the command prints, by its one group.
            snapshot_glob: the memory snapshots that the command writes.
            repo: the checkout in which these three are measured; the root directory unless given.
            limit: bytes of the card in all, such as ``"80 GiB"``.
            gpu: a card by name, such as ``"h100-80gb"``.
            backend: where to measure.
            rank: a number, ``"first"``, ``"last"`` or ``"worst"``.
            world_size: ranks of the world of your own code.
            iterations: training steps.
            timeout: seconds for one rank.

        Fails the test where what was asked for is wrong, or where nothing could be measured.
        """
        from oomscope.cli.options import settings_overrides
        from oomscope.cli.probe import plan_of
        from oomscope.cli.sources import TargetOptions, config_source
        from oomscope.probe.process import warm
        from oomscope.probe.ranks import probe_ranks

        given: dict[str, object] = {"backend": backend, "gpu": gpu, "limit": limit, "rank": rank}
        given |= {"world_size": world_size, "iterations": iterations, "timeout": timeout}
        settings = self._settings | {name: value for name, value in given.items() if value is not None}
        target: dict[str, Any] = {
            "entry": entry,
            "command": command,
            "metric_regex": metric_regex,
            "snapshot_glob": snapshot_glob,
        }
        target["harness"] = None if harness is None else self._root / harness
        with one_failure("probe: nothing was measured"):
            source = config_source([str(word) for word in words], preset, settings_overrides(settings))
            if source.path is not None:
                source = replace(source, path=self._root / source.path)
            options = TargetOptions.of(target).checked()
            checkout = self._root / (repo or "")
            plan = plan_of(source, target=options, repo=checkout if options.option or repo else None, snapshot=None)
            result = probe_ranks(plan.job, plan.ranks, warm.run)
        if result.failure is not None:
            failure = result.failure
            pytest.fail(f"probe: {plan.title} was not measured ({failure.kind})\n{failure.reason}", pytrace=False)
        self.results.append(result)
        return result


_PROBING = pytest.StashKey[Probing]()


def probing_of(item: pytest.Item) -> Probing:
    """Return a fresh maker of probes for the test."""
    settings = {"backend": item.config.getini("oomscope_backend"), "gpu": item.config.getini("oomscope_gpu") or None}
    item.stash[_PROBING] = Probing(item.config.rootpath, settings)
    return item.stash[_PROBING]


def is_asked(item: pytest.Item) -> bool:
    """Whether the test has the fixture: this one, and not another of its name."""
    return _PROBING in item.stash


def results(item: pytest.Item) -> list[ProbeResult]:
    """Return what the test has probed; nothing where it does not use the fixture."""
    probing = item.stash.get(_PROBING, None)
    return [] if probing is None else probing.results
