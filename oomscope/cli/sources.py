"""What a command measures: a configuration (a file or preset with overrides), or the user's own code in a checkout."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomscope.cli.completion import complete_preset
from oomscope.cli.options import FILE, Command, Options, option, together
from oomscope.cli.terminal.hints import other_use
from oomscope.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from oomscope.cli.terminal.progress import Ticker
    from oomscope.config.load import LoadedConfig
    from oomscope.probe.job import CheckoutTarget, ProbeJob, Progress
    from oomscope.probe.result import ProbeResult
    from oomscope.probe.tuning.variants import LoadWith, Probe

DIALECTS = ("megatron", "bridge", "nemo")
"""Keys of :data:`oomscope.config.importers.importer.DIALECTS`, which is not imported for a help text."""
TARGETS = "--harness FILE, --entry pkg.module:function or --command CMD"

preset_option = click.option(
    "--preset",
    metavar="NAME",
    shell_complete=complete_preset,
    help="Take a preset instead of a file, such as gpt-tiny or llama3-8b.",
)


def _dialect_option(also: str = "") -> Callable[[Command], Command]:
    text = f"The configuration file uses these key names{also} (docs/config.md)."
    return click.option("--from", "dialect", type=click.Choice(DIALECTS), help=text)


dialect_option = _dialect_option()
source_options = together(preset_option, _dialect_option("; FILE.py:FUNCTION names a function"))


def file_and_function(name: str) -> tuple[Path, str | None]:
    """Return what ``FILE.py:FUNCTION`` names; any other name is a file's."""
    file, _, function = name.rpartition(":")
    return (Path(file), function or None) if file.endswith(".py") else (Path(name), None)


@dataclass(frozen=True)
class ConfigSource:
    """The configuration that the command line names."""

    path: Path | None
    preset: str | None
    overrides: tuple[str, ...]
    dialect: str | None = None
    """Dialect of the names in the file; None for a configuration of oomscope."""
    function: str | None = None
    """Function of the file that sets the values; None if the file has only one."""

    @property
    def title(self) -> str:
        """Its name in reports."""
        return self.preset or (f"{self.path}:{self.function}" if self.function else str(self.path))

    def load(self, *, enforce: bool = True) -> LoadedConfig:
        """Return the configuration, checked.

        Raises:
            UsageError: neither a file nor a preset was given.
            ConfigError: it is wrong.
        """
        from oomscope.config.load import load_config, load_preset, read_file

        if self.dialect is not None:
            from oomscope.config.importers.load import load_in

            if self.path is None:
                raise UsageError(f"--from {self.dialect} without a file", remedy="name the file of arguments")
            return load_in(
                self.dialect,
                read_file(self.path),
                source=str(self.path),
                function=self.function,
                overrides=self.overrides,
                preset=self.preset,
                enforce=enforce,
            )
        if self.preset:
            return load_preset(self.preset, self.overrides, enforce=enforce)
        if self.path is None:
            raise UsageError("no configuration given", remedy="name a YAML file, or a preset with --preset")
        try:
            return load_config(self.path, self.overrides, enforce=enforce)
        except ConfigError as error:
            if (remedy := other_use(self.path)) is None or not self.is_blamed_by(error):
                raise
            raise ConfigError("not a configuration of oomscope", where=str(self.path), remedy=remedy) from error

    def is_blamed_by(self, error: ConfigError) -> bool:
        """Whether ``error`` is in the content of the file, and thus a fault of the commit that has it."""
        blamed = (error.where or "").rpartition(":")[0] or error.where
        return self.path is not None and self.path.is_file() and blamed == str(self.path)


def config_source(
    words: Sequence[str], preset: str | None = None, extra: Sequence[str] = (), dialect: str | None = None
) -> ConfigSource:
    """Return the source that the positional ``words`` name; ``extra`` are overrides that options stand for.

    A word with ``=`` is an override, any other the file; options win over overrides. Arguments in a ``dialect`` may be
    laid upon a preset, and be those of one function of the file.

    Raises:
        UsageError: two files, or a file and a preset.
    """
    files = [word for word in words if "=" not in word]
    overrides = [word for word in words if "=" in word]
    if len(files) > 1:
        remedy = "write overrides as key=value"
        if any(name.endswith(".py") for name in files):
            remedy = "a program comes after --: oomscope probe -- python train.py"
        raise UsageError(f"two configuration files: {files[0]} and {files[1]}", remedy=remedy)
    if files and preset and dialect is None:
        raise UsageError(f"both {files[0]} and --preset {preset}", remedy="name one of them")
    path, function = Path(files[0]) if files else None, None
    if path is not None and dialect is not None:
        path, function = file_and_function(files[0])
    return ConfigSource(path, preset, (*overrides, *extra), dialect, function)


