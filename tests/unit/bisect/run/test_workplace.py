"""A command of the user's ends when it should, leaves no process, and says why it failed."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from oomscope.bisect.run.experiment import CommandError, OutOfTimeError
from oomscope.probe.process.launch import StoppedError
from tests.unit.bisect.worlds import workplace


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "clone").mkdir()
    return tmp_path / "clone"


def run(place: Path, command: str, **options) -> None:
    timeout_s = options.pop("timeout_s", 60.0)
    workplace(place, **options).run(command, name="--setup", timeout_s=timeout_s)


def test_runs_in_the_checkout_with_the_python_of_oomscope_first(place: Path) -> None:
    run(place, "pwd > where; command -v python > python; echo $PIP_TARGET > target")
    assert (place / "where").read_text().strip() == str(place)
    assert Path((place / "python").read_text().strip()).parent == Path(sys.executable).parent
    assert (place / "target").read_text().strip() == str(place)


def test_a_failed_command_is_reported_with_its_last_line_and_all_output(place: Path) -> None:
    with pytest.raises(CommandError) as caught:
        run(place, "echo compiling; echo 'fatal: no foo.h' >&2; exit 3")
    assert str(caught.value) == "--setup: failed (status 3): fatal: no foo.h"
    assert caught.value.output == "compiling\nfatal: no foo.h\n"


def test_what_takes_too_long_is_ended_with_all_that_it_started(place: Path) -> None:
    with pytest.raises(CommandError, match=r"took more than 0.3 s; give a longer --setup-timeout"):
        run(place, "sleep 600 & echo $! > child; setsid sleep 600 & echo $! > stray; wait", timeout_s=0.3)
    for name in ("child", "stray"):
        assert has_ended(int((place / name).read_text()))


def test_what_it_leaves_running_is_ended_too(place: Path) -> None:
    run(place, "sleep 600 & echo $! > child")
    assert has_ended(int((place / "child").read_text()))


def test_it_ends_when_the_result_is_not_needed_or_time_is_up(place: Path) -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(StoppedError):
        run(place, "sleep 600", stop=stop)
    with pytest.raises(OutOfTimeError):
        run(place, "sleep 600", seconds=0.2)
    with pytest.raises(OutOfTimeError):
        run(place, "touch begun", seconds=0.0)
    assert not (place / "begun").exists()


def has_ended(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{pid}/stat")
        if status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False
