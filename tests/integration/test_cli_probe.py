"""From the command line to the virtual card and back: once by the installed program, else in this process."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest

from oomscope.probe.result import ProbeResult
from oomscope.units import GiB
from tests import forked
from tests.integration.program import oomscope


def test_a_preset_fits_and_names_its_peak(tmp_path: Path) -> None:
    snapshot, page = tmp_path / "trace.pickle", tmp_path / "report.html"
    files = ("--snapshot", snapshot, "--html", page)
    done = oomscope("probe", "--preset", "gpt-tiny", "--backend", "virtual", "--limit", "8GiB", *files, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    result = ProbeResult.from_json(document)
    assert (result.outcome, result.backend, result.limit_bytes) == ("fits", "virtual", 8 * GiB)
    assert result.available_bytes == 8 * GiB - result.non_torch_bytes
    assert result.peak is not None
    assert result.peak.phase
    assert result.peak.site is not None
    assert sum(result.peak.categories.values()) == result.peak.requested_bytes
    assert sum(row.bytes for row in result.peak.sites) == result.peak.requested_bytes
    assert result.peak.requested_bytes <= result.peak.allocated_bytes <= result.peak.reserved_bytes
    assert set(pickle.loads(snapshot.read_bytes())) >= {"segments", "device_traces"}
    assert {"data-timeline", "data-segments"} <= set(re.findall(r"data-[a-z]+", page.read_text()))
    assert done.stderr.splitlines()[-1].startswith("Wrote ")


def test_every_depth_of_multi_token_prediction_keeps_its_own_logits() -> None:
    """Three depths against one: two more softmaxes in fp32 are kept at the peak, [s, b, V] each, and two layers."""
    rotary, rows = "model.position_embedding_type=rope", 128 * 2 * 5120
    peaks = []
    for depths in (1, 3):
        given = (rotary, f"model.mtp_num_layers={depths}", "model.mtp_use_repeated_layer=true", "--quiet", "--json")
        done = forked.oomscope("probe", "--preset", "gpt-tiny", "--backend", "virtual", *given)
        assert done.returncode == 0, done.stderr
        peaks.append(json.loads(done.stdout)["peak"]["requested_bytes"])
    assert 2 * 4 * rows < peaks[1] - peaks[0] < 2 * 4 * rows + 12 * 2**20


def test_an_oom_has_a_verdict_and_its_exit_code() -> None:
    large = ("model.ffn_hidden_size=65536", "device.non_torch_bytes=0")
    done = forked.oomscope(
        "probe", "--preset", "gpt-tiny", "--backend", "virtual", "--limit", "64MiB", *large, "--quiet"
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "OUT OF MEMORY asking for" in done.stdout
    assert re.search(r"^Verdict +capacity\.", done.stdout, re.MULTILINE)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("import nothing_of_that_name", "import"),
        ("def setup(ctx):\n    raise RuntimeError('no data')", "setup"),
        ("import os\ndef setup(ctx):\n    os.abort()", "crash"),
    ],
)
def test_a_harness_that_fails_is_an_outcome(tmp_path: Path, code: str, kind: str) -> None:
    harness = tmp_path / "harness.py"
    harness.write_text(code)
    done = forked.oomscope("probe", "--harness", harness, "--repo", tmp_path, "--json")
    assert done.returncode == 6, done.stderr
    document = json.loads(done.stdout)
    assert document["failure"]["kind"] == kind
    assert "Traceback" not in done.stderr


def test_a_hanging_harness_is_ended(tmp_path: Path) -> None:
    harness = tmp_path / "harness.py"
    harness.write_text("import time\ndef setup(ctx):\n    time.sleep(600)")
    done = forked.oomscope("probe", "--harness", harness, "--repo", tmp_path, "--timeout", "3", "--json")
    assert done.returncode == 6
    assert json.loads(done.stdout)["failure"]["kind"] == "timeout"
