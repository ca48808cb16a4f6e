"""What the environment of a started program makes of its processes; no torch."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.capture.arming import STARTUP, AroundImport
from oomscope.capture.singleton import PROBE_MARK
from oomscope.probe.recording.collector import gc_paused, gc_paused_import
from oomscope.probe.targets.program.arming import have_a_card_each, variables
from oomscope.probe.targets.program.receipt import ProgramSettings, read_receipts
from oomscope.virtual import CardSettings
from oomscope.virtual.settings import VARIABLE

SETTINGS = ProgramSettings(folder="/nowhere", backend="virtual", iterations=3, max_entries=10)
HOOKS = "import sys; print([getattr(finder, '_name', None) for finder in sys.meta_path].count('torch'))"


SAID = "torch 1.0 cannot be recorded (ModuleNotFoundError: No module named 'torch."


def python(program: str, *, printed: str = "", **environment: str) -> str:
    armed = dict(os.environ) | variables(SETTINGS, os.environ) | environment
    done = subprocess.run(
        [sys.executable, "-c", program], env=armed, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.removeprefix("oomscope: ").startswith(printed)
    assert bool(done.stderr) == bool(printed)
    return done.stdout


def test_the_folder_comes_first_and_the_user_s_path_stays() -> None:
    told = variables(SETTINGS, {"PYTHONPATH": "mine"})
    assert told["PYTHONPATH"] == f"{STARTUP}{os.pathsep}mine"
    assert ProgramSettings.from_environment(told) == SETTINGS


def test_a_process_waits_for_torch() -> None:
    assert python(HOOKS) == "1\n"


def test_numpy_is_seeded_whenever_it_is_imported_and_its_own_seed_counts() -> None:
    drawn = "import numpy; rng = numpy.random.default_rng(); print(numpy.random.rand(), rng.random(), rng.random())"
    assert python(drawn) == python(drawn)
    seeded = "import numpy; numpy.random.seed(5); print(numpy.random.rand(), numpy.random.default_rng(5).random())"
    assert (
        python(seeded)
        == subprocess.run([sys.executable, "-c", seeded], capture_output=True, text=True, check=True).stdout
    )


def test_a_worker_of_a_probe_that_the_program_runs_is_left_alone() -> None:
    assert python(HOOKS, **{PROBE_MARK: "abc"}) == "0\n"


def test_little_is_imported_before_torch() -> None:
    names = python("import sys; print(*sys.modules)").split()
    assert "oomscope.probe.targets.program.arming" in names
    assert {"torch", "numpy", "json", "dataclasses", "pathlib", "oomscope.virtual"}.isdisjoint(names)


@pytest.mark.parametrize(
    ("ranks", "given", "devices"), [("2", 1, 2), ("8", 1, 8), ("", 1, 1), ("two", 1, 1), ("1", 2, 2)]
)
def test_each_process_of_a_launcher_has_a_card(ranks: str, given: int, devices: int) -> None:
    environment = CardSettings(used_bytes=7, devices=given).variables() | {"LOCAL_WORLD_SIZE": ranks}
    have_a_card_each(environment)
    assert environment[VARIABLE] == CardSettings(used_bytes=7, devices=devices).variables()[VARIABLE]


def test_a_folder_that_is_gone_does_not_end_the_program(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    assert python("print('ran')", PYTHONPATH=os.pathsep.join([STARTUP, gone])) == "ran\n"


def test_a_torch_that_cannot_be_recorded_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '1.0'\n", encoding="utf-8")
    settings = replace(SETTINGS, folder=str(tmp_path), backend="cuda")
    python("import torch", PYTHONPATH=os.pathsep.join([STARTUP, str(tmp_path)]), **settings.variables(), printed=SAID)
    (left,) = read_receipts(tmp_path)
    assert left.defect.startswith(SAID)


def test_the_end_of_a_process_that_cannot_be_recorded_keeps_the_reason(tmp_path: Path) -> None:
    told = replace(SETTINGS, folder=str(tmp_path), backend="cuda").variables()
    program = f"""
import os
from oomscope import virtual
virtual.load()
import torch
from oomscope.probe.targets.program.arming import _after_torch
torch.backends.cuda.is_built = lambda: True
del torch.cuda._lazy_call
os.environ.update({told!r})
_after_torch()
"""
    subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    (left,) = read_receipts(tmp_path)
    assert "cannot be recorded (AttributeError: " in left.defect


def test_the_collector_rests_during_an_import_and_runs_once_after_many_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = "import gc\nTHRESHOLD = gc.get_threshold()[0]\nKEPT = [[] for _ in range(200_000)]\n"
    (tmp_path / "many_objects.py").write_text(many, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    before, afterwards = gc.get_threshold(), []
    AroundImport(
        "many_objects", within=gc_paused_import, then=lambda: afterwards.append(gc.get_threshold()[0])
    ).install()
    oldest = gc.get_stats()[-1]["collections"]
    module = importlib.import_module("many_objects")
    assert gc.get_stats()[-1]["collections"] > oldest
    assert gc.get_count()[0] < 100_000
    assert (module.THRESHOLD, afterwards, gc.get_threshold()) == (0, [0], before)


def test_a_collector_that_is_off_does_not_run() -> None:
    gc.disable()
    try:
        before = gc.get_stats()[-1]["collections"]
        with gc_paused_import():
            kept = [[] for _ in range(200_000)]
        assert gc.get_stats()[-1]["collections"] == before
        del kept
    finally:
        gc.enable()


def test_a_threshold_that_an_import_sets_stays() -> None:
    before = gc.get_threshold()
    try:
        with gc_paused():
            gc.set_threshold(123, 4, 5)
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*before)
