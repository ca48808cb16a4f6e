"""The environment variables of a probe's process: the user's, less what would make two runs differ.

The allocator's and cuBLAS's variables are part of what is measured: a job that does not set them takes the
user's, on both backends alike, and the result says what was in force.

Inductor's cache is empty at the beginning of each run: choices that it finds there need no autotuning, and autotuning
allocates. Triton's compiled kernels decide nothing and take most of the time to make, so they are kept.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from oomscope.probe.job import CheckoutTarget, ProbeJob
from oomscope.torch_versions import CONF_VARIABLE, OLD_CONF_VARIABLE

ON_LOAN = threading.RLock()
"""Lock held while this process has other variables than its own, for a library that passes them on."""

ALLOCATOR_VARIABLES = (OLD_CONF_VARIABLE, CONF_VARIABLE)
"""Both names of torch's allocator settings. Only the first that is set, even to nothing, is read: torch 2.13 neither
merges nor parses the other."""
CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
VISIBLE_CARDS = "CUDA_VISIBLE_DEVICES"
MEASURED_VARIABLES = (
    *ALLOCATOR_VARIABLES,
    CUBLAS_VARIABLE,
    "CUBLASLT_WORKSPACE_SIZE",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_CUDNN_SDPA_ENABLED",
    "NVIDIA_TF32_OVERRIDE",
    VISIBLE_CARDS,
    "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
)
"""Variables that change what is allocated: part of a measurement's fingerprint."""

_OF_THE_CONTEXT = {"CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS"}
"""Measured variables that change the CUDA context alone, and nothing that torch allocates."""
_FIXED = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
_REMOVED_PREFIXES = ("GIT_", "TORCHELASTIC_", "PYTEST_")
_REMOVED = {
    # Python's own start-up
    *("PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONDEVMODE"),
    *("PYTHONPROFILEIMPORTTIME", "PYTHONTRACEMALLOC", "PYTHONBREAKPOINT"),
    "OOMSCOPE_STARTUP",  # set by a surrounding probe or test
}
_PLACE = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
}
"""Variables of a process's place in a world: a process that plays one rank must not join a surrounding torchrun."""


def own_environment() -> dict[str, str]:
    """Return the variables that this process was given; any thread may ask."""
    with ON_LOAN:
        return dict(os.environ)


def variables_to_repeat(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that another machine needs as well to allocate the same."""
    return {name: environment[name] for name in MEASURED_VARIABLES if name in environment and name != VISIBLE_CARDS}


def request_variables(job: ProbeJob, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the process of ``job`` that change which sizes torch asks its allocator for.

    The allocator's own settings are not among them: a result names those apart.
    """
    variables = variables_to_repeat(child_environment(job, environment))
    left_out = {*_OF_THE_CONTEXT, *ALLOCATOR_VARIABLES}
    return {name: value for name, value in variables.items() if name not in left_out}


def allocator_variable(environment: Mapping[str, str]) -> str | None:
    """Return the name of the variable that torch takes its allocator's settings from; None where neither is set."""
    return next((name for name in ALLOCATOR_VARIABLES if name in environment), None)


def allocator_conf(job: ProbeJob, environment: Mapping[str, str]) -> str:
    """Return the allocator settings in force: the job's, else the user's, else the empty string."""
    name = allocator_variable(environment)
    return job.allocator_conf or ("" if name is None else environment[name])


def allocator_variables(conf: str) -> dict[str, str]:
    """Return the variables that give torch's allocator the settings ``conf``, whichever of both names it reads."""
    return dict.fromkeys(ALLOCATOR_VARIABLES, conf)


def cublas_workspace_config(job: ProbeJob, environment: Mapping[str, str]) -> str | None:
    """Return the CUBLAS_WORKSPACE_CONFIG in force: the job's, else the user's, else None."""
    return job.cublas_workspace_config or environment.get(CUBLAS_VARIABLE) or None


def environment_of(job: ProbeJob, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the user's ``environment`` with the variables that ``job`` sets or takes away."""
    variables = {**environment, **job.environment}
    return {name: value for name, value in variables.items() if value is not None}


def usual_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a job sees of ``environment`` unless it says otherwise; hash seeds are fixed.

    The place in a world of one is kept: programs that begin a world need it.
    """
    is_alone = environment.get("WORLD_SIZE") == "1" and "TORCHELASTIC_RUN_ID" not in environment
    removed = _REMOVED if is_alone else _REMOVED | _PLACE
    kept = {
        name: value
        for name, value in environment.items()
        if name not in removed and not name.startswith(_REMOVED_PREFIXES)
    }
    return {**kept, **_FIXED}


def child_environment(job: ProbeJob, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which ``job`` is run.

    Hash seeds are fixed and no bytecode is written (commits share none). A virtual card is always visible, whatever
    the user's CUDA_VISIBLE_DEVICES says of the real ones.
    """
    variables = environment_of(job, environment)
    of_the_job = {name: value for name, value in variables.items() if name in job.environment}
    child = {**usual_environment(variables), **of_the_job, **_FIXED}
    if isinstance(job.target, CheckoutTarget):
        child["PYTHONDONTWRITEBYTECODE"] = "1"
    if job.backend == "virtual" and VISIBLE_CARDS not in job.environment:
        child.pop(VISIBLE_CARDS, None)
    conf, workspace = allocator_conf(job, child), cublas_workspace_config(job, child)
    for name in ALLOCATOR_VARIABLES:
        child.pop(name, None)
        if conf:
            child[name] = conf
    if workspace:
        child[CUBLAS_VARIABLE] = workspace
    return child


INDUCTOR: Final = "TORCHINDUCTOR_CACHE_DIR"
TRITON: Final = "TRITON_CACHE_DIR"
_TRITON_HOME: Final = "TRITON_HOME"
_TRITON_AUTOTUNING: Final = "TRITON_CACHE_AUTOTUNING"


def compile_cache_variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of one run.

    ``folder`` is gone after the run; inductor's cache is made in it. ``environment`` tells where Triton keeps its
    kernels (triton/knobs.py), which inductor would put into its own cache.
    """
    home = Path(environment.get(_TRITON_HOME) or Path.home())
    kept = home / ".triton" / "cache" if os.access(home, os.W_OK) else folder / "triton"
    return {
        INDUCTOR: tempfile.mkdtemp(prefix="torchinductor_", dir=folder),
        TRITON: environment.get(TRITON) or str(kept),
        _TRITON_AUTOTUNING: "0",
    }
