"""What the command line says about a search, and what every kind of search takes from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from oomscope.bisect.run.places import JournalUse
from oomscope.cli.bisect.options import AxisOptions, CheckoutOptions, NoiseOptions, StepOptions
from oomscope.cli.options.targets import NAMES, TargetOptions
from oomscope.cli.terminal.hints import other_than_range
from oomscope.errors import UsageError
from oomscope.probe.targets.settings import harness_settings

if TYPE_CHECKING:
    from oomscope.bisect.results.noise import Noise
    from oomscope.bisect.results.predicate import Bad
    from oomscope.bisect.results.reporter import Reporter
    from oomscope.bisect.results.result import BisectResult
    from oomscope.bisect.run.places import Places
    from oomscope.bisect.run.slurm import ClusterSettings
    from oomscope.bisect.targets.subjects import ConfigInRepo, OwnCode
    from oomscope.bisect.vcs.ranges import FileRange, RevisionRange


class Common(TypedDict):
    """The fields of :class:`~oomscope.bisect.requests.SearchRequest`."""

    bad: Bad
    deadline_s: float | None
    use_cache: bool
    places: Places
    jobs: int
    cluster: ClusterSettings | None
    journal: JournalUse
    noise: Noise | None


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The values of the options."""

    ends: str
    axes: AxisOptions = field(default_factory=AxisOptions)
    steps: StepOptions = field(default_factory=StepOptions)
    noise: NoiseOptions = field(default_factory=NoiseOptions)
    checkouts: CheckoutOptions = field(default_factory=CheckoutOptions)
    overrides: tuple[str, ...]
    paths: tuple[str, ...]
    repo: Path | None
    config: str | None
    dialect: str | None
    target: TargetOptions
    bad: str
    first_parent: bool
    deadline: float | None
    fresh: bool
    state: Path | None
    jobs: int = 1
    cluster: ClusterSettings | None = None
    journal: JournalUse = field(default_factory=JournalUse)

    def common(self) -> Common:
        """Return what all requests have in common.

        Raises:
            UsageError: ``--bad`` names no class of results, or one that the target cannot answer.
        """
        self._answering_target()
        return Common(
            bad=self._wanted(),
            deadline_s=self.deadline,
            use_cache=not self.fresh,
            places=self.places(),
            jobs=self.jobs,
            cluster=self.cluster,
            journal=self.journal,
            noise=self.noise.wanted(),
        )

    def places(self) -> Places:
        """Return where results and clones are kept."""
        from oomscope.bisect.run.places import Places

        return Places.default() if self.state is None else Places(self.state.absolute())

    def subject(self) -> ConfigInRepo | OwnCode:
        """Return what of a commit is measured.

        Raises:
            UsageError: nothing says it, or two options do.
        """
        from oomscope.bisect.targets.subjects import ConfigInRepo

        own = self.target.option
        if own is None and self.config:
            return ConfigInRepo(path=self.config, dialect=self.dialect, overrides=self.overrides)
        if own is None:
            raise UsageError("nothing says what to measure of a commit", remedy=f"give --config PATH-IN-REPO, {NAMES}")
        for other, given in (("--config", self.config and self.axes.axis != "both"), ("--from", self.dialect)):
            if given:
                raise UsageError(f"both {other} and {own}", remedy="name one: your own code brings its own model")
        return self._answering_target().own_code(harness_settings(self.overrides), self.overrides)

    def _answering_target(self) -> TargetOptions:
        return self.target.answering(self._wanted(), steps=self.steps.wanted() is not None)

    def _wanted(self) -> Bad:
        from oomscope.bisect.results.predicate import Bad

        return Bad.parse(self.bad)

    def refuse_about_commits(self, what: str, *, repo: bool = False) -> None:
        """Refuse the options that are about a range of commits.

        Args:
            what: what is searched in place of one.
            repo: a repository has a meaning, and what of it is measured.

        Raises:
            UsageError: one of them was given.
        """
        given = {
            "--repo": self.repo and not repo,
            "--config": self.config and not repo,
            self.target.option or "": self.target.option and not repo,
            "--first-parent": self.first_parent,
            "paths": self.paths,
            "--steps": self.steps.wanted(),
            "--hunks": self.axes.hunks,
            **(self.checkouts.given if not repo else {}),
        }
        for name, value in given.items():
            if value:
                raise UsageError(f"{name} with {what}", remedy=f"leave {name} out: it is about commits")


def run_search(options: SearchOptions, reporter: Reporter) -> BisectResult:
    """Search as ``options`` say.

    Raises:
        UsageError: the options contradict each other.
        OomscopeError: see :func:`oomscope.bisect.commit_bisect.bisect_commits`.
    """
    from oomscope.bisect.vcs.ranges import FileRange, parse_ends, parse_open

    for word in options.overrides:
        if "=" not in word:
            raise UsageError(f"{word!r} is not a KEY=VALUE", remedy="write paths after --")
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
    from oomscope.cli.bisect.command import SUBCOMMANDS

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


def search_keys(options: SearchOptions, ends: FileRange, reporter: Reporter) -> BisectResult:
    """Search the keys in which two files differ, and the changes of the environment with them.

    Raises:
        UsageError: an option is about commits.
    """
    from oomscope.bisect.change_bisect import bisect_configs
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
    from oomscope.bisect.change_bisect import bisect_environment
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
