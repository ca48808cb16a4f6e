"""``oomscope bisect``: find the commit, or the configuration keys, at fault, and print the evidence."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from oomscope.bisect.run.state_dirs import InterruptedSearch, JournalUse
from oomscope.cli.bisect.options import Search, SearchOptions
from oomscope.cli.completion import complete_ends, complete_key
from oomscope.cli.options import (
    LazyGroup,
    csv_option,
    devices_option,
    force_option,
    fresh_option,
    html_option,
    jobs_option,
    json_options,
    link_base_option,
    measurement_options,
    progress_options,
    settings_overrides,
)
from oomscope.cli.sources import TargetOptions, dialect_option
from oomscope.cli.terminal.output import BISECT_TABLES, Files, Form, late, print_document, print_report, tables_of
from oomscope.errors import ExitCode, OomscopeError, gravest

PATHS = "oomscope.paths"
WORDS = "oomscope.words"
SUBCOMMAND = "oomscope.subcommand"
USE = "oomscope.journal_use"
"""Keys of ``ctx.meta``."""

SUBCOMMANDS = {
    "log": ("oomscope.cli.bisect.journals:log", "Print every probe of a search."),
    "resume": ("oomscope.cli.bisect.journals:resume", "Continue an interrupted search."),
    "export": ("oomscope.cli.bisect.journals:export", "Print a search as a git bisect log."),
}


class SearchStoppedError(OomscopeError):
    """The user pressed Ctrl-C in a search that can be continued."""

    exit_code = ExitCode.INTERRUPTED


class SearchGroup(LazyGroup):
    """A command with options of its own, whose words after ``--`` are paths as in git, and a group of commands."""

    allow_interspersed_args = True
    allow_extra_args = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options of a search; none of them before a command about searches."""
        params = super().get_params(ctx)
        return [each for each in params if each not in self.params] if SUBCOMMAND in ctx.meta else params

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave all words to a command about searches; else put the paths into ``ctx.meta`` and parse the rest."""
        if args and args[0] in SUBCOMMANDS:
            ctx.meta[SUBCOMMAND] = tuple(args)
            ctx.allow_interspersed_args, ctx.allow_extra_args = False, True
            return super().parse_args(ctx, args)
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta[WORDS], ctx.meta[PATHS] = tuple(args), tuple(args[cut + 1 :])
        return super().parse_args(ctx, args[:cut])

    def invoke(self, ctx: click.Context) -> Any:
        """Search, or run the command about searches."""
        if SUBCOMMAND not in ctx.meta:
            return click.Command.invoke(self, ctx)
        name, command, words = self.resolve_command(ctx, list(ctx.meta[SUBCOMMAND]))
        if command is None:
            raise click.UsageError("Missing command.", ctx)
        with command.make_context(name, words, parent=ctx) as inner:
            return command.invoke(inner)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the words of a search."""
        return click.Command.collect_usage_pieces(self, ctx)


def complete_first_word(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the commands about searches, and the ranges, that begin with ``incomplete``."""
    names = [name for name in SUBCOMMANDS if name.startswith(incomplete)]
    return [*names, *complete_ends(ctx, parameter, incomplete)]


@click.group(
    cls=SearchGroup,
    lazy=SUBCOMMANDS,
    invoke_without_command=True,
    short_help="Find the commit or the configuration keys at fault.",
)
@click.argument("ends", metavar="GOOD..BAD", shell_complete=complete_first_word)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]... [-- PATH...]", shell_complete=complete_key)
@TargetOptions.add
@SearchOptions.add
@dialect_option
@jobs_option
@measurement_options
@devices_option
@fresh_option
@html_option
@link_base_option
@csv_option
@force_option
@progress_options
@json_options
@click.pass_context
def bisect(
    ctx: click.Context,
    /,
    *,
    html: Path | None,
    link_base: str | None,
    tables: Path | None,
    force: bool,
    verbosity: str | None,
    form: Form | None,
    **_given: Any,
) -> ExitCode:
    """Find the first bad commit between GOOD and BAD, or the keys at fault where both are configuration files.

    With --axis environment give one commit or file; --env, --good-env and --bad-env name the changes.

    KEY=VALUE overrides a configuration key at every commit or in both files. After -- come paths: commits that touch
    one of them are searched first. Nothing is written to the repository (unless --state DIR is in its work tree).

    CLASS is any-oom, capacity, fragmentation, requested>SIZE, reserved>SIZE or, for a command, exit.

    \b
    oomscope bisect v1.2..main --harness harness.py --limit 80GiB
    oomscope bisect v1.2..main --config configs/train.yaml --gpu h100-80gb
    oomscope bisect ..main --find-good --harness harness.py --steps
    oomscope bisect good.yaml..bad.yaml --bad 'requested>70GiB'
    oomscope bisect v1.2 --axis environment --harness h.py --env a.env..b.env
    """
    from oomscope.bisect.results.missing_files import missing_file
    from oomscope.bisect.vcs.forge import forge_of
    from oomscope.cli.bisect.search import run_search
    from oomscope.cli.terminal.progress import live_progress_of

    search = search_of(ctx)
    forge = forge_of(search.options.repo or Path(), link_base) if html else None
    files = Files({"--html": html, "--csv": tables}, BISECT_TABLES)
    files.refuse(("--harness", search.target.harness), *_files_read(search), force=force)
    try:
        with live_progress_of(verbosity, answers_here=form is None) as live:
            result = run_search(search, live)
    except InterruptedSearch as stop:
        raise SearchStoppedError("interrupted", remedy=stop.remedy) from None
    if missing := missing_file(result, search.options.repo or Path()):
        remedy = f"git does not track {missing.name}: add --link {shlex.quote(missing.link)}"
        result = replace(result, remedy=remedy)
    page = late("oomscope.report.html.pages:bisect_page", result, title=f"Bisect of {search.ends}", forge=forge)
    lost = files.write({"--html": page, "--csv": partial(tables_of, BISECT_TABLES, result)})
    if form is not None:
        print_document(result, form)
    else:
        from oomscope.report.commands.bisect import bisect_report

        print_report(bisect_report(result))
    return gravest([result.exit_code, *lost])


def search_of(ctx: click.Context) -> Search:
    """Return the search that ``ctx``, a parsed command line, asks for."""
    given = dict(ctx.params)
    return Search(
        ends=given["ends"],
        options=SearchOptions.of(given),
        target=TargetOptions.of(given).checked(),
        overrides=(*given["overrides"], *settings_overrides(given)),
        paths=ctx.meta[PATHS],
        dialect=given["dialect"],
        jobs=given["jobs"],
        fresh=given["fresh"],
        journal=ctx.meta.get(USE) or JournalUse(words=ctx.meta[WORDS]),
    )


def _files_read(search: Search) -> list[tuple[str, Path]]:
    """Return the configurations that a search over keys reads, with their name for people; none of an open range."""
    from oomscope.bisect.vcs.ranges import FileRange, parse_ends

    range_ = None if search.options.find_good else parse_ends(search.ends)
    files = (range_.good, range_.bad) if isinstance(range_, FileRange) else ()
    return [("GOOD..BAD", file) for file in files if isinstance(file, Path)]
