"""What the shell completes: presets, cards, configuration keys and files, and the ends of a search."""

from __future__ import annotations

from pathlib import Path

import click

COMPLETE_VARIABLE = "_OOMSCOPE_COMPLETE"
"""Set by the completion script: what is to be completed, and for which shell."""
_CONFIGURATIONS = (".yaml", ".yml")


def complete_preset(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the presets that begin with ``incomplete``."""
    from oomscope.config.presets import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


def complete_card(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the cards that begin with ``incomplete``."""
    from oomscope.virtual.cards import CARDS

    return [name for name in CARDS if name.startswith(incomplete)]


def complete_key(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the configuration files and the keys, with their ``=``, that begin with ``incomplete``."""
    from oomscope.config.keys import SECTIONS

    keys = [f"{section}.{key}=" for section, model in SECTIONS.items() for key in model.model_fields]
    return [*_files(incomplete), *(key for key in keys if key.startswith(incomplete))]


def complete_ends(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ranges that begin with ``incomplete``: of branches and tags, or of configuration files."""
    from oomscope.cli.terminal.hints import references

    before, dots, last = incomplete.rpartition("..")
    ends = [*references(Path(ctx.params.get("repo") or ".")), *_files(last)]
    return [f"{before}{dots}{end}" for end in ends if end.startswith(last)]


def _files(incomplete: str) -> list[str]:
    """Return the configuration files, and the folders, whose paths begin with ``incomplete``."""
    folder, slash, name = incomplete.rpartition("/")
    try:
        entries = sorted(Path(folder or ("/" if slash else ".")).iterdir())
    except OSError:
        return []
    found = [entry for entry in entries if entry.name.startswith(name) and name + entry.name[:1] != "."]
    folders = [f"{folder}{slash}{entry.name}/" for entry in found if entry.is_dir()]
    return [*(f"{folder}{slash}{entry.name}" for entry in found if entry.suffix in _CONFIGURATIONS), *folders]
