"""Every row of the key changes it, and nothing else does."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

from oomscope.bisect.run.identity import Content, Machine, digest_of, driver_and_cards, hash_of_distributions, key_of
from oomscope.config.load import load_preset
from oomscope.probe.job import HarnessTarget, ProbeJob, bundled_job
from oomscope.probe.machine.environment import MEASURED_VARIABLES

HARNESS = ProbeJob(target=HarnessTarget(harness="/h.py", repo="/clone"))
BUNDLED = bundled_job(load_preset("gpt-tiny").config)
CONTENT = Content(tree="1" * 40, harness="2" * 64)
MACHINE = Machine(
    versions={"python": "3.11.2", "torch": "2.13.0", "oomscope": "0.1.0", "sources": "3" * 64},
    packages="4" * 64,
    gpus=("driver 570", "H100"),
)


def digest(
    job: ProbeJob = HARNESS,
    content: Content = CONTENT,
    machine: Machine = MACHINE,
    environment: dict[str, str] | None = None,
) -> str:
    return digest_of(key_of(job, content, machine, environment or {}))


JOB_ROWS: dict[str, Any] = {
    "backend": "cuda",
    "rank": 1,
    "world_size": 8,
    "in_world": True,
    "iterations": 3,
    "seed": 1,
    "gpu": "a100-40gb",
    "devices": 2,
    "limit_bytes": 80 * 1024**3,
    "non_torch_bytes": 0,
    "other_process_bytes": 1,
    "allocator_conf": "expandable_segments:True",
    "cublas_workspace_config": ":4096:8",
    "stream_lag": 1,
    "address_policy": "scattered",
    "compute_values": True,
    "measure_demand": False,
    "confirm": True,
    "max_entries": 5,
    "max_frames": 5,
}
HOW_IT_IS_RUN = {"target", "timeout_s", "snapshot_path", "environment"}


@pytest.mark.parametrize("row", JOB_ROWS)
@pytest.mark.parametrize("job", [HARNESS, BUNDLED], ids=["harness", "bundled"])
def test_a_change_of_the_job_is_another_key(job: ProbeJob, row: str) -> None:
    assert digest(replace(job, **{row: JOB_ROWS[row]})) != digest(job)


def test_no_field_of_the_job_is_forgotten() -> None:
    assert {field.name for field in fields(ProbeJob)} == set(JOB_ROWS) | HOW_IT_IS_RUN


def test_how_a_job_is_run_does_not_matter() -> None:
    moved = HarnessTarget(harness="/elsewhere/h.py", repo="/other clone")
    assert digest(replace(HARNESS, timeout_s=1.0, snapshot_path="/x", target=moved)) == digest()


def test_variables_that_a_job_sets_count_where_the_target_can_see_them() -> None:
    other = {"BATCH": "8"}
    assert digest(replace(HARNESS, environment=other)) != digest()
    assert digest(replace(BUNDLED, environment=other)) == digest(BUNDLED)
    for value in ("expandable_segments:True", None):
        measured: dict[str, str | None] = {"PYTORCH_ALLOC_CONF": value}
        assert digest(replace(BUNDLED, environment=measured)) != digest(BUNDLED)
    assert "secret" not in json.dumps(
        key_of(replace(HARNESS, environment={"TOKEN": "secret"}), CONTENT, MACHINE, {"HOME": "/root"})
    )


@pytest.mark.parametrize("row", [{"tree": "5" * 40}, {"harness": "6" * 64}, {"packages": "7" * 32}])
def test_a_change_of_tree_harness_or_packages_laid_over_is_another_key(row: dict[str, str]) -> None:
    assert digest(content=replace(CONTENT, **row)) != digest()


@pytest.mark.parametrize("row", ["python", "torch", "oomscope", "sources"])
def test_a_change_of_a_version_or_of_the_sources_is_another_key(row: str) -> None:
    versions = {**MACHINE.versions, row: "changed"}
    assert digest(machine=replace(MACHINE, versions=versions)) != digest()


def test_packages_matter_to_a_harness_only() -> None:
    other = replace(MACHINE, packages="changed")
    assert digest(machine=other) != digest()
    assert digest(BUNDLED, machine=other) == digest(BUNDLED)


@pytest.mark.parametrize("backend", ["auto", "cuda"])
def test_driver_and_cards_matter_where_they_can_be_used(backend: str) -> None:
    other = replace(MACHINE, gpus=("driver 575", "H100"))
    job = replace(HARNESS, backend=backend)  # type: ignore[arg-type]
    assert digest(job, machine=other) != digest(job)
    on_sim = replace(HARNESS, backend="virtual")
    assert digest(on_sim, machine=other) == digest(on_sim)


@pytest.mark.parametrize("name", MEASURED_VARIABLES)
def test_a_measured_variable_is_another_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without, given = {"HOME": "/root"}, {"HOME": "/root", name: "changed"}
    here = {key: Machine.here(key_environment) for key, key_environment in (("without", without), ("given", given))}
    for job in (HARNESS, BUNDLED):
        assert digest(job, machine=here["without"], environment=without) != digest(
            job, machine=here["given"], environment=given
        )


@pytest.mark.parametrize("name", ["TERM", "COLUMNS", "PWD", "OLDPWD", "SHLVL", "_", "SSH_TTY", "XDG_SESSION_ID"])
def test_terminal_shell_and_login_do_not_matter(name: str) -> None:
    assert digest(environment={"PATH": "/bin", name: "a"}) == digest(environment={"PATH": "/bin"})


def test_the_driver_is_read_where_there_is_one(tmp_path: Path) -> None:
    assert driver_and_cards(tmp_path) == ()
    (tmp_path / "version").write_text("NVRM version: 570.1")
    for bus in ("0000:01", "0000:02"):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        (tmp_path / "gpus" / bus / "information").write_text(f"Model: H100 at {bus}")
    assert driver_and_cards(tmp_path) == ("NVRM version: 570.1", "Model: H100 at 0000:01", "Model: H100 at 0000:02")


def test_content_counts_what_the_harness_imports_beside_it(tmp_path: Path) -> None:
    harness, helper, other = (tmp_path / name for name in ("h.py", "helper.py", "other.py"))
    harness.write_text("import helper")
    helper.write_text("a")
    first = Content.of("tree", harness)
    other.write_text("b")
    assert Content.of("tree", harness) == first
    helper.write_text("c")
    assert Content.of("tree", harness) != first
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in (harness, helper):
        (moved / file.name).write_bytes(file.read_bytes())
    assert Content.of("tree", moved / "h.py") == Content.of("tree", harness)


class Installed(Distribution):
    def __init__(self, name: str, version: str = "1", origin: object = None) -> None:
        self.files_of = {"METADATA": f"Name: {name}\nVersion: {version}\n"}
        if origin is not None:
            self.files_of["direct_url.json"] = origin if isinstance(origin, str) else json.dumps(origin)

    def read_text(self, filename: str) -> str | None:
        return self.files_of.get(filename)

    def locate_file(self, path):
        raise NotImplementedError


def editable(root: Path, name: str = "acme") -> Installed:
    return Installed(name, origin={"url": root.as_uri(), "dir_info": {"editable": True}})


def test_versions_count_and_order_does_not() -> None:
    a, b = Installed("a"), Installed("B")
    assert hash_of_distributions([a, b]) == hash_of_distributions([b, a]) == hash_of_distributions([a, b, a])
    assert hash_of_distributions([a, Installed("b", "2")]) != hash_of_distributions([a, b])


def test_the_code_of_an_editable_package_counts(tmp_path: Path) -> None:
    root = tmp_path / "with space"
    for folder in ("acme", ".git", "env", "data"):
        (root / folder).mkdir(parents=True)
    (root / "env" / "pyvenv.cfg").touch()
    code = root / "acme" / "model.py"
    code.write_text("batch = 1")
    before = hash_of_distributions([editable(root)])
    for other in (root / ".git" / "a.py", root / "env" / "a.py", root / "data" / "report.html"):
        other.write_text("changes nothing that can be imported")
    (root / "dangling.py").symlink_to("nowhere")
    assert hash_of_distributions([editable(root)]) == before
    code.write_text("batch = 2")
    assert hash_of_distributions([editable(root)]) != before
    assert hash_of_distributions([editable(root, "oomscope")]) == hash_of_distributions([Installed("oomscope")])
