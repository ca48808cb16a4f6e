"""Where a configuration comes from: a file or a preset, with ``section.key=value`` overrides on top.

A file may have the names of Megatron-LM, Megatron Bridge or NeMo; the options that say so are here, for all commands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oomscope.cli.options.completion import complete_preset
from oomscope.cli.terminal.hints import other_use
from oomscope.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from oomscope.config.load import LoadedConfig

Command = TypeVar("Command", bound=Callable[..., Any])

DIALECTS = ("megatron", "bridge", "nemo")
"""Keys of :data:`oomscope.config.importers.importer.DIALECTS`, which is not imported for a help text."""

dialect_option = click.option(
    "--from",
    "dialect",
    type=click.Choice(DIALECTS),
    help="The configuration file uses these key names (docs/config.md).",
)


@dataclass(frozen=True)
class ConfigSource:
    """What the command line says about the configuration."""

    path: Path | None
    preset: str | None
    overrides: tuple[str, ...]
    dialect: str | None = None
    """Whose names the file has, where it is not a configuration of oomscope."""

    @property
    def title(self) -> str:
        """Return the name that reports give it."""
        return self.preset or str(self.path)

    def load(self, *, enforce: bool = True) -> LoadedConfig:
        """Return the configuration, checked.

        Raises:
            UsageError: neither a file nor a preset was given.
            ConfigError: it is wrong.
        """
        from oomscope.config.load import load_config, load_preset

        if self.dialect is not None:
            return self._import(enforce=enforce)
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

    def _import(self, *, enforce: bool) -> LoadedConfig:
        from oomscope.config.importers.load import load_in
        from oomscope.config.load import read_file

        if self.path is None:
            raise UsageError(f"--from {self.dialect} without a file", remedy="name the file of arguments")
        return load_in(
            self.dialect,
            read_file(self.path),
            source=str(self.path),
            overrides=self.overrides,
            preset=self.preset,
            enforce=enforce,
        )

    def is_blamed_by(self, error: ConfigError) -> bool:
        """Whether ``error`` is in what the file says, and thus a fault of the commit that it stands in."""
        blamed = (error.where or "").rpartition(":")[0] or error.where
        return self.path is not None and self.path.is_file() and blamed == str(self.path)


def config_source(
    words: Sequence[str], preset: str | None = None, extra: Sequence[str] = (), dialect: str | None = None
) -> ConfigSource:
    """Return the source that the positional ``words`` name; ``extra`` are overrides that options stand for.

    A word with ``=`` is an override, any other the file; options win over overrides. Arguments in a ``dialect`` may be
    laid upon a preset.

    Raises:
        UsageError: two files, or a file and a preset.
    """
    files = [word for word in words if "=" not in word]
    overrides = [word for word in words if "=" in word]
    if len(files) > 1:
        raise UsageError(f"two configuration files: {files[0]} and {files[1]}", remedy="write overrides as key=value")
    if files and preset and dialect is None:
        raise UsageError(f"both {files[0]} and --preset {preset}", remedy="name one of them")
    return ConfigSource(Path(files[0]) if files else None, preset, (*overrides, *extra), dialect)


def source_options(command: Command) -> Command:
    """Add ``--preset`` and ``--from``."""
    preset = click.option(
        "--preset", metavar="NAME", shell_complete=complete_preset, help="Take a preset instead of a file."
    )
    return preset(dialect_option(command))


def refuse_world_size(world_size: str | int | None, dialect: str | None) -> None:
    """Refuse the size of a world that the configuration says by itself.

    Raises:
        UsageError: it was given, and the configuration is one of oomscope's own.
    """
    if world_size is not None and dialect is None:
        raise UsageError("--world-size without --from", remedy="set the parallel sizes of the configuration")
