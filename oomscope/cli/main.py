"""The group of lazily imported commands, and the one place where errors become text and exit codes.

Commands return an :class:`~oomscope.errors.ExitCode`; library code raises. An error is one line (with ``--json`` one
document) and never a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from oomscope.cli.completion import COMPLETE_VARIABLE
from oomscope.cli.options import LazyGroup
from oomscope.cli.terminal.output import internal_error, print_json, refused_by_system, remark, say
from oomscope.cli.terminal.streams import OutputError, ReaderGoneError, named_failures, write_last_line
from oomscope.errors import ExitCode, OomscopeError, UsageError

ERROR_SCHEMA_VERSION = 1

COMMANDS = {
    "probe": ("oomscope.cli.probe:probe", "Measure a training program or a configuration."),
    "advise": ("oomscope.cli.advise:advise", "Find the cheapest changes under which it fits."),
    "sweep": ("oomscope.cli.sweep:sweep", "Probe a grid of configurations."),
    "bisect": ("oomscope.cli.bisect.command:bisect", "Find the commit or the configuration keys at fault."),
    "gate": ("oomscope.cli.gate.group:gate", "Compare a suite with its baseline, every night."),
    "explain": ("oomscope.cli.explain:explain", "Explain a snapshot: the kind of OOM, and its cure."),
    "diff": ("oomscope.cli.diff:diff_command", "Show what grew from one snapshot to another."),
    "replay": ("oomscope.cli.replay:replay", "Replay a snapshot's allocations under other allocator settings."),
    "record": ("oomscope.cli.record:record", "Run a training job and write memory snapshots of it."),
    "config": ("oomscope.cli.config:config", "Show, check, import or describe configurations."),
    "doctor": ("oomscope.cli.doctor:doctor", "Check which parts of this machine can be used."),
    "demo": ("oomscope.cli.demo:demo", "Walk through probe, explain and bisect on a small git history."),
    "completion": ("oomscope.cli.completion:completion", "Print the completion script of a shell."),
}
"""Module of each command, and its line in the help of the group, which imports none of them."""


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, help="Show the versions of oomscope and torch, and the available backends.")
@click.option("--json", "as_json", is_flag=True, help="With --version: print one JSON document.")
@click.pass_context
def cli(ctx: click.Context, version: bool, as_json: bool) -> ExitCode:
    """Find which change made a training run go out of GPU memory, and whether it is fragmentation or capacity.

    \b
    oomscope probe --gpu h100-80gb -- python train.py
                                                      measure your program
    oomscope probe --preset llama3-8b --limit 80GiB   measure a configuration
    oomscope advise train.yaml --limit 80GiB          find changes that fit
    oomscope sweep train.yaml recompute=none,full     probe a grid
    oomscope bisect v1.2..main --config train.yaml    find the commit at fault
    oomscope bisect good.yaml..bad.yaml               find the keys at fault
    oomscope gate run memory.yaml                     compare with a baseline
    oomscope diff before.pickle after.pickle          show what grew, line by line
    oomscope replay snapshot.pickle                   try other settings
    oomscope record -- torchrun train.py              write snapshots of your job
    oomscope explain snapshot.pickle                  explain why a job ran out
    oomscope doctor                                   check this machine
    oomscope demo                                     try it on a small history

    Exit codes: 0 answered, 1 worse than the baseline, 2 usage or input, 3 out of memory, 4 no baseline, 5 machine
    unfit, 6 the target failed, 7 no answer, 8 nothing measured, 9 better than the baseline (gate run --strict), 70
    internal, 74 output lost, 130 interrupted; all of them are explained in docs/exit-codes.md.
    """
    if ctx.invoked_subcommand is not None:
        return ExitCode.OK
    if not version:
        say(ctx.get_help())
        return ExitCode.USAGE
    from oomscope.cli.doctor import version_document, version_line

    document = version_document()
    if as_json:
        print_json(document)
    else:
        say(version_line(document))
    return ExitCode.OK


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line ``arguments`` and return the exit code; prints errors, raises nothing."""
    arguments = list(arguments)
    try:
        with named_failures():
            code = int(_dispatch(arguments))
    except ReaderGoneError as error:
        code = error.exit_code
    except BrokenPipeError:
        code = ExitCode.BROKEN_PIPE
    except OutputError as error:
        write_last_line(f"oomscope: {error}")
        code = error.exit_code
    return _for_git_bisect(code) if "--git-bisect" in _options(arguments) else code


def _dispatch(arguments: list[str]) -> int:
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "oomscope", COMPLETE_VARIABLE, instruction)
    as_json = "--json" in _options(arguments)
    try:
        with cli.make_context("oomscope", list(arguments)) as ctx:
            outcome = cli.invoke(ctx)
            return outcome if isinstance(outcome, int) else ExitCode.OK
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        return _report(_from_click(error), as_json=as_json)
    except OutputError:
        raise
    except OomscopeError as error:
        return _report(error, as_json=as_json)
    except (KeyboardInterrupt, click.Abort):
        return _report(InterruptedByUserError("interrupted"), as_json=as_json)
    except SystemExit as leave:  # a signal that asks to end; the clean-up has run
        return leave.code if isinstance(leave.code, int) else ExitCode.INTERNAL
    except (ReaderGoneError, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 - the last resort: a defect becomes one line and a file
        return _report(refused_by_system(error) or internal_error(), as_json=as_json)


def _options(arguments: list[str]) -> list[str]:
    """Return the words before ``--``; what an error looks like depends on them also where they cannot be parsed."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


class InterruptedByUserError(OomscopeError):
    """The user pressed Ctrl-C."""

    exit_code = ExitCode.INTERRUPTED


def _from_click(error: click.ClickException) -> UsageError:
    from oomscope.cli.terminal.hints import mistyped

    context = getattr(error, "ctx", None)
    message, meant = mistyped(error)
    help_of = f"see {context.command_path} --help" if context else None
    return UsageError(message.rstrip("."), remedy=f"did you mean {meant}?" if meant else help_of)


def _report(error: OomscopeError, *, as_json: bool) -> int:
    from oomscope.cli.terminal.hints import add_hint

    add_hint(error)
    if as_json:
        document = {"kind": type(error).__name__, "exit_code": int(error.exit_code)}
        fields = {"message": error.message, "where": error.where, "remedy": error.remedy}
        print_json({"schema_version": ERROR_SCHEMA_VERSION, "error": {**document, **fields}})
    remark(f"oomscope: {error}")
    return error.exit_code


def _for_git_bisect(code: int) -> int:
    """Return ``code`` raised above 127 unless it is an answer about the commit to ``git bisect run``."""
    from oomscope.probe.git_bisect import BAD, GOOD, STOP, UNTESTABLE

    return code if code in {GOOD, BAD, UNTESTABLE} or code >= STOP else STOP + code
