"""Cases are collected from a checkout as Megatron-LM lays it out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("megatron_golden.py")


def collect(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, checkout], capture_output=True, text=True, check=False)


def test_arguments_and_last_values_are_taken(tmp_path: Path) -> None:
    case = tmp_path / "tests/functional_tests/test_cases/gpt/toy"
    case.mkdir(parents=True)
    (case / "model_config.yaml").write_text("ENV_VARS: {NCCL_ALGO: Ring}\nMODEL_ARGS: {--bf16: true, --lr: 1}\n")
    series = {"mem-allocated-bytes": {"values": {"9": 5, "10": 7, "11": "nan"}}}
    series["mem-max-allocated-bytes"] = {"values": {"1": 11}}
    (case / "golden_values_dev_dgx_h100.json").write_text(json.dumps(series))
    (collected,) = json.loads(collect(tmp_path).stdout)
    assert collected["case"] == "gpt/toy"
    assert collected["arguments"] == {"ENV:NCCL_ALGO": "Ring", "--bf16": "true", "--lr": "1"}
    assert "cards" not in collected
    assert collected["rows"] == [{"env": "8x H100-80GB", "alloc_last": 7, "max_last": 11}]


def test_a_case_on_a_part_of_a_machine_says_so(tmp_path: Path) -> None:
    case = tmp_path / "tests/functional_tests/test_cases/gpt/toy"
    case.mkdir(parents=True)
    (case / "model_config.yaml").write_text("MODEL_ENV_VARS: {MODEL_ARGS: {GPUS_PER_NODE: 2}}\nMODEL_ARGS: {--lr: 1}\n")
    series = {name: {"values": {"1": 5}} for name in ("mem-allocated-bytes", "mem-max-allocated-bytes")}
    (case / "golden_values_dev_dgx_h100.json").write_text(json.dumps(series))
    (collected,) = json.loads(collect(tmp_path).stdout)
    assert collected["cards"] == 2


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    ended = collect(tmp_path)
    assert ended.returncode == 2
    assert "checkout" in ended.stderr
