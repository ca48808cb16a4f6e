"""What ``--slurm`` says goes to sbatch as it is, unless it would take the result away or forge a script."""

from __future__ import annotations

import pytest

from oomscope.bisect.cluster.settings import OURS, ClusterSettings
from oomscope.errors import UsageError


def test_options_are_those_of_sbatch_however_they_are_spelled() -> None:
    words = ["partition=gpu", "gpus_per_node=1", "--mem=8G", "exclusive", "constraint=a100&nvlink", "comment=a=b"]
    assert ClusterSettings.parse(words).options == {
        "partition": "gpu",
        "gpus-per-node": "1",
        "mem": "8G",
        "exclusive": True,
        "constraint": "a100&nvlink",
        "comment": "a=b",
    }


@pytest.mark.parametrize("word", ["", "=gpu", "a b=c", "comment=one\n#SBATCH --wrap=evil", "-p gpu", "Partition=gpu"])
def test_what_is_no_option_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is no option of sbatch"):
        ClusterSettings.parse([word])


@pytest.mark.parametrize("name", sorted(OURS))
def test_how_a_result_comes_back_cannot_be_chosen(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be chosen"):
        ClusterSettings.parse([f"{name}=1"])
