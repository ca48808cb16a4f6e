from __future__ import annotations

from dataclasses import fields

from oomscope.config.load import load_preset
from oomscope.probe.job import HarnessTarget, ProbeJob, bundled_job, checkout_job

CHANGED = {
    "probe.backend=virtual": ("backend", "virtual"),
    "probe.iterations=7": ("iterations", 7),
    "probe.seed=8": ("seed", 8),
    "probe.timeout_s=9": ("timeout_s", 9.0),
    "probe.max_entries=10": ("max_entries", 10),
    "probe.max_frames=11": ("max_frames", 11),
    "device.gpu=a100-80gb": ("gpu", "a100-80gb"),
    "device.limit=12GiB": ("limit_bytes", 12 * 1024**3),
    "device.non_torch_bytes=13MiB": ("non_torch_bytes", 13 * 1024**2),
    "device.other_process_bytes=14MiB": ("other_process_bytes", 14 * 1024**2),
    "device.cublas_workspace_config=:16:8": ("cublas_workspace_config", ":16:8"),
    "device.stream_lag=15": ("stream_lag", 15),
    "device.address_policy=descending": ("address_policy", "descending"),
    "allocator.conf=expandable_segments:True": ("allocator_conf", "expandable_segments:True"),
}
CHOSEN_BY_THE_CALLER = {
    "target",
    "rank",
    "world_size",
    "snapshot_path",
    "snapshot_force",
    "measure_demand",
    "confirm",
    "environment",
}


def test_every_setting_reaches_the_job() -> None:
    config = load_preset("gpt-tiny", list(CHANGED)).config
    job = bundled_job(config, rank=0)
    assert {name: getattr(job, name) for name, _ in CHANGED.values()} == dict(CHANGED.values())
    assert job.target.config == config.model_dump(mode="json")


def test_every_field_of_a_job_is_a_setting_or_the_callers_choice() -> None:
    assert {field.name for field in fields(ProbeJob)} == {name for name, _ in CHANGED.values()} | CHOSEN_BY_THE_CALLER


def test_a_harness_has_its_own_world() -> None:
    of_the_model = "parallel.data_parallel_size=8"
    config = load_preset("gpt-tiny", [*CHANGED, "probe.world_size=8", of_the_model], enforce=False).config
    target = HarnessTarget(harness="/h.py", repo="/repo")
    assert checkout_job(target, load_preset("gpt-tiny", [of_the_model]).config).world_size == 1
    job = checkout_job(target, config, rank=3)
    assert (job.target, job.rank, job.world_size, job.iterations) == (target, 3, 8, 7)
