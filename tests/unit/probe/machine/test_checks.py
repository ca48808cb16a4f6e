from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.config.load import load_config, load_preset
from oomscope.errors import AllocatorConfError, ConfigError
from oomscope.probe.job import BundledTarget, ProbeJob
from oomscope.probe.machine.checks import check_card, check_environment

WRONG = [
    ("device", "gpu", "h1000", "device.gpu: no card is called 'h1000'"),
    (
        "allocator",
        "conf",
        "expandable_segments:Maybe",
        "allocator.conf: PYTORCH_ALLOC_CONF, column 21: Expected 'True'",
    ),
    ("allocator", "conf", "backend:cudaMallocAsync", "allocator.conf: .*cannot be modelled"),
    ("device", "cublas_workspace_config", "big", "device.cublas_workspace_config: .*cannot read 'big'"),
]


@pytest.mark.parametrize(("section", "key", "value", "said"), WRONG)
def test_a_wrong_setting_is_named_with_its_line(tmp_path: Path, section: str, key: str, value: str, said: str) -> None:
    file = tmp_path / "cfg.yaml"
    file.write_text(f"preset: gpt-tiny\n{section}:\n  {key}: '{value}'\n")
    with pytest.raises(ConfigError, match=f"{file}:3: {said}"):
        check_card(load_config(file))


def test_what_is_right_passes() -> None:
    overrides = ["device.gpu=H100", "allocator.conf=max_split_size_mb:128"]
    check_card(load_preset("gpt-tiny", [*overrides, "device.cublas_workspace_config=:4096:8:16:2"]))
    check_card(load_preset("gpt-tiny"))


@pytest.mark.parametrize(
    ("environment", "job", "error"),
    [
        ({"PYTORCH_ALLOC_CONF": "nonsense"}, {}, "environment variable PYTORCH_ALLOC_CONF"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "nonsense"}, {}, None),
        ({"PYTORCH_ALLOC_CONF": "nonsense"}, {"allocator_conf": "expandable_segments:True"}, None),
        ({"CUBLAS_WORKSPACE_CONFIG": "big"}, {}, "CUBLAS_WORKSPACE_CONFIG: cannot read 'big'"),
        ({"CUBLAS_WORKSPACE_CONFIG": "big"}, {"cublas_workspace_config": ":16:8"}, None),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}, {}, None),
    ],
)
def test_a_variable_counts_where_it_is_in_force(environment, job, error: str | None) -> None:
    job = ProbeJob(target=BundledTarget(config={}), **job)
    if error is None:
        check_environment(job, environment)
    else:
        with pytest.raises((AllocatorConfError, ConfigError), match=error):
            check_environment(job, environment)
