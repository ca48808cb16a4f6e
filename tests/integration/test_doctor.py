"""The installed program on machines that lack something; torch is a stand-in, but for one run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^(\S.*?)  +[-+!x] (?:ok|note|missing|fails) ", PAGE, re.MULTILINE)
"""The parts in the report that the page shows."""


def doctor(tmp_path: Path, torch: str | None, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``oomscope doctor`` where ``import torch`` runs ``torch``."""
    variables = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), **environment}
    if torch is not None:
        (tmp_path / "path" / "torch").mkdir(parents=True)
        (tmp_path / "path" / "torch" / "__init__.py").write_text(torch)
        variables["PYTHONPATH"] = str(tmp_path / "path")
    code = "import sys; from oomscope.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "doctor", *options]
    return subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)


def document(run: subprocess.CompletedProcess[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the document, and the state of each part."""
    told = json.loads(run.stdout)
    return told, {check["part"]: check["state"] for check in told["checks"]}


def test_this_machine(tmp_path: Path) -> None:
    run = doctor(tmp_path, None, "--json")
    told, states = document(run)
    assert (run.returncode, told["exit_code"], run.stderr) == (0, 0, "")
    assert told["schema_version"] == 1
    assert "virtual" in told["backends"]
    assert states["torch"] == states["oomscope"] == "ok"
    assert not (tmp_path / "cache").exists()
    optional = ("card ", "Slurm")
    assert [part for part in dict.fromkeys(ROWS) if part in states] == list(dict.fromkeys(ROWS))
    assert [part for part in states if part not in ROWS and not part.startswith(optional)] == []


def test_a_broken_torch(tmp_path: Path) -> None:
    run = doctor(tmp_path, "import os; os.abort()")
    assert run.returncode == 5
    assert run.stdout.startswith("UNFIT: nothing can be measured here (torch)")
    assert "SIGABRT" in run.stdout
    assert "Traceback" not in run.stdout + run.stderr
