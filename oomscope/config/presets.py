"""The configurations that come with oomscope: one YAML file each in ``oomscope/config/presets``."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files

from oomscope.config.problems import shown
from oomscope.errors import ConfigError

_SUFFIX = ".yaml"


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    directory = files("oomscope.config").joinpath("presets")
    return tuple(
        sorted(entry.name.removesuffix(_SUFFIX) for entry in directory.iterdir() if entry.name.endswith(_SUFFIX))
    )


def read_preset(name: object, *, where: str | None = None) -> str:
    """Return the text of the preset called ``name``.

    Raises:
        ConfigError: there is none of that name.
    """
    names = preset_names()
    if not isinstance(name, str) or name not in names:
        close = get_close_matches(str(name), names, n=1)
        remedy = f"did you mean {close[0]}?" if close else f"presets are {', '.join(names)}"
        raise ConfigError(f"there is no preset {shown(name)}", where=where, remedy=remedy)
    return files("oomscope.config").joinpath("presets", name + _SUFFIX).read_text(encoding="utf-8")
