"""The child of :func:`oomscope.probe.process.launch.run`: reads a job, measures it, writes the result.

Called with ``JOB RESULT PROGRESS_FD`` (:data:`oomscope.probe.process.launch.WORKER`); what it prints is the target's.
Called with ``--serve SOCKET_FD`` it is a warm parent (:mod:`oomscope.probe.process.forkserver`), whose forks come back
here.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from oomscope import virtual
from oomscope.errors import ExitCode, MachineUnfitError
from oomscope.files import write_whole
from oomscope.probe.job import CommandTarget, EntryTarget, HarnessTarget, ProbeJob, ProgramTarget, Progress
from oomscope.probe.machine.forked_run import leave
from oomscope.probe.machine.processes import die_with_parent
from oomscope.probe.result import ProbeResult
from oomscope.probe.targets import opened_files
from oomscope.probe.targets.compiler import import_compiler_late

SERVE = "--serve"
"""The first argument of a worker that is to be a warm parent; the second is the number of its socket."""


def _progress_writer(descriptor: int) -> Callable[[Progress], None]:
    """Return a function that writes progress as lines of JSON; it does nothing once the pipe is closed."""
    os.set_inheritable(descriptor, False)

    def write_progress(progress: Progress) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(descriptor, json.dumps(progress.to_json()).encode() + b"\n")

    return write_progress


def main(arguments: list[str]) -> None:
    """Measure the job in the file that ``arguments`` names."""
    import_compiler_late()
    warm = arguments[0] == SERVE
    if warm:
        arguments = _serve(int(arguments[1]))
    die_with_parent()
    job_path, result_path, descriptor = arguments
    progress = _progress_writer(int(descriptor))
    if warm:
        from oomscope.probe.process.forkserver import once_imported

        progress = once_imported(progress)
    progress(Progress(stage="import"))
    job = ProbeJob.from_json(json.loads(Path(job_path).read_text()))
    path = Path(result_path).absolute()
    opened = path.parent / "opened"

    def keep(result: ProbeResult) -> None:
        result = replace(result, files_outside=opened_files.read(opened))
        write_whole(path, json.dumps(result.to_json()).encode(), force=True)

    _follow_files(job, str(opened))

    try:
        keep(_measured(job, progress, keep, path.parent))
    except Exception:  # noqa: BLE001 - what the target raises is a result, so this is ours
        traceback.print_exc()
        leave(ExitCode.INTERNAL)
    leave(ExitCode.OK)


def _follow_files(job: ProbeJob, record: str) -> None:
    """Note in ``record`` what a target of the user's opens: in this process, or in those of a program."""
    if isinstance(job.target, ProgramTarget):
        os.environ.update(opened_files.variables(record, job.target.repo))
    elif isinstance(job.target, HarnessTarget | EntryTarget):
        opened_files.follow(record, job.target.repo)


def _measured(
    job: ProbeJob, progress: Callable[[Progress], None], keep: Callable[[ProbeResult], None], folder: Path
) -> ProbeResult:
    """Return the result of ``job``; a command, which brings its own, is spared the imports of all else."""
    if isinstance(job.target, CommandTarget):
        from oomscope.probe.targets.command import run_command

        return run_command(job, job.target, progress)
    from oomscope.probe.measure import measure

    if isinstance(job.target, ProgramTarget):
        from oomscope.probe.targets.program.runs import ProgramRuns

        runs = ProgramRuns(job, job.target, folder)
        return runs.named(measure(job, progress=progress, keep=lambda each: keep(runs.named(each)), begin=runs))
    return measure(job, progress=progress, keep=keep, folder=folder)


def _serve(descriptor: int) -> list[str]:
    """Serve as a warm parent; return in each worker that it forks, with its arguments.

    Warm parents are for machines without a GPU, so it has the virtual card, which must be there before torch is.
    """
    with contextlib.suppress(MachineUnfitError):  # a worker that needs it says so
        virtual.load()
    import oomscope.probe.measure
    import oomscope.probe.targets.recipes  # noqa: F401 - these two any worker has imported when it comes to its target

    fresh_names = {name for name in sys.modules if "." not in name}
    from oomscope.probe.process import forkserver

    return forkserver.serve(descriptor, fresh_names)


if __name__ == "__main__":
    main(sys.argv[1:])
