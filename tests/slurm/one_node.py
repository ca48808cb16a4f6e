"""A Slurm of one node, from Debian's packages, for as long as a test run lasts: its daemons live in a directory.

Neither systemd nor control groups are needed. The daemons want root, as in a container.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
_SYSTEM_PATHS = ("/usr/sbin", "/sbin")
_START_S = 60


def missing() -> str:
    """Return why there can be no Slurm here; empty where there can."""
    absent = [name for name in PROGRAMS if _found(name) is None]
    if absent:
        return f"no {', '.join(absent)} here (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "the daemons of Slurm want root"


@contextlib.contextmanager
def one_node(directory: Path, cpus: int) -> Iterator[Path]:
    """Run a Slurm with a node of ``cpus`` cores within the block and yield its slurm.conf.

    Args:
        directory: for everything that the daemons write.
        cpus: jobs that run side by side; more than there are cores are only slower.
    """
    conf = _configure(directory, cpus)
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    with contextlib.ExitStack() as daemons:
        for command in (
            _munged(directory),
            [_path("slurmctld"), "-D", "-i", "-f", str(conf)],
            [_path("slurmd"), "-D", "-f", str(conf), "-N", socket.gethostname()],
        ):
            daemons.enter_context(_running(command, directory, environment))
            if command[0].endswith("munged"):
                _wait("munged", lambda: (directory / "munge.socket").exists())
        _wait("the node", lambda: "idle" in _said(["sinfo", "-h", "-o", "%t"], environment))
        try:
            yield conf
        finally:
            _said(["scancel", "--user=root"], environment)


def _configure(directory: Path, cpus: int) -> Path:
    for name in ("state", "spool"):
        (directory / name).mkdir(parents=True)
    host = socket.gethostname()
    settings = {
        "ClusterName": "one",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmUser": "root",
        "SlurmctldPort": _free_port(),
        "SlurmdPort": _free_port(),
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={directory / 'munge.socket'}",
        "CredType": "cred/munge",
        "StateSaveLocation": directory / "state",
        "SlurmdSpoolDir": directory / "spool",
        "SlurmctldPidFile": directory / "slurmctld.pid",
        "SlurmdPidFile": directory / "slurmd.pid",
        "SlurmctldLogFile": directory / "slurmctld.log",
        "SlurmdLogFile": directory / "slurmd.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SlurmdParameters": "config_overrides",
        "ReturnToService": 2,
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,defer_batch=0",
        "KillWait": 5,
        "InactiveLimit": 0,
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines.append(f"NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1024 State=UNKNOWN")
    lines.append(f"PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP")
    conf = directory / "slurm.conf"
    conf.write_text("\n".join(lines) + "\n")
    return conf


def _munged(directory: Path) -> list[str]:
    key = directory / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    return [
        _path("munged"),
        "--foreground",
        "--force",
        f"--key-file={key}",
        f"--socket={directory / 'munge.socket'}",
        f"--pid-file={directory / 'munged.pid'}",
        f"--seed-file={directory / 'munge.seed'}",
        f"--log-file={directory / 'munged.log'}",
    ]


@contextlib.contextmanager
def _running(command: list[str], directory: Path, environment: dict[str, str]) -> Iterator[None]:
    with (directory / "said.log").open("ab") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment, start_new_session=True
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(what: str, is_up) -> None:
    until = time.monotonic() + _START_S
    while not is_up():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not come up in {_START_S} s")
        time.sleep(0.2)


def _said(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout


def _found(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM_PATHS]))


def _path(name: str) -> str:
    found = _found(name)
    assert found is not None, name
    return found


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
