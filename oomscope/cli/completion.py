"""``oomscope completion``: the script for a shell, and what TAB completes: presets, cards, keys, files and refs."""

from __future__ import annotations

from pathlib import Path

import click

from oomscope.cli.terminal.output import print_json, say
from oomscope.errors import ExitCode, UsageError

SCHEMA_VERSION = 1
COMPLETE_VARIABLE = "_OOMSCOPE_COMPLETE"
"""Variable of the completion script: what is to be completed, and for which shell."""


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def completion(ctx: click.Context, /, shell: str, as_json: bool) -> ExitCode:
    """Print the completion script of SHELL.

    \b
    bash:  eval "$(oomscope completion bash)"        in ~/.bashrc
    zsh:   eval "$(oomscope completion zsh)"         in ~/.zshrc
    fish:  oomscope completion fish | source         in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    if complete is None:
        raise UsageError(f"the installed click has no completion for {shell}", remedy="upgrade click")
    script = complete(ctx.find_root().command, {}, "oomscope", COMPLETE_VARIABLE).source()
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "shell": shell, "script": script})
    else:
        say(script)
    return ExitCode.OK


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
    from oomscope.config.key_lookup import SECTIONS

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
    files = [f"{folder}{slash}{entry.name}" for entry in found if entry.suffix in {".yaml", ".yml"}]
    return [*files, *folders]
