"""A Slurm for the tests of this folder, where one was asked for (``make test-slurm``) and can be had."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.one_node import missing, one_node

ASKED = "OOMSCOPE_TEST_SLURM"


@pytest.fixture(scope="session")
def slurm_conf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The slurm.conf of a running one-node Slurm; skipped, with the reason, where there is none."""
    if not os.environ.get(ASKED):
        pytest.skip("starts a Slurm of its own: make test-slurm")
    if why := missing():
        pytest.skip(why)
    with one_node(tmp_path_factory.mktemp("slurm"), cpus=4) as conf:
        yield conf


@pytest.fixture
def slurm(slurm_conf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as what all Slurm programs of the test talk to."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_conf))
    return slurm_conf
