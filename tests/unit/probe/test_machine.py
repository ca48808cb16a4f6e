"""What a probe finds out of the machine: backend, settings, variables, versions."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope import virtual
from oomscope.config.load import load_config, load_preset
from oomscope.errors import AllocatorConfError, ConfigError, MachineUnfitError
from oomscope.probe.job import BundledTarget, ProbeJob, ProgramTarget
from oomscope.probe.machine import backends
from oomscope.probe.machine.backends import backend_of
from oomscope.probe.machine.checks import check_card, check_environment
from oomscope.probe.machine.environment import (
    allocator_conf,
    child_environment,
    variables_to_repeat,
)
from oomscope.probe.machine.fingerprint import hash_of
from oomscope.probe.recording import settings

BUNDLED = ProbeJob(target=BundledTarget(config={}))


class Machine:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(self, *, card: bool = False, torch_has_cuda: bool = True) -> None:
        self._patch.setattr(backends, "has_card", lambda: card)
        self._patch.setattr(backends, "_torch_has_cuda", lambda: torch_has_cuda)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"card": True}, "cuda"),
        ({"card": True, "torch_has_cuda": False}, "virtual"),
        ({}, "virtual"),
    ],
)
def test_auto_takes_what_is_there(machine: Machine, facts: dict[str, bool], expected: str) -> None:
    machine(**facts)
    assert backend_of(BUNDLED, {}) == expected


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_card_is_none(machine: Machine, hidden: str) -> None:
    machine(card=True)
    assert backend_of(BUNDLED, {"CUDA_VISIBLE_DEVICES": hidden}) == "virtual"
    assert backend_of(BUNDLED, {"CUDA_VISIBLE_DEVICES": "1"}) == "cuda"


@pytest.mark.parametrize("card", [True, False])
def test_a_program_brings_its_own_torch(machine: Machine, tmp_path: Path, card: bool) -> None:
    machine(card=card, torch_has_cuda=False)
    program = ProbeJob(target=ProgramTarget(repo=str(tmp_path), command="python train.py"))
    assert backend_of(program, {}) == ("cuda" if card else "virtual")


def test_what_is_asked_for_is_taken(machine: Machine) -> None:
    machine(card=True)
    for backend in ("virtual", "cuda"):
        assert backend_of(ProbeJob(target=BundledTarget(config={}), backend=backend), {}) == backend


WRONG = [
    ("device", "gpu", "h1000", "device.gpu: no card is called 'h1000'"),
    (
        "allocator",
        "conf",
        "expandable_segments:Maybe",
        "allocator.conf: PYTORCH_ALLOC_CONF, column 21: Expected 'True'",
    ),
    ("allocator", "conf", "backend:cudaMallocAsync", "allocator.conf: .*cannot be modelled"),
    ("device", "non_torch_bytes", "100GiB", "a card of 79.19 GiB .h100-80gb. has nothing left after 100.00 GiB"),
    ("device", "cublas_workspace_config", "big", "device.cublas_workspace_config: .*cannot read 'big'"),
]


@pytest.mark.parametrize(("section", "key", "value", "said"), WRONG)
def test_a_wrong_setting_is_named_with_its_line(tmp_path: Path, section: str, key: str, value: str, said: str) -> None:
    file = tmp_path / "cfg.yaml"
    file.write_text(f"preset: gpt-tiny\n{section}:\n  {key}: '{value}'\n")
    with pytest.raises(ConfigError, match=f"{file}:3: {said}"):
        check_card(load_config(file))


def test_flash_attention_is_refused_on_cards_that_have_no_kernels_of_it() -> None:
    card = ("precision.bf16=true", "model.attention_backend=flash", "device.gpu=t4")
    loaded = load_preset("gpt-tiny", card)
    with pytest.raises(
        ConfigError, match=r"a t4 \(compute capability 7\.5\) has no kernels .*backend=unfused, or name"
    ):
        check_card(loaded)
    check_card(loaded, has_model=False)
    for other in ("model.attention_backend=unfused", "device.gpu=a10", "probe.backend=cuda"):
        check_card(load_preset("gpt-tiny", (*card, other)))


@pytest.mark.parametrize(
    ("environment", "job", "error"),
    [
        ({"PYTORCH_ALLOC_CONF": "nonsense"}, {}, "environment variable PYTORCH_ALLOC_CONF"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "nonsense"}, {}, None),
        ({"PYTORCH_ALLOC_CONF": "nonsense"}, {"allocator_conf": "expandable_segments:True"}, None),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, {}, None),
    ],
)
def test_a_variable_counts_where_it_is_in_force(environment, job, error: str | None) -> None:
    job = ProbeJob(target=BundledTarget(config={}), **job)
    if error is None:
        check_environment(job, environment)
    else:
        with pytest.raises(AllocatorConfError, match=error):
            check_environment(job, environment)


def test_what_makes_runs_differ_is_removed_and_the_rest_kept() -> None:
    theirs = {"GIT_DIR": "x", "RANK": "3", "PYTHONSTARTUP": "x", "OMP_NUM_THREADS": "2", "HF_HOME": "/hf", "PATH": "/b"}
    child = child_environment(BUNDLED, theirs)
    assert {"GIT_DIR", "RANK", "PYTHONSTARTUP"}.isdisjoint(child)
    assert child | {"OMP_NUM_THREADS": "2", "HF_HOME": "/hf", "PATH": "/b"} == child
    assert child["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize(
    ("others", "is_kept"),
    [
        ({"WORLD_SIZE": "1"}, True),
        ({"WORLD_SIZE": "8"}, False),
        ({}, False),
        ({"WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"}, False),
    ],
)
def test_the_place_in_a_world_of_one_is_kept(others: dict[str, str], is_kept: bool) -> None:
    """Of a larger one a process would wait for the others; torchrun keeps the port."""
    place = {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555", **others}
    assert (child_environment(BUNDLED, place).items() >= {"RANK": "0", "MASTER_PORT": "29555"}.items()) == is_kept


def test_nobody_hides_a_virtual_card_but_the_job_itself() -> None:
    assert child_environment(BUNDLED, {"CUDA_VISIBLE_DEVICES": "2"})["CUDA_VISIBLE_DEVICES"] == "2"
    card = ProbeJob(target=BundledTarget(config={}), backend="virtual")
    assert "CUDA_VISIBLE_DEVICES" not in child_environment(card, {"CUDA_VISIBLE_DEVICES": ""})
    own = replace(card, environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert child_environment(own, {})["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_job_decides_the_allocator_and_else_the_user() -> None:
    own = ProbeJob(target=BundledTarget(config={}), allocator_conf="max_split_size_mb:64")
    old_name = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    both = {"PYTORCH_ALLOC_CONF": "a:1", **old_name}
    assert allocator_conf(own, both) == "max_split_size_mb:64"
    assert allocator_conf(BUNDLED, both) == allocator_conf(BUNDLED, old_name) == "expandable_segments:True"
    assert allocator_conf(BUNDLED, {"PYTORCH_ALLOC_CONF": "a:1"}) == "a:1"
    assert allocator_conf(BUNDLED, {"PYTORCH_ALLOC_CONF": ""}) == ""
    child = child_environment(own, both)
    assert child["PYTORCH_ALLOC_CONF"] == child["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    assert "PYTORCH_ALLOC_CONF" not in child_environment(BUNDLED, {"PYTORCH_ALLOC_CONF": ""})


def test_of_two_allocator_variables_torch_reads_the_same() -> None:
    """A setting that no torch knows stands in the other variable: torch would refuse it if it read it."""
    both = {"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "of_no_torch:1"}
    ask = "from oomscope.virtual.loading import load_where_needed; load_where_needed()\n"
    ask += "import torch; print(torch._C._accelerator_getAllocatorSettings())"
    environment = {**os.environ, **both}
    answer = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == allocator_conf(BUNDLED, both) == ""


def test_what_a_job_sets_comes_on_top_and_null_takes_away() -> None:
    job = replace(BUNDLED, environment={"BATCH": "8", "HF_HOME": None, "RANK": "3"})
    child = child_environment(job, {"BATCH": "4", "HF_HOME": "/hf", "RANK": "1"})
    assert (child["BATCH"], child["RANK"]) == ("8", "3")
    assert "HF_HOME" not in child


def test_variables_for_another_machine_leave_out_which_cards_were_visible() -> None:
    given = {"HOME": "/home/ada", "CUDA_VISIBLE_DEVICES": "3", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert variables_to_repeat(given) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "sub" / "preset.yaml").write_text("seq: 1\n")
    return tmp_path


def test_any_byte_of_any_source_counts(tree: Path) -> None:
    before = hash_of(tree)
    assert before == hash_of(tree)
    for path, text in ((tree / "a.py", "x = 2\n"), (tree / "sub" / "preset.yaml", "seq: 2\n")):
        old = path.read_text()
        path.write_text(text)
        assert hash_of(tree) != before
        path.write_text(old)
    assert hash_of(tree) == before


def test_a_torch_that_cannot_be_imported_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "is_loaded", lambda: False)
    monkeypatch.setattr(settings, "has_card", lambda: False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not settings.sees_gpu()
    with pytest.raises(MachineUnfitError, match="--backend cuda: there is no GPU; use --backend virtual"):
        settings.resolve_backend(ProbeJob(target=BundledTarget(config={}), backend="cuda"))
    monkeypatch.setattr(settings, "has_card", lambda: True)
    with pytest.raises(MachineUnfitError, match="torch cannot be imported"):
        settings.sees_gpu()
