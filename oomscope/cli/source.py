"""Where a configuration comes from: a file or a preset, with ``section.key=value`` overrides on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomscope.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from oomscope.config.load import LoadedConfig


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
        return load_config(self.path, self.overrides, enforce=enforce)

    def _import(self, *, enforce: bool) -> LoadedConfig:
        from oomscope.config.dialects.documents import read_arguments
        from oomscope.config.dialects.load import load_arguments
        from oomscope.config.load import read_file

        if self.path is None:
            raise UsageError(f"--from {self.dialect} without a file", remedy="name the file of arguments")
        arguments = read_arguments(read_file(self.path), str(self.path))
        return load_arguments(arguments, self.dialect, self.overrides, preset=self.preset, enforce=enforce)

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


def complete_preset(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the presets that begin with ``incomplete``, for the shell."""
    from oomscope.config.presets import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]
