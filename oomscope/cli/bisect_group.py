"""The shape of ``oomscope bisect``: a search where its first word is a range, else a command about searches."""

from __future__ import annotations

import importlib
from typing import Any

import click
from click.shell_completion import CompletionItem

from oomscope.cli.options_steps import with_values

PATHS = "oomscope.paths"
WORDS = "oomscope.words"
_SUBCOMMAND = "oomscope.subcommand"

SUBCOMMANDS = {
    "log": "oomscope.cli.bisect_log:log",
    "resume": "oomscope.cli.bisect_resume:resume",
    "export": "oomscope.cli.bisect_export:export",
}


class SearchGroup(click.Group):
    """A command with options of its own, whose words after ``--`` are paths as in git, and a group of commands."""

    allow_interspersed_args = True
    allow_extra_args = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they are needed."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module; None for what is no command."""
        if cmd_name not in SUBCOMMANDS:
            return None
        module, _, attribute = SUBCOMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options of a search; of a command about searches those come first of its own."""
        params = super().get_params(ctx)
        return [each for each in params if each not in self.params] if _SUBCOMMAND in ctx.meta else params

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave all words to a command about searches; else put the paths into ``ctx.meta`` and parse the rest."""
        if args and args[0] in SUBCOMMANDS:
            ctx.meta[_SUBCOMMAND] = tuple(args)
            ctx.allow_interspersed_args, ctx.allow_extra_args = False, True
            return super().parse_args(ctx, args)
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta[WORDS], ctx.meta[PATHS] = tuple(args), tuple(args[cut + 1 :])
        return super().parse_args(ctx, with_values(args[:cut]))

    def invoke(self, ctx: click.Context) -> Any:
        """Search, or run the command about searches."""
        if _SUBCOMMAND not in ctx.meta:
            return click.Command.invoke(self, ctx)
        name, command, words = self.resolve_command(ctx, list(ctx.meta[_SUBCOMMAND]))
        if command is None:
            raise click.UsageError("Missing command.", ctx)
        with command.make_context(name, words, parent=ctx) as inner:
            return command.invoke(inner)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the words of a search."""
        return click.Command.collect_usage_pieces(self, ctx)


def complete_first_word(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the commands about searches that begin with ``incomplete``."""
    return [CompletionItem(name) for name in SUBCOMMANDS if name.startswith(incomplete)]
