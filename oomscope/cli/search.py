"""From the words of ``oomscope bisect`` to a search: over commits here, over other changes in ``search_deltas``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.cli.options_targets import NAMES
from oomscope.cli.search_deltas import search_environment, search_keys, search_keys_of_commits
from oomscope.cli.search_options import SearchOptions
from oomscope.cli.suggestions import other_than_range
from oomscope.errors import UsageError

if TYPE_CHECKING:
    from oomscope.bisect.results.reporter import Reporter
    from oomscope.bisect.results.result import BisectResult
    from oomscope.bisect.vcs.ranges import FileRange, RevisionRange


def run_search(options: SearchOptions, reporter: Reporter) -> BisectResult:
    """Search as ``options`` say.

    Raises:
        UsageError: the options contradict each other.
        OomscopeError: see :func:`oomscope.bisect.commit_bisect.bisect_commits`.
    """
    from oomscope.bisect.vcs.ranges import FileRange, parse_ends, parse_open

    for word in options.overrides:
        if "=" not in word:
            raise UsageError(f"{word!r} is no KEY=VALUE", remedy="write paths after --")
    if options.steps.find_good:
        if options.axes.axis not in {None, "commits"}:
            raise UsageError(f"--find-good with --axis {options.axes.axis}", remedy="name the good end")
        return _search_commits(options, parse_open(options.ends), reporter)
    ends = parse_ends(options.ends) if options.axes.axis == "environment" else _range(options.ends)
    if isinstance(ends, FileRange):
        return search_keys(options, ends, reporter)
    if options.axes.axis == "config":
        return search_keys_of_commits(options, ends, reporter)
    if options.axes.axis == "environment":
        return search_environment(options, ends, reporter)
    return _search_commits(options, ends, reporter)


def _range(text: str) -> RevisionRange | FileRange:
    from oomscope.bisect.vcs.ranges import parse_range
    from oomscope.cli.bisect_group import SUBCOMMANDS

    try:
        return parse_range(text)
    except UsageError as error:
        error.remedy = other_than_range(text, SUBCOMMANDS) or error.remedy
        raise


def _search_commits(options: SearchOptions, ends: RevisionRange, reporter: Reporter) -> BisectResult:
    from oomscope.bisect.code_vs_config import bisect_code_vs_config
    from oomscope.bisect.commit_bisect import bisect_commits
    from oomscope.bisect.requests import CommitRequest

    if options.axes.has_layers:
        raise UsageError(
            "variables of a good and a bad side, over commits",
            remedy="add --axis environment and name one commit, or export them for all probes",
        )
    request = CommitRequest(
        repo=options.repo or Path(),
        range=ends,
        subject=options.subject(),
        first_parent=options.first_parent,
        paths=options.paths,
        hunks=options.axes.hunks,
        steps=options.steps.wanted(),
        preparation=options.checkouts.preparation(),
        **options.common(),
    )
    if options.axes.axis == "both":
        return bisect_code_vs_config(request, _config_of_square(options), reporter=reporter)
    return bisect_commits(request, reporter=reporter)


def _config_of_square(options: SearchOptions) -> str:
    if options.target.option is None:
        raise UsageError(
            "--axis both without a harness, an entry or a command",
            remedy=f"give {NAMES}; the bundled transformer is the same code at every commit, so that only the "
            "configuration can be at fault: --axis config",
        )
    if options.config is None:
        raise UsageError("--axis both without a configuration", remedy="give --config PATH-IN-REPO")
    return options.config
