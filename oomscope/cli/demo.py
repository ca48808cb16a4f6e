"""``oomscope demo``: make a small git history, and walk it by probe, explain and bisect."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import click

from oomscope.cli.options import FILE, force_option, json_option
from oomscope.cli.terminal.output import print_json, say
from oomscope.errors import ExitCode, InputError, MachineUnfitError

SCHEMA_VERSION = 1
_MEASURED = "--harness harness.py --repo tinytrain --backend virtual --limit 6.75GiB --iterations 4"
_MADE = ("tinytrain", "harness.py", "state", "v0.2.pickle", "explain.html", "bisect.html")
"""Files that the walk leaves in its folder."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command of the walk, run in its folder."""

    command: str
    expected: ExitCode = ExitCode.OK
    remark: str = ""
    """Printed before the command."""


WALK = (
    Step(
        remark="tinytrain is a small training program. Version 0.1 fits on a card of 6.75 GiB.",
        command="git -C tinytrain checkout --quiet v0.1",
    ),
    Step(command=f"oomscope probe {_MEASURED}"),
    Step(
        remark="Version 0.2 does not fit. This probe also writes a memory snapshot, as a job that dies can do.",
        command="git -C tinytrain checkout --quiet v0.2",
    ),
    Step(command=f"oomscope probe {_MEASURED} --snapshot v0.2.pickle", expected=ExitCode.OOM),
    Step(
        remark="What does the snapshot alone show?",
        command="oomscope explain v0.2.pickle --html explain.html",
    ),
    Step(
        remark="Which of the 24 commits between the two versions is at fault? One of them cannot even be imported.",
        command=f"oomscope bisect v0.1..v0.2 {_MEASURED} --jobs 2 --state state --html bisect.html",
    ),
)


@click.command(short_help="Walk through probe, explain and bisect on a small git history.")
@click.argument("folder", type=FILE, default="oomscope-demo", metavar="[FOLDER]")
@force_option
@json_option
@click.pass_context
def demo(ctx: click.Context, /, folder: Path, force: bool, as_json: bool) -> ExitCode:
    """Make a small git history in FOLDER (default: oomscope-demo), and walk through probe, explain and bisect on it.

    Each command is printed before it runs, so that you can repeat it in FOLDER. The walk takes about a minute on two
    cores. It needs git and PyTorch (pip install 'oomscope[probe]'), and no GPU. --json makes the history and prints
    the commands without running them.

    \b
    oomscope demo
    oomscope demo /tmp/demo --force
    """
    from oomscope.virtual import loading

    loading.check()
    _make(folder, force=force)
    if as_json:
        steps = [{"command": step.command, "expected_exit_code": int(step.expected)} for step in WALK]
        print_json({"schema_version": SCHEMA_VERSION, "folder": str(folder), "steps": steps})
        return ExitCode.OK
    started = time.monotonic()
    root = ctx.find_root().command
    with contextlib.chdir(folder):
        for step in WALK:
            _take(step, root)
    say(f"\n=== Done in {time.monotonic() - started:.0f} s. The pages: {folder}/explain.html, {folder}/bisect.html")
    say("Next: oomscope probe -- python train.py measures your own program.")
    return ExitCode.OK


def _make(folder: Path, *, force: bool) -> None:
    """Make the history and its harness in ``folder``, after what an earlier walk left there is removed."""
    from oomscope.demo import history

    for path in (folder / name for name in _MADE):
        if not path.exists():
            continue
        if not force:
            raise InputError("exists", where=str(path), remedy="choose another folder or give --force")
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    history.build(folder / "tinytrain")
    shutil.copyfile(history.HARNESS, folder / "harness.py")


def _take(step: Step, root: click.Command) -> None:
    """Print the command of ``step`` and run it in the working directory."""
    from oomscope.bisect.vcs.git import Git

    if step.remark:
        say(f"\n=== {step.remark}")
    say(f"\n$ {step.command}")
    program, *words = shlex.split(step.command)
    if program == "git":
        Git(Path()).output(*words)
        return
    with root.make_context("oomscope", words) as context:
        code = root.invoke(context)
    if code != step.expected:
        raise MachineUnfitError(
            f"ended with exit code {code}, not {step.expected}",
            where=step.command,
            remedy="oomscope doctor checks this machine",
        )
