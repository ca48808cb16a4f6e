"""An imported configuration as a YAML file that says, behind each key, which argument it comes from."""

from __future__ import annotations

import textwrap
from typing import Any

import yaml

from oomscope.config.importers.importer import DIALECTS, Imported, Remark
from oomscope.config.problems import shown

_WIDTH = 118


def configuration_file(imported: Imported, *, preset: str | None = None) -> str:
    """Return the text of a configuration file.

    Args:
        imported: the settings and the account of the others.
        preset: what the settings are laid upon.
    """
    title = DIALECTS[imported.dialect].title
    lines = [f"# Imported from {_one_line(imported.source)} ({title})."]
    lines += [f"# Assumed: {_one_line(text)}." for text in imported.assumed]
    lines += [f"preset: {preset}"] if preset else []
    section = None
    for name, setting in imported.settings.items():
        here, key = name.split(".")
        if here != section:
            lines.append(f"{here}:")
            section = here
        lines.append(f"  {key}: {_flow(setting.value)}  # {_one_line(setting.where)}")
    lines += _account("Changes memory, and is not modelled", imported.not_modelled)
    lines += _account("Not understood", imported.not_understood)
    names = ", ".join(_one_line(remark.name) for remark in imported.without_memory)
    lines += (
        [f"# {line}" for line in textwrap.wrap(f"Nothing to do with the GPU's memory: {names}", _WIDTH)]
        if names
        else []
    )
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _account(title: str, remarks: tuple[Remark, ...]) -> list[str]:
    if not remarks:
        return []
    rows = [
        f"#   {_one_line(remark.name)}: {_one_line(shown(remark.value))}"
        + (f" ({remark.reason})" if remark.reason else "")
        for remark in remarks
    ]
    return [f"# {title}:", *rows]


def _one_line(text: str) -> str:
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return plain if len(plain) <= _WIDTH else plain[: _WIDTH - 1] + "…"
