"""An imported configuration, loaded like one of oomscope's own, or written as a YAML file that names its arguments."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import yaml

from oomscope.config.importers.command_lines import Arguments, read_arguments
from oomscope.config.importers.importer import DIALECTS, Imported, Remark, import_arguments
from oomscope.config.load import LoadedConfig, load_layer, load_text
from oomscope.config.problems import Problem, shown
from oomscope.config.rules.rule import Finding
from oomscope.config.settings import Setting

_WORLD_SIZE = "probe.world_size="
_LISTED = 8
"""Names beyond which a remark gives their number alone."""


def load_in(
    dialect: str | None,
    text: str | bytes,
    *,
    source: str,
    function: str | None = None,
    overrides: Sequence[str] = (),
    preset: str | None = None,
    enforce: bool = True,
) -> LoadedConfig:
    """Return the configuration that a document in ``dialect``, or one ``function`` of it, is; None: of oomscope's own.

    Raises:
        InvalidConfigError: as for :func:`load_arguments`.
    """
    if dialect is None:
        return load_text(text, source=source, overrides=overrides, enforce=enforce)
    return load_arguments(read_arguments(text, source, function), dialect, overrides, preset=preset, enforce=enforce)


def load_arguments(
    arguments: Arguments,
    dialect: str | None = None,
    overrides: Sequence[str] = (),
    *,
    preset: str | None = None,
    enforce: bool = True,
) -> LoadedConfig:
    """Return the configuration that ``arguments`` mean, with ``overrides`` on top.

    An override of ``probe.world_size`` says how many GPUs the job has.

    Without ``enforce`` what breaks a rule or is not modelled is among the findings, and only what has no meaning is
    refused.

    Raises:
        InvalidConfigError: a value is wrong, an argument is not modelled, or a rule is broken.
    """
    sizes = [text.removeprefix(_WORLD_SIZE) for text in overrides if text.startswith(_WORLD_SIZE)]
    if sizes and sizes[-1].isdigit():
        arguments = replace(arguments, world_size=int(sizes[-1]))
    imported = import_arguments(arguments, dialect, on_preset=preset is not None)
    layer, not_modelled = imported.layer(), _not_modelled(imported)
    if enforce:
        layer.problems += [
            Problem(finding.message, remark.where, finding.remedy)
            for finding, remark in zip(not_modelled, imported.not_modelled, strict=True)
        ]
    if preset is not None:
        layer.preset = Setting(preset, f"--preset {preset}")
    loaded = load_layer(layer, arguments.source, overrides, enforce)
    return replace(
        loaded,
        findings=(*not_modelled, *loaded.findings),
        origins={**loaded.origins, **{remark.name: remark.where for remark in imported.not_modelled}},
        remarks=remarks_on(replace(imported, not_modelled=())),
    )


def _not_modelled(imported: Imported) -> list[Finding]:
    return [
        Finding(
            rule="import",
            severity="not_modelled",
            keys=(remark.name,),
            message=f"{remark.name} is {shown(remark.value)}, which is not modelled: {remark.reason}",
            remedy="remove it, or import the file with `oomscope config import` and edit the result",
            source=imported.dialect,
        )
        for remark in imported.not_modelled
    ]


def remarks_on(imported: Imported) -> tuple[str, ...]:
    """Return what a user has to look at, a line each."""
    remarks = [f"assumed: {text}" for text in imported.assumed]
    remarks += [
        f"not modelled: {remark.where}: {remark.name} is {shown(remark.value)}: {remark.reason}"
        for remark in imported.not_modelled
    ]
    remarks += [
        f"not understood: {remark.where}: {remark.name} is {shown(remark.value)}"
        + (f": {remark.reason}" if remark.reason else "")
        for remark in imported.not_understood
    ]
    return tuple(remarks)


def remark_on_the_rest(imported: Imported) -> str | None:
    """Return one line on the arguments that cost no memory; None where there are none."""
    names = [remark.name for remark in imported.without_memory]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"nothing to do with memory: {', '.join(names[:_LISTED])}{more}" if names else None


_WIDTH = 118


def configuration_file(imported: Imported, *, preset: str | None = None) -> str:
    """Return the text of a configuration file."""
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
