"""The child of :func:`oomscope.probe.launch.run`: reads a job, measures it, writes the result.

Called as ``python -m oomscope.probe.worker JOB RESULT PROGRESS_FD``. Standard output and error are the target's.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path

from oomscope.errors import ExitCode
from oomscope.files import write_whole
from oomscope.probe.job import ProbeJob, Progress
from oomscope.probe.processes import die_with_parent
from oomscope.probe.result import ProbeResult


class ProgressPipe:
    """Writes progress as lines of JSON; keeps quiet once nobody listens."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor

    def __call__(self, progress: Progress) -> None:
        """Send one line."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._descriptor, json.dumps(progress.to_json()).encode() + b"\n")


def main(arguments: list[str]) -> None:
    """Measure the job in the file that ``arguments`` names."""
    die_with_parent()
    job_path, result_path, descriptor = arguments
    progress = ProgressPipe(int(descriptor))
    progress(Progress(stage="import"))
    from oomscope.probe.measure import measure

    job = ProbeJob.from_json(json.loads(Path(job_path).read_text()))
    path = Path(result_path).absolute()

    def keep(result: ProbeResult) -> None:
        write_whole(path, json.dumps(result.to_json()).encode(), force=True)

    try:
        keep(measure(job, progress=progress, keep=keep))
    except Exception:  # noqa: BLE001 - what the target raises is a result, so this is ours
        traceback.print_exc()
        sys.exit(ExitCode.INTERNAL)


if __name__ == "__main__":
    main(sys.argv[1:])
