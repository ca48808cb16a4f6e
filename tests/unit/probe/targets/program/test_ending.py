"""The stop reaches the main thread from wherever a step is made; hard exits are seen. Real interpreters."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path


def python(program: str) -> subprocess.CompletedProcess[str]:
    ours = "before_hard_exit, skip_collection_at_exit, stop"
    text = f"import os, threading, time\nfrom oomscope.probe.targets.program.ending import {ours}\n"
    return subprocess.run(
        [sys.executable, "-c", text + textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )


def test_it_passes_what_catches_exceptions_and_runs_what_is_to_run_at_the_end() -> None:
    done = python("""
        import atexit
        atexit.register(print, "exit handler")
        try:
            try:
                stop()
            except Exception:
                print("caught")
        finally:
            print("finally")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "finally\nexit handler\n", "")


def test_what_a_program_wrote_into_an_open_file_is_there_though_its_garbage_is_left(tmp_path: Path) -> None:
    """The file is held by a cycle alone."""
    done = python(f"""
        import gc
        class Log:
            def __init__(self):
                self.file, self.itself = open({str(tmp_path / "log")!r}, "w"), self
        gc.disable()
        Log().file.write("loss 0.5")
        skip_collection_at_exit()
        assert not gc.collect()
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "log").read_text() == "loss 0.5"


def test_a_thread_of_the_program_ends_and_so_does_the_main_thread_that_waits_for_it() -> None:
    done = python("""
        def train():
            try:
                stop()
            finally:
                print("thread")
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        for _ in range(100):
            time.sleep(0.01)
        print("went on")
    """)
    assert (done.returncode, done.stdout) == (0, "thread\n")


def test_a_foreign_thread_goes_on_and_the_main_thread_ends() -> None:
    done = python("""
        import _thread
        over = threading.Lock()
        over.acquire()
        def step():  # as on a thread of autograd, which Python did not start
            stop()
            print("passed", flush=True)
            over.release()
        _thread.start_new_thread(step, ())
        over.acquire()
        for _ in range(100):
            time.sleep(0.01)
        print("went on")
    """)
    assert (done.returncode, done.stdout) == (0, "passed\n")