@dataclass(frozen=True, kw_only=True)
class TargetOptions(Options):
    """The options that name the user's own code in a checkout."""

    harness: Path | None = option(
        "--harness", type=FILE, metavar="FILE", help="Measure your own code: a Python file with setup(ctx)."
    )
    entry: str | None = option(
        "--entry", metavar="MODULE:FUNCTION", help="Measure your own code: a function(ctx) in the checkout."
    )
    command: str | None = option(
        "--command", metavar="CMD", help="Measure a program: run CMD in the checkout, without a shell."
    )
    metric_regex: str | None = option(
        "--metric-regex", metavar="RE", help="With --command: read the bytes from the one group of RE in its output."
    )
    snapshot_glob: str | None = option(
        "--snapshot-glob", metavar="PATTERN", help="With --command: read the memory snapshots that it writes."
    )
    exit_status: bool = option("--exit-status", is_flag=True, help="With --command: only its exit status counts.")

    def checked(self, program: Sequence[str] = ()) -> TargetOptions:
        """Return the options, with ``program``, the words after ``--``, as the command."""
        targets = [*self._given("harness", "entry", "command"), *(["-- PROGRAM"] if program else [])]
        if len(targets) > 1:
            raise UsageError(f"both {' and '.join(targets)}", remedy="name one: each brings its own model")
        if self.command is None and self._readings:
            raise UsageError(f"{self._readings[0]} without --command", remedy="name the command, or leave it out")
        return replace(self, command=shlex.join(program)) if program else self

    @property
    def option(self) -> str | None:
        """The option that names the target; None where none does."""
        return next(iter(self._given("harness", "entry", "command")), None)

    @property
    def is_program(self) -> bool:
        """Whether the target is a program that is recorded, not one that measures by itself."""
        return self.command is not None and not self._readings

    @property
    def _readings(self) -> list[str]:
        """The options that say how the answer of a command is read."""
        return self._given("metric_regex", "snapshot_glob", "exit_status")

    def _given(self, *names: str) -> list[str]:
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) not in {None, False}]

    def target_at(self, repo: str) -> CheckoutTarget | None:
        """Return the target in the checkout ``repo``; None where the options name none."""
        from oomscope.probe.job import OWN_KINDS, named_target

        reading = {name: getattr(self, name) for name in ("metric_regex", "snapshot_glob", "exit_status")}
        for kind in OWN_KINDS:
            if (source := getattr(self, kind)) is not None:
                return named_target(kind, str(source), repo, **reading)
        return None


def refuse_world_size(world_size: int | None, dialect: str | None) -> None:
    """Refuse ``--world-size`` for a configuration of oomscope's own, which has parallel sizes.

    Raises:
        UsageError: it was given without ``--from``.
    """
    if world_size is not None and dialect is None:
        raise UsageError("--world-size without --from", remedy="set the parallel sizes of the configuration")


def load_with(source: ConfigSource) -> LoadWith:
    """Return what loads ``source`` with further overrides; all pipeline stages are probed unless a rank is chosen.

    ``first`` in a file is no choice: that is the default, which ``config show`` writes into every file. On the command
    line it is one.
    """
    rank = source.load(enforce=False).config.probe.rank
    is_chosen = rank != "first" or any(override.startswith("probe.rank=") for override in source.overrides)
    own = source.overrides if is_chosen else ("probe.rank=worst", *source.overrides)
    return lambda overrides: replace(source, overrides=(*own, *overrides)).load()


def kept_probe(*, fresh: bool, ticker: Ticker | None = None) -> Probe:
    """Return a probe that takes results from the cache of ``oomscope bisect``, unless ``fresh``, and puts them there.

    Args:
        fresh: measure again.
        ticker: shows the progress of each probe; None where several run side by side, or nobody looks.
    """
    from oomscope.bisect.run.cache import ResultCache
    from oomscope.bisect.run.identity import Content, Machine, key_of
    from oomscope.bisect.run.state_dirs import StateDirs
    from oomscope.probe.process import warm
    from oomscope.probe.tuning.variants import launched

    cache, machine, numbers = ResultCache(StateDirs.default().results), Machine.here(os.environ), count(1)

    def measured(job: ProbeJob, stop: threading.Event) -> ProbeResult:
        if ticker is None:
            return launched(job, stop)
        number = next(numbers)

        def show(progress: Progress) -> None:
            ticker.stage(f"probe {number}: {progress.stage}", progress.done, progress.total)

        return warm.run(job, show, stop=stop)

    def probe(job: ProbeJob, stop: threading.Event) -> ProbeResult:
        key = key_of(job, Content(), machine, os.environ)
        result = None if fresh else cache.get(key)
        if result is None:
            result = measured(job, stop)
            cache.put(key, result)
        return result

    return probe
