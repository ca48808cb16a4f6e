"""From the words of ``oomscope bisect`` to a search over configuration keys, or over changes of the environment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.cli.search_options import SearchOptions
from oomscope.errors import UsageError

if TYPE_CHECKING:
    from oomscope.bisect.results.reporter import Reporter
    from oomscope.bisect.results.result import BisectResult
    from oomscope.bisect.vcs.ranges import FileRange, RevisionRange


def search_keys(options: SearchOptions, ends: FileRange, reporter: Reporter) -> BisectResult:
    """Search the keys in which two files differ, and the changes of the environment with them.

    Raises:
        UsageError: an option is about commits.
    """
    from oomscope.bisect.config_bisect import bisect_configs
    from oomscope.bisect.requests import ConfigRequest
    from oomscope.bisect.vcs.ranges import FileAt

    if options.axes.axis in {"commits", "both"}:
        raise UsageError(f"--axis {options.axes.axis} with two configuration files", remedy="name two revisions")
    in_commits = isinstance(ends.good, FileAt) or isinstance(ends.bad, FileAt)
    replace(options, repo=None if in_commits else options.repo).refuse_about_commits("two configuration files")
    request = ConfigRequest(
        range=ends,
        repo=options.repo or Path(),
        dialect=options.dialect,
        overrides=options.overrides,
        layers=options.axes.layers(options.places()),
        **options.common(),
    )
    return bisect_configs(request, reporter=reporter)


def search_keys_of_commits(options: SearchOptions, ends: RevisionRange, reporter: Reporter) -> BisectResult:
    """Search the keys of one file as it stood at two commits.

    Raises:
        UsageError: no file is named, or an option is about the commits between.
    """
    from oomscope.bisect.vcs.ranges import FileAt, FileRange

    if options.config is None:
        raise UsageError("--axis config without a configuration", remedy="give --config PATH-IN-REPO, or two files")
    good, bad = (FileAt(revision=revision, path=options.config) for revision in (ends.good, ends.bad))
    return search_keys(replace(options, config=None), FileRange(good=good, bad=bad), reporter)


def search_environment(options: SearchOptions, ends: RevisionRange, reporter: Reporter) -> BisectResult:
    """Search the changes of the environment that one commit runs in.

    Raises:
        UsageError: there are two commits or no changes, or an option is about a range of commits.
    """
    from oomscope.bisect.environment_search import bisect_environment
    from oomscope.bisect.requests import EnvironmentRequest

    if ends.good != ends.bad:
        raise UsageError(f"--axis environment with two commits, {ends}", remedy="name the one that is measured")
    if not options.axes.has_layers:
        raise UsageError("nothing says what changes", remedy="give --env, --good-env, --bad-env or --packages")
    options.refuse_about_commits("--axis environment", repo=True)
    request = EnvironmentRequest(
        repo=options.repo or Path(),
        revision=ends.good,
        subject=options.subject(),
        preparation=options.checkouts.preparation(),
        layers=options.axes.layers(options.places()),
        **options.common(),
    )
    return bisect_environment(request, reporter=reporter)
