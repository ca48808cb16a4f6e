from __future__ import annotations

from oomscope.probe.environment import allocator_conf, child_environment, cublas_workspace_config
from oomscope.probe.job import BundledTarget, HarnessTarget, ProbeJob

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


def test_gpus_are_hidden_from_the_simulated_device_alone() -> None:
    theirs = {"CUDA_VISIBLE_DEVICES": "2"}
    sim = ProbeJob(target=BundledTarget(config={}), backend="sim")
    assert child_environment(sim, theirs)["CUDA_VISIBLE_DEVICES"] == ""
    assert child_environment(BUNDLED, theirs)["CUDA_VISIBLE_DEVICES"] == "2"


def test_the_job_decides_the_allocator_and_else_the_user() -> None:
    own = ProbeJob(target=BundledTarget(config={}), allocator_conf="max_split_size_mb:64")
    old_name = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    both = {"PYTORCH_ALLOC_CONF": "a:1", **old_name}
    assert allocator_conf(own, both) == "max_split_size_mb:64"
    assert allocator_conf(BUNDLED, both) == "a:1"
    assert allocator_conf(BUNDLED, old_name) == "expandable_segments:True"
    assert allocator_conf(BUNDLED, {"PYTORCH_ALLOC_CONF": ""}) == ""
    child = child_environment(own, both)
    assert child["PYTORCH_ALLOC_CONF"] == child["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    assert "PYTORCH_ALLOC_CONF" not in child_environment(BUNDLED, {"PYTORCH_ALLOC_CONF": ""})


def test_the_cublas_workspace_likewise() -> None:
    own = ProbeJob(target=BundledTarget(config={}), cublas_workspace_config=":16:8")
    assert cublas_workspace_config(own, {"CUBLAS_WORKSPACE_CONFIG": ":4096:2"}) == ":16:8"
    assert cublas_workspace_config(BUNDLED, {"CUBLAS_WORKSPACE_CONFIG": ":4096:2"}) == ":4096:2"
    assert cublas_workspace_config(BUNDLED, {}) is None
    assert child_environment(own, {})["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
