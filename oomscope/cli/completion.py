"""``oomscope completion``: the script that teaches a shell the commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from oomscope.cli.main import COMPLETE_VARIABLE, cli
from oomscope.cli.output import print_json, say
from oomscope.errors import ExitCode, UsageError

SCHEMA_VERSION = 1


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def completion(shell: str, as_json: bool) -> ExitCode:
    """Print the completion script of SHELL.

    \b
    bash:  oomscope completion bash > ~/.local/share/bash-completion/completions/oomscope
    zsh:   oomscope completion zsh > "${fpath[1]}/_oomscope"
    fish:  oomscope completion fish > ~/.config/fish/completions/oomscope.fish
    """
    complete = get_completion_class(shell)
    if complete is None:
        raise UsageError(f"the installed click has no completion for {shell}", remedy="upgrade click")
    script = complete(cli, {}, "oomscope", COMPLETE_VARIABLE).source()
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "shell": shell, "script": script})
    else:
        say(script)
    return ExitCode.OK
