"""``oomscope completion``: the script that teaches a shell the commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from oomscope.cli.options.common import json_option
from oomscope.cli.options.completion import COMPLETE_VARIABLE
from oomscope.cli.terminal.output import print_json, say
from oomscope.errors import ExitCode, UsageError

SCHEMA_VERSION = 1


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(ctx: click.Context, /, shell: str, as_json: bool) -> ExitCode:
    """Print the completion script of SHELL.

    \b
    bash:  eval "$(oomscope completion bash)"        in ~/.bashrc
    zsh:   eval "$(oomscope completion zsh)"         in ~/.zshrc
    fish:  oomscope completion fish | source         in ~/.config/fish/config.fish
    """
    complete = get_completion_class(shell)
    if complete is None:
        raise UsageError(f"the installed click has no completion for {shell}", remedy="upgrade click")
    script = complete(ctx.find_root().command, {}, "oomscope", COMPLETE_VARIABLE).source()
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "shell": shell, "script": script})
    else:
        say(script)
    return ExitCode.OK
