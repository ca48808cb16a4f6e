"""From the words of ``oomscope bisect`` to a search, over commits or over configuration keys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.cli.options_axes import AxisOptions
from oomscope.cli.options_steps import StepOptions
from oomscope.cli.plan import harness_settings
from oomscope.errors import UsageError

if TYPE_CHECKING:
    from oomscope.bisect.places import Places
    from oomscope.bisect.ranges import FileRange, RevisionRange
    from oomscope.bisect.reporter import Reporter
    from oomscope.bisect.request import ConfigRequest
    from oomscope.bisect.result import BisectResult
    from oomscope.bisect.subjects import ConfigInRepo, HarnessFile


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What the command line says about a search."""

    ends: str
    axes: AxisOptions = field(default_factory=AxisOptions)
    steps: StepOptions = field(default_factory=StepOptions)
    overrides: tuple[str, ...]
    paths: tuple[str, ...]
    repo: Path | None
    config: str | None
    dialect: str | None
    harness: Path | None
    bad: str
    first_parent: bool
    deadline: float | None
    fresh: bool
    state: Path | None


def run_search(options: SearchOptions, reporter: Reporter) -> BisectResult:
    """Search as ``options`` say.

    Raises:
        UsageError: the options contradict each other.
        OomscopeError: see :func:`oomscope.bisect.commit_bisect.bisect_commits`.
    """
    from oomscope.bisect.ranges import FileRange, parse_ends, parse_open, parse_range

    for word in options.overrides:
        if "=" not in word:
            raise UsageError(f"{word!r} is no KEY=VALUE", remedy="write paths after --")
    if options.steps.find_good:
        if options.axes.axis not in {None, "commits"}:
            raise UsageError(f"--find-good with --axis {options.axes.axis}", remedy="name the good end")
        return _search_commits(options, parse_open(options.ends), reporter)
    ends = parse_ends(options.ends) if options.axes.axis == "environment" else parse_range(options.ends)
    if isinstance(ends, FileRange):
        return _search_keys(options, ends, reporter)
    if options.axes.axis == "config":
        return _search_keys_of_commits(options, ends, reporter)
    if options.axes.axis == "environment":
        return _search_environment(options, ends, reporter)
    return _search_commits(options, ends, reporter)


def _search_commits(options: SearchOptions, ends: RevisionRange, reporter: Reporter) -> BisectResult:
    from oomscope.bisect.commit_bisect import bisect_commits
    from oomscope.bisect.predicate import Bad
    from oomscope.bisect.request import CommitRequest
    from oomscope.bisect.square_bisect import bisect_square

    if options.axes.has_layers:
        raise UsageError(
            "variables of a good and a bad side, over commits",
            remedy="add --axis environment and name one commit, or export them for all probes",
        )
    request = CommitRequest(
        repo=options.repo or Path(),
        range=ends,
        subject=_subject(options),
        bad=Bad.parse(options.bad),
        first_parent=options.first_parent,
        paths=options.paths,
        hunks=options.axes.hunks,
        steps=options.steps.wanted(),
        deadline_s=options.deadline,
        use_cache=not options.fresh,
        places=_places(options),
    )
    if options.axes.axis == "both":
        return bisect_square(request, _config_of_square(options), reporter=reporter)
    return bisect_commits(request, reporter=reporter)


def _config_of_square(options: SearchOptions) -> str:
    if options.harness is None:
        raise UsageError(
            "--axis both without a harness",
            remedy="give --harness FILE; the bundled transformer is the same code at every commit, so that only the "
            "configuration can be at fault: --axis config",
        )
    if options.config is None:
        raise UsageError("--axis both without a configuration", remedy="give --config PATH-IN-REPO")
    return options.config


def _search_keys(options: SearchOptions, ends: FileRange, reporter: Reporter) -> BisectResult:
    from oomscope.bisect.config_bisect import bisect_configs
    from oomscope.bisect.ranges import FileAt

    if options.axes.axis in {"commits", "both"}:
        raise UsageError(f"--axis {options.axes.axis} with two configuration files", remedy="name two revisions")
    in_commits = isinstance(ends.good, FileAt) or isinstance(ends.bad, FileAt)
    meaningless = {
        "--repo": None if in_commits else options.repo,
        "--config": options.config,
        "--harness": options.harness,
        "--first-parent": options.first_parent,
        "paths": options.paths,
        "--steps": options.steps.wanted(),
    }
    for name, value in meaningless.items():
        if value:
            raise UsageError(f"{name} with two configuration files", remedy="it is about commits: leave it out")
    return bisect_configs(_config_request(options, ends), reporter=reporter)


def _search_keys_of_commits(options: SearchOptions, ends: RevisionRange, reporter: Reporter) -> BisectResult:
    from oomscope.bisect.ranges import FileAt, FileRange

    if options.config is None:
        raise UsageError("--axis config without a configuration", remedy="give --config PATH-IN-REPO, or two files")
    good, bad = (FileAt(revision=revision, path=options.config) for revision in (ends.good, ends.bad))
    return _search_keys(replace(options, config=None), FileRange(good=good, bad=bad), reporter)


def _search_environment(options: SearchOptions, ends: RevisionRange, reporter: Reporter) -> BisectResult:
    from oomscope.bisect.predicate import Bad
    from oomscope.bisect.request import SurroundingsRequest
    from oomscope.bisect.surroundings import bisect_surroundings

    if ends.good != ends.bad:
        raise UsageError(f"--axis environment with two commits, {ends}", remedy="name the one that is measured")
    if options.steps.wanted():
        raise UsageError("--steps with --axis environment", remedy="it is about commits: leave it out")
    if not options.axes.has_layers:
        raise UsageError("nothing says what changes", remedy="give --env, --good-env, --bad-env or --packages")
    request = SurroundingsRequest(
        repo=options.repo or Path(),
        revision=ends.good,
        subject=_subject(options),
        layers=options.axes.layers(_places(options)),
        bad=Bad.parse(options.bad),
        deadline_s=options.deadline,
        use_cache=not options.fresh,
        places=_places(options),
    )
    return bisect_surroundings(request, reporter=reporter)


def _config_request(options: SearchOptions, ends: FileRange) -> ConfigRequest:
    from oomscope.bisect.predicate import Bad
    from oomscope.bisect.request import ConfigRequest

    return ConfigRequest(
        range=ends,
        repo=options.repo or Path(),
        dialect=options.dialect,
        overrides=options.overrides,
        layers=options.axes.layers(_places(options)),
        bad=Bad.parse(options.bad),
        deadline_s=options.deadline,
        use_cache=not options.fresh,
        places=_places(options),
    )


def _subject(options: SearchOptions) -> ConfigInRepo | HarnessFile:
    from oomscope.bisect.subjects import ConfigInRepo, HarnessFile

    if options.config and options.harness and options.axes.axis != "both":
        raise UsageError("both --config and --harness", remedy="name one: a harness brings its own model")
    if options.harness and options.dialect:
        raise UsageError("both --from and --harness", remedy="name one: a harness brings its own model")
    if options.config and not options.harness:
        return ConfigInRepo(path=options.config, dialect=options.dialect, overrides=options.overrides)
    if options.harness:
        settings = harness_settings(options.overrides)
        return HarnessFile(path=options.harness, settings=settings, overrides=options.overrides)
    raise UsageError("nothing says what to measure of a commit", remedy="give --config PATH-IN-REPO or --harness FILE")


def _places(options: SearchOptions) -> Places:
    from oomscope.bisect.places import Places

    if options.state is None:
        return Places.default()
    return Places(options.state.absolute())
