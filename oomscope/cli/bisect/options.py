"""The options of ``oomscope bisect``, declared once, and the requests that they make."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.bisect.run.state_dirs import JournalUse
from oomscope.cli.options import FILE, MOST, Options, Size, option
from oomscope.cli.sources import TARGETS, TargetOptions
from oomscope.errors import UsageError
from oomscope.printable import quoted
from oomscope.probe.targets.settings import harness_settings
from oomscope.units import parse_size

if TYPE_CHECKING:
    from oomscope.bisect.changes.change_set import ChangeSet
    from oomscope.bisect.results.predicate import Bad
    from oomscope.bisect.results.sections import StepsWanted
    from oomscope.bisect.run.state_dirs import StateDirs
    from oomscope.bisect.targets.preparation import Preparation
    from oomscope.bisect.targets.subjects import ConfigInRepo, OwnCode

AXES = ("commits", "config", "environment", "both")
OWN_FILE = "if your own program reads these files, commit them as one and search with --axis both --config PATH-IN-REPO"
"""What to do with two configuration files that are not oomscope's."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Options):
    """The options of a search but for those of the target, of measuring and of output."""

    repo: Path | None = option(
        "--repo", type=FILE, metavar="DIR", help="The repository, or the folder of it to measure (default: .)."
    )
    config: str | None = option(
        "--config", metavar="PATH", help="Measure the configuration file at PATH in each commit."
    )
    bad: str = option("--bad", default="any-oom", metavar="CLASS", help="Which result is bad (default: any-oom).")
    first_parent: bool = option(
        "--first-parent", is_flag=True, help="Report a merge at fault instead of searching its branches."
    )
    deadline: float | None = option(
        "--deadline",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="End the search after this long and report the suspects.",
    )
    steps: bool = option("--steps", is_flag=True, help="Find every commit that changed requested bytes or overhead.")
    min_step: str | None = option(
        "--min-step",
        type=Size(),
        metavar="SIZE",
        help="Steps are changes above SIZE (default: requested 0, overhead 20MiB; cuda: spread); implies --steps.",
    )
    exhaustive: int | None = option(
        "--exhaustive",
        type=click.IntRange(1, MOST),
        is_flag=False,
        flag_value=MOST,
        metavar="[=N]",
        help="Probe all commits (or N) even if both ends are equal; implies --steps.",
    )
    find_good: bool = option(
        "--find-good", is_flag=True, help="Look for a good end: 1, 3, 7, 14, 30 and 60 days before ..BAD."
    )
    confidence: float | None = option(
        "--confidence",
        type=click.FloatRange(0.5, 1, min_open=True, max_open=True),
        metavar="P",
        help="Allow for wrong answers: repeat probes until one candidate has probability P (cuda: 0.95).",
    )
    repeats: int | None = option(
        "--repeats",
        type=click.IntRange(1, MOST),
        metavar="N",
        help="Probe one commit or combination up to N times (default: 20); 1 takes every answer as correct.",
    )
    axis: str | None = option(
        "--axis",
        type=click.Choice(AXES),
        metavar="AXIS",
        help="commits, config (the default between files), environment, or both (code and config).",
    )
    env: str | None = option(
        "--env", metavar="FILE..FILE", help="Environment variables of both sides, searched like keys."
    )
    good_env: tuple[str, ...] = option(
        "--good-env", multiple=True, metavar="NAME=VALUE", help="A variable of the good side."
    )
    bad_env: tuple[str, ...] = option(
        "--bad-env", multiple=True, metavar="NAME=VALUE", help="A variable of the bad side."
    )
    packages: str | None = option(
        "--packages",
        metavar="FILE..FILE",
        help="Packages of both sides, searched like keys: pip freeze, uv.lock, poetry.lock or pylock.toml.",
    )
    hunks: bool = option(
        "--hunks", is_flag=True, help="Narrow the culprit commit to its hunks, or to the keys it changed."
    )
    fixup: tuple[str, ...] = option(
        "--fixup",
        multiple=True,
        metavar="'RANGE: PATCH|CMD'",
        help="Repair the commits of RANGE (A..B, a revision or *) by a patch file or a command.",
    )
    link: tuple[str, ...] = option(
        "--link",
        multiple=True,
        metavar="PATH",
        help="Link PATH, which git does not track (data, .env), into every checkout.",
    )
    setup: str | None = option("--setup", metavar="CMD", help="Run CMD in every checkout first, such as a build.")
    setup_timeout: float | None = option(
        "--setup-timeout",
        type=click.FloatRange(min=0, min_open=True, max=7 * 86_400),
        metavar="SECONDS",
        help="End a --setup, or a command of --fixup, after this long (default: 1800).",
    )
    executor: str = option(
        "--executor",
        type=click.Choice(["local", "slurm"]),
        default="local",
        metavar="[local|slurm]",
        help="Where probes run: here (default), or as Slurm jobs, --jobs of them at once.",
    )
    slurm: tuple[str, ...] = option(
        "--slurm",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of sbatch for each job, such as partition=gpu or gpus-per-node=1.",
    )
    state: Path | None = option("--state", type=FILE, metavar="DIR", help="Directory for results, clones and journals.")

    @property
    def has_changes(self) -> bool:
        """Whether the environment changes."""
        return bool(self.env or self.good_env or self.bad_env or self.packages)

    @property
    def wants_steps(self) -> bool:
        """Whether every change of bytes is searched for."""
        return self.steps or self.min_step is not None or self.exhaustive is not None


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search as the command line asks for it."""

    ends: str
    options: SearchOptions = field(default_factory=SearchOptions)
    target: TargetOptions = field(default_factory=TargetOptions)
    overrides: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """Paths whose commits are searched first."""
    dialect: str | None = None
    jobs: int = 1
    fresh: bool = False
    journal: JournalUse = field(default_factory=JournalUse)

    def check(self) -> None:
        """Refuse options that exclude each other."""
        options, bad = self.options, self.bad
        is_measuring_itself = self.target.command is not None and not self.target.is_program
        needs_snapshot = is_measuring_itself and self.target.snapshot_glob is None and bad.name != "exit"
        needs_bytes = needs_snapshot and self.target.metric_regex is None
        name_bytes = f"--bad {bad}" if bad.name == "requested" else "--steps"
        own, name_one = self.target.option, "name one: your own code brings its own model"
        excluded: tuple[tuple[object, str, str], ...] = (
            (
                own and options.config and options.axis != "both",
                f"both --config and {own}",
                f"{name_one}; give --axis both to search its code and the file that --config names",
            ),
            (own and self.dialect, f"both --from and {own}", name_one),
            (
                bad.name == "exit" and self.target.command is None,
                "--bad exit without --command",
                "for other targets choose another class",
            ),
            (
                needs_snapshot and bad.name in {"capacity", "fragmentation", "reserved"},
                f"--bad {bad} needs a snapshot",
                "leave out how the command is read, or let it write a snapshot and give --snapshot-glob PATTERN",
            ),
            (
                needs_bytes and (bad.name == "requested" or options.wants_steps),
                f"{name_bytes} needs bytes",
                "leave --exit-status out, so that the command is recorded",
            ),
            (
                options.confidence is not None and options.repeats == 1,
                "--confidence with --repeats 1",
                "leave one out: one probe of each takes every answer as correct",
            ),
            (
                options.find_good and options.axis not in {None, "commits"},
                f"--find-good with --axis {options.axis}",
                "name the good end",
            ),
            (
                options.axis == "environment" and not options.has_changes,
                "nothing says what changes",
                "give --env, --good-env, --bad-env or --packages",
            ),
        )
        for is_given, what, remedy in excluded:
            if is_given:
                raise UsageError(what, remedy=remedy)
        for word in self.overrides:
            if "=" not in word:
                raise UsageError(f"{quoted(word)} is not a KEY=VALUE", remedy="write paths after --")

    def refuse_about_commits(self, what: str, *, has_repo: bool) -> None:
        """Refuse the options that are about a range of commits.

        Args:
            what: what is searched in place of one.
            has_repo: a checkout is measured, in which the options of checkouts have a meaning.
        """
        options = self.options
        given: dict[str, object] = {
            "--first-parent": options.first_parent,
            "paths": self.paths,
            "--steps": options.wants_steps,
            "--hunks": options.hunks,
        }
        if not has_repo:
            given |= {
                "--repo": options.repo,
                "--config": options.config,
                self.target.option or "": self.target.option,
                "--fixup": options.fixup,
                "--link": options.link,
                "--setup": options.setup,
            }
        for name, value in given.items():
            if value:
                own = f"; {OWN_FILE}" if name == self.target.option and not has_repo else ""
                raise UsageError(f"{name} with {what}", remedy=f"leave {name} out: it applies to commits{own}")

    @property
    def bad(self) -> Bad:
        """The class of bad results."""
        from oomscope.bisect.results.predicate import Bad

        return Bad.parse(self.options.bad)

    @property
    def state_dirs(self) -> StateDirs:
        """Where results, clones and journals are kept."""
        from oomscope.bisect.run.state_dirs import StateDirs

        return StateDirs.at(self.options.state)

    def common(self) -> dict[str, Any]:
        """Return the fields of :class:`~oomscope.bisect.run.prober.SearchRequest`, which every request has."""
        from oomscope.bisect.run.slurm import sbatch_options
        from oomscope.bisect.search.repeats import CONFIDENCE, REPEATS, Noise

        options = self.options
        is_noisy = options.confidence is not None or options.repeats is not None
        noise = Noise(confidence=options.confidence or CONFIDENCE, repeats=options.repeats or REPEATS)
        return {
            "bad": self.bad,
            "deadline_s": options.deadline,
            "use_cache": not self.fresh,
            "state_dirs": self.state_dirs,
            "jobs": self.jobs,
            "cluster": sbatch_options(options.slurm) if options.executor == "slurm" else None,
            "journal": self.journal,
            "noise": noise if is_noisy else None,
        }

    def subject(self) -> ConfigInRepo | OwnCode:
        """Return what of a commit is measured."""
        from oomscope.bisect.targets.subjects import ConfigInRepo, own_code_of

        is_asked_status = self.bad.name == "exit" and self.target.is_program
        target = (replace(self.target, exit_status=True) if is_asked_status else self.target).target_at("")
        if target is not None:
            return own_code_of(target, harness_settings(self.overrides), self.overrides)
        if self.options.config is None:
            remedy = f"give --config PATH-IN-REPO, {TARGETS}"
            raise UsageError("nothing says what to measure of a commit", remedy=remedy)
        return ConfigInRepo(path=self.options.config, dialect=self.dialect, overrides=self.overrides)

    def steps(self) -> StepsWanted | None:
        """Return which steps are searched for; None for none."""
        from oomscope.bisect.results.sections import StepsWanted
        from oomscope.bisect.search.steps import Threshold

        if not self.options.wants_steps:
            return None
        least = self.options.min_step
        threshold = None if least is None else Threshold.of(parse_size(least, where="--min-step"))
        return StepsWanted(threshold=threshold, looks=self.options.exhaustive or 0)

    def preparation(self) -> Preparation:
        """Return what is done to each checkout.

        Raises:
            UsageError: an option is ill-formed, or names a file that is not there.
        """
        from oomscope.bisect.targets.preparation import TIMEOUT_S, Fixup, Preparation

        options = self.options
        return Preparation(
            fixups=tuple(Fixup.parse(text) for text in options.fixup),
            setup=options.setup or "",
            links=options.link,
            timeout_s=options.setup_timeout or TIMEOUT_S,
        )

    def change_sets(self) -> tuple[ChangeSet, ...]:
        """Return the changes of the environment; none where it does not change.

        Raises:
            UsageError: an option is ill-formed.
            InputError: a file of variables or packages cannot be read.
        """
        from oomscope.bisect.changes.environment import EnvironmentDeltas, parse_variables, read_environment
        from oomscope.bisect.changes.lock_files import read_both
        from oomscope.bisect.changes.packages import Overlays, PackageDeltas

        options = self.options
        found: list[ChangeSet] = []
        if options.env or options.good_env or options.bad_env:
            ends, low, high = EnvironmentDeltas.ends, {}, {}
            if options.env:
                files = two_files(options.env, "--env")
                low, high = (read_environment(file) for file in files)
                ends = str(files[0]), str(files[1])
            low |= parse_variables(options.good_env, "--good-env")
            high |= parse_variables(options.bad_env, "--bad-env")
            found.append(EnvironmentDeltas(low=low, high=high, ends=ends))
        if options.packages:
            good, bad = two_files(options.packages, "--packages")
            both = read_both(good, bad)
            packages = PackageDeltas(
                low=both.good,
                high=both.bad,
                overlays=Overlays(self.state_dirs.packages.absolute()),
                ends=(str(good), str(bad)),
                inherited=os.environ.get("PYTHONPATH", ""),
                left_out=both.left_out,
            )
            found.append(packages)
        return tuple(found)


def two_files(text: str, option: str) -> tuple[Path, Path]:
    """Return the two files that ``text`` names.

    Raises:
        UsageError: one of them is not there.
    """
    from oomscope.bisect.vcs.ranges import FileRange, parse_range

    found = parse_range(text)
    if isinstance(found, FileRange) and isinstance(found.good, Path) and isinstance(found.bad, Path):
        return found.good, found.bad
    raise UsageError(f"{quoted(text)} does not name two files", where=option, remedy="write GOOD-FILE..BAD-FILE")
