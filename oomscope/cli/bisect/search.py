"""From a search on the command line to the function of :mod:`oomscope.bisect` that makes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.cli.bisect.options import OWN_FILE, Search
from oomscope.cli.sources import TARGETS
from oomscope.cli.terminal.hints import other_than_range
from oomscope.errors import UsageError

if TYPE_CHECKING:
    from oomscope.bisect.results.reporter import Reporter
    from oomscope.bisect.results.result import BisectResult
    from oomscope.bisect.vcs.ranges import FileRange, RevisionRange


def run_search(search: Search, reporter: Reporter) -> BisectResult:
    """Search as the command line asks.

    Raises:
        UsageError: the options contradict each other.
        OomscopeError: see :func:`oomscope.bisect.commit_bisect.bisect_commits`.
    """
    from oomscope.bisect.vcs.ranges import FileAt, FileRange, parse_ends, parse_open, parse_range

    search.check()
    options = search.options
    if options.find_good:
        return _search_commits(search, parse_open(search.ends), reporter)
    try:
        ends = (parse_ends if options.axis == "environment" else parse_range)(search.ends)
    except UsageError as error:
        from oomscope.cli.bisect.command import SUBCOMMANDS

        error.remedy = other_than_range(search.ends, SUBCOMMANDS) or error.remedy
        raise
    if isinstance(ends, FileRange):
        return _search_keys(search, ends, reporter)
    if options.axis == "config":
        if options.config is None:
            raise UsageError("--axis config without a configuration", remedy="give --config PATH-IN-REPO, or two files")
        good, bad = (FileAt(revision=revision, path=options.config) for revision in (ends.good, ends.bad))
        between = replace(search, options=replace(options, config=None))
        return _search_keys(between, FileRange(good=good, bad=bad), reporter)
    if options.axis == "environment":
        return _search_environment(search, ends, reporter)
    return _search_commits(search, ends, reporter)


def _search_commits(search: Search, ends: RevisionRange, reporter: Reporter) -> BisectResult:
    from oomscope.bisect.code_vs_config import bisect_code_vs_config
    from oomscope.bisect.commit_bisect import bisect_commits
    from oomscope.bisect.requests import CommitRequest

    options = search.options
    if options.has_changes:
        remedy = "add --axis environment and name one commit, or export them for all probes"
        raise UsageError("variables of a good and a bad side, over commits", remedy=remedy)
    request = CommitRequest(
        repo=options.repo or Path(),
        range=ends,
        subject=search.subject(),
        first_parent=options.first_parent,
        paths=search.paths,
        hunks=options.hunks,
        steps=search.steps(),
        preparation=search.preparation(),
        **search.common(),
    )
    if options.axis != "both":
        return bisect_commits(request, reporter=reporter)
    if search.target.option is None:
        remedy = (
            f"give {TARGETS}; the bundled transformer is the same code at every commit, so that only the configuration "
            "can be at fault: --axis config"
        )
        raise UsageError("--axis both without a harness, an entry or a command", remedy=remedy)
    if options.config is None:
        raise UsageError("--axis both without a configuration", remedy="give --config PATH-IN-REPO")
    return bisect_code_vs_config(request, options.config, reporter=reporter)


def _search_keys(search: Search, ends: FileRange, reporter: Reporter) -> BisectResult:
    """Search the keys in which two files differ, and the changes of the environment with them."""
    from oomscope.bisect.change_bisect import bisect_configs
    from oomscope.bisect.requests import ConfigRequest
    from oomscope.bisect.vcs.ranges import FileAt
    from oomscope.config.problems import InvalidConfigError

    axis = search.options.axis
    if axis in {"commits", "both"}:
        raise UsageError(f"--axis {axis} with two configuration files", remedy="name two revisions")
    in_commits = isinstance(ends.good, FileAt) or isinstance(ends.bad, FileAt)
    checked = replace(search, options=replace(search.options, repo=None)) if in_commits else search
    checked.refuse_about_commits("two configuration files", has_repo=False)
    request = ConfigRequest(
        range=ends,
        repo=search.options.repo or Path(),
        dialect=search.dialect,
        overrides=search.overrides,
        layers=search.change_sets(),
        **search.common(),
    )
    try:
        return bisect_configs(request, reporter=reporter)
    except InvalidConfigError as error:
        if any(problem.message.startswith("unknown ") for problem in error.problems):
            error.remedy = "; ".join(filter(None, (error.remedy, OWN_FILE)))
        raise


def _search_environment(search: Search, ends: RevisionRange, reporter: Reporter) -> BisectResult:
    """Search the changes of the environment that one commit runs in."""
    from oomscope.bisect.change_bisect import bisect_environment
    from oomscope.bisect.requests import EnvironmentRequest

    if ends.good != ends.bad:
        raise UsageError(f"--axis environment with two commits, {ends}", remedy="name the one that is measured")
    search.refuse_about_commits("--axis environment", has_repo=True)
    request = EnvironmentRequest(
        repo=search.options.repo or Path(),
        revision=ends.good,
        subject=search.subject(),
        preparation=search.preparation(),
        layers=search.change_sets(),
        **search.common(),
    )
    return bisect_environment(request, reporter=reporter)
