from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from oomscope.probe.job import BundledTarget, HarnessTarget, ProbeJob
from oomscope.probe.machine.environment import (
    allocator_conf,
    child_environment,
    cublas_workspace_config,
    told_variables,
)

BUNDLED = ProbeJob(target=BundledTarget(config={}))
HARNESS = ProbeJob(target=HarnessTarget(harness="/h.py", repo="/repo"))


def test_what_makes_runs_differ_is_removed_and_the_rest_kept() -> None:
    theirs = {"GIT_DIR": "x", "RANK": "3", "PYTHONSTARTUP": "x", "OMP_NUM_THREADS": "2", "HF_HOME": "/hf", "PATH": "/b"}
    child = child_environment(BUNDLED, theirs)
    assert {"GIT_DIR", "RANK", "PYTHONSTARTUP"}.isdisjoint(child)
    assert child | {"OMP_NUM_THREADS": "2", "HF_HOME": "/hf", "PATH": "/b"} == child
    assert child["PYTHONHASHSEED"] == "0"


def test_no_bytecode_is_shared_between_checkouts() -> None:
    assert child_environment(HARNESS, {})["PYTHONDONTWRITEBYTECODE"] == "1"
    assert "PYTHONDONTWRITEBYTECODE" not in child_environment(BUNDLED, {})


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


@pytest.mark.parametrize("old_name", ["max_split_size_mb:64", ""])
def test_of_two_allocator_variables_torch_reads_the_same(old_name: str) -> None:
    """A setting that no torch knows stands in the other variable: torch would refuse it if it read it."""
    both = {"PYTORCH_CUDA_ALLOC_CONF": old_name, "PYTORCH_ALLOC_CONF": "of_no_torch:1"}
    ask = "from oomscope.virtual.loading import load_where_needed; load_where_needed()\n"
    ask += "import torch; print(torch._C._accelerator_getAllocatorSettings())"
    environment = {**os.environ, **both}
    answer = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == allocator_conf(BUNDLED, both) == old_name


def test_the_cublas_workspace_likewise() -> None:
    own = ProbeJob(target=BundledTarget(config={}), cublas_workspace_config=":16:8")
    assert cublas_workspace_config(own, {"CUBLAS_WORKSPACE_CONFIG": ":4096:2"}) == ":16:8"
    assert cublas_workspace_config(BUNDLED, {"CUBLAS_WORKSPACE_CONFIG": ":4096:2"}) == ":4096:2"
    assert cublas_workspace_config(BUNDLED, {}) is None
    assert child_environment(own, {})["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_what_a_job_sets_comes_on_top_and_null_takes_away() -> None:
    job = replace(BUNDLED, environment={"BATCH": "8", "HF_HOME": None, "RANK": "3"})
    child = child_environment(job, {"BATCH": "4", "HF_HOME": "/hf", "RANK": "1"})
    assert (child["BATCH"], child["RANK"]) == ("8", "3")
    assert "HF_HOME" not in child


def test_allocator_settings_of_the_job_win_over_the_variable_that_it_sets() -> None:
    job = replace(BUNDLED, environment={"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"})
    assert child_environment(job, {})["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    named = replace(job, allocator_conf="max_split_size_mb:32")
    assert child_environment(named, {})["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:32"


def test_what_another_machine_has_to_set_is_told_but_not_which_cards_were_seen() -> None:
    given = {"HOME": "/home/ada", "CUDA_VISIBLE_DEVICES": "3", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert told_variables(given) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
