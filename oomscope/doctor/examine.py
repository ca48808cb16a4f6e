"""All checks of a machine: packages, cards, allocator settings, git, directories and the host."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

import oomscope
from oomscope.allocator.settings import AllocatorSettings
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.doctor.check import Check, Diagnosis, State
from oomscope.doctor.torch_checks import VIRTUAL_CARD, TorchImport, torch_checks, virtual_card_check
from oomscope.errors import AllocatorConfError, MachineUnfitError
from oomscope.probe.machine.environment import ALLOCATOR_VARIABLES, VISIBLE_CARDS, allocator_variable
from oomscope.probe.machine.fingerprint import version_of
from oomscope.probe.machine.nvml import Card, list_cards
from oomscope.probe.machine.processes import cores
from oomscope.torch_versions import DEFAULT_RULES
from oomscope.units import GiB, KiB, MiB, format_size

LITTLE_MEMORY = 2 * GiB
"""Bytes below which host memory is little: a probe on a virtual card holds half a GiB, large models more."""
LITTLE_DISK = GiB
"""Free bytes below which a search or a snapshot is likely to find no room."""
SMALL_USE = 64 * MiB
"""Memory that a display holds on a card, which is not reported."""
OLDEST_GIT = (2, 31)
"""The first git that takes settings from GIT_CONFIG_COUNT, by which a search keeps the user's own out."""
EXTRAS = (
    ("matplotlib", "plots", "pictures as PNG (explain --png, sweep --png, gate history --png)"),
    ("submitit", "slurm", "probes as cluster jobs (bisect --executor slurm)"),
)
"""Package, the extra that brings it, and what needs it."""


def examine(environment: Mapping[str, str] = os.environ, folder: Path = Path()) -> Diagnosis:
    """Check this machine, and write nothing on it."""
    with TorchImport() as importing:
        itself = _checked("oomscope", lambda: [package_check()])
        rest = [
            *_checked(VIRTUAL_CARD, lambda: [virtual_card_check()]),
            *_checked("NVIDIA driver", lambda: gpu_checks(environment)),
            *_checked("allocator settings", lambda: allocator_checks(environment, version_of("torch"))),
            *_checked("git", lambda: git_checks(folder)),
            *_checked("cache", lambda: place_checks(environment)),
            *_checked("host", lambda: [host_check()]),
            *_checked("extras", extra_checks),
        ]
        torch = _checked("torch", lambda: torch_checks(importing.outcome()), State.FAILS)
    return Diagnosis((*itself, *torch, *rest))


def _checked(part: str, checks: Callable[[], Iterable[Check]], unknown: State = State.MISSING) -> list[Check]:
    """Return ``checks``; one that raises becomes a row in the state ``unknown``, and hides no other."""
    found: list[Check] = []
    try:
        for check in checks():
            found.append(check)  # noqa: PERF402 - what came before an error counts
    except Exception as error:  # noqa: BLE001
        text = " ".join(f"{type(error).__name__}: {error}".split())
        found.append(Check(part, unknown, f"cannot be checked ({text})", remedy="please report it, with this line"))
    return found


def package_check() -> Check:
    """Return the check of oomscope and of the packages that its metadata requires, but for NVML's."""
    found = f"oomscope {oomscope.__version__}, Python {platform.python_version()}"
    try:
        stated = metadata.requires("oomscope") or []
    except metadata.PackageNotFoundError:  # run from a source tree
        stated = []
    names = {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in stated if "extra ==" not in line}
    absent = sorted(name for name in names - {"nvidia-ml-py"} if version_of(name) is None)
    if not absent:
        return Check("oomscope", State.OK, found)
    missing = f"{found}; not installed: {', '.join(absent)}"
    return Check("oomscope", State.FAILS, missing, "every probe", f"pip install {' '.join(absent)}")


def extra_checks() -> Iterator[Check]:
    """Yield the checks of optional packages."""
    for package, extra, purpose in EXTRAS:
        if (version := version_of(package)) is not None:
            yield Check(package, State.OK, f"{package} {version}")
        else:
            yield Check(package, State.MISSING, "not installed", purpose, f"pip install 'oomscope[{extra}]'")


def gpu_checks(environment: Mapping[str, str], driver: Path = Path("/proc/driver/nvidia/version")) -> Iterator[Check]:
    """Yield the checks of driver, NVML and every card."""
    cards: tuple[Card, ...] = ()
    try:
        cards, failure = list_cards(), ""
    except MachineUnfitError as error:
        failure = error.message
    except ImportError:
        failure = "the module pynvml is not installed"
    except (AttributeError, TypeError):
        failure = "the module pynvml is too old"
    version = f"driver {cards[0].memory.driver_version}" if cards else ""  # WSL has no kernel module of its own
    with contextlib.suppress(OSError, IndexError):
        version = " ".join(driver.read_text(errors="replace").splitlines()[0].partition(":")[2].split())
    if version:
        yield Check("NVIDIA driver", State.OK, version)
    else:
        remedy = "on a machine with a GPU: install the driver, or give the container access to it"
        yield Check("NVIDIA driver", State.MISSING, "no kernel module is loaded", "--backend cuda", remedy)
    yield _nvml(len(cards), failure, has_driver=bool(version))
    for card in cards:
        yield _card(card, environment.get(VISIBLE_CARDS))


def _nvml(cards: int, failure: str, *, has_driver: bool) -> Check:
    package = "pynvml" if is_deprecated_module() else "nvidia-ml-py"
    name = f"{package} {version_of(package) or ''}".strip()
    if package == "pynvml":
        remedy = "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"
    else:
        remedy = "pip install --force-reinstall nvidia-ml-py" if has_driver else "see the NVIDIA driver above"
    if failure:
        return Check("NVML", State.MISSING, f"{name}: {failure}", "--backend cuda", remedy)
    if package == "pynvml":
        return Check("NVML", State.NOTE, f"{name} is deprecated", "it hides nvidia-ml-py", remedy)
    return Check("NVML", State.OK, f"{name}, {'1 card' if cards == 1 else f'{cards} cards'}")


def is_deprecated_module() -> bool:
    """Whether ``import pynvml`` finds the package of that name and not nvidia-ml-py's module, a single file."""
    try:
        found = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError):
        return False
    return found is not None and found.submodule_search_locations is not None


def _card(card: Card, visible: str | None) -> Check:
    part, memory = f"card {card.index}", card.memory
    found = f"{card.name}, {format_size(memory.total_bytes)}, {format_size(memory.used_bytes)} in use"
    values: dict[str, int | str | None] = {
        "name": card.name,
        "uuid": card.uuid,
        "total_bytes": memory.total_bytes,
        "used_bytes": memory.used_bytes,
        "processes": len(card.processes),
        VISIBLE_CARDS: visible,
    }
    if memory.used_bytes <= SMALL_USE:
        return Check(part, State.OK, found, values=values)
    pids = ", ".join(str(pid) for pid in card.processes)
    found = f"{found} by {f'process {pids}' if pids else 'processes not visible from here'}"
    effect = "probes on it have that much less; runs whose outcome depends on it are tagged foreign"
    return Check(part, State.NOTE, found, effect, "end them, or choose another card by CUDA_VISIBLE_DEVICES", values)


def allocator_checks(environment: Mapping[str, str], torch_version: str | None) -> Iterator[Check]:
    """Yield the allocator settings in force, then each variable without effect.

    Args:
        environment: the variables.
        torch_version: the version whose rules apply; None takes the newest that are known.
    """
    part, name = "allocator settings", allocator_variable(environment)
    if name is None:
        yield Check(part, State.OK, "the defaults: no variable is set")
    else:
        conf = environment[name]
        shown = f"{name}={conf}" if conf else f"the defaults: {name} is empty"
        values: dict[str, int | str | None] = {"variable": name, "conf": conf}
        try:
            AllocatorSettings.parse(conf, torch_version=torch_version or DEFAULT_RULES)
        except AllocatorConfError as error:
            disables = "every probe that does not bring settings of its own (allocator.conf)"
            remedy = error.remedy or f"correct or unset {name}"
            yield Check(part, State.FAILS, f"{shown}: {error.message}", disables, remedy, values)
        else:
            yield Check(part, State.OK, shown, values=values)
    for other in ALLOCATOR_VARIABLES:
        if other in environment and other != name:
            reason = f"torch reads {name} alone where both are set"
            yield Check(part, State.NOTE, f"{other} is ignored", reason, f"unset {name} or {other}")
    uncached = "PYTORCH_NO_CUDA_MEMORY_CACHING"
    if environment.get(uncached):
        effect = "on cuda nothing is cached: no setting has an effect, and there is no fragmentation"
        yield Check(part, State.NOTE, f"{uncached} is set", effect, f"unset {uncached}")


def git_checks(folder: Path) -> Iterator[Check]:
    """Yield the checks of git and of its trust in the repository of ``folder``."""
    disables = "bisect over commits, gate run --bisect"
    answer = _git(folder, "--version")
    version = re.search(r"\d+\.\d+(\.\d+)*", answer.stdout) if answer else None
    if answer is None:
        yield Check("git", State.MISSING, "there is no git on PATH", disables, "install git")
    elif version is None:
        found = (answer.stdout or answer.stderr).strip().partition("\n")[0]
        yield Check("git", State.MISSING, f"git does not run: {found}", disables, "repair git")
    elif tuple(int(number) for number in version[0].split(".")[:2]) < OLDEST_GIT:
        remedy = f"install git {OLDEST_GIT[0]}.{OLDEST_GIT[1]} or newer"
        yield Check("git", State.MISSING, f"git {version[0]}", disables, remedy)
    else:
        yield Check("git", State.OK, f"git {version[0]}", values={"version": version[0]})
        where = _git(folder, "rev-parse", "--show-toplevel")
        if where and where.returncode and "dubious ownership" in where.stderr:
            named = re.search(r"dubious ownership in repository at '(.+)'", where.stderr)
            place = named[1] if named else str(folder.absolute())
            yield Check(
                "git",
                State.NOTE,
                "this repository belongs to another user",
                "git refuses it (safe.directory); bisect and gate read it, commands that they run may not",
                f"git config --global --add safe.directory {shlex.quote(place)}",
            )


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str] | None:
    """Return the output of git; None where there is no git, or it does not answer."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    return None


def place_checks(environment: Mapping[str, str]) -> Iterator[Check]:
    """Yield the checks of all directories that oomscope writes to."""
    try:
        state_dirs = StateDirs.default(environment)
    except RuntimeError:  # raised by pathlib, without HOME and an account
        disables = "bisect and gate, unless --state and --ledger are given"
        remedy = "set HOME, or XDG_CACHE_HOME and XDG_STATE_HOME"
        yield Check("cache", State.MISSING, "there is no home directory", disables, remedy)
    else:
        for part, path in (("cache", state_dirs.root), ("state", state_dirs.state or state_dirs.root)):
            disables = "bisect and gate, unless --state and --ledger name others"
            yield _place(part, path, State.MISSING, disables, f"XDG_{part.upper()}_HOME")
    try:
        temporary = Path(tempfile.gettempdir())
    except OSError:
        found = "no writable directory for them"
        yield Check("temporary files", State.FAILS, found, "every probe", "set TMPDIR to a folder with some room")
    else:
        yield _place("temporary files", temporary, State.FAILS, "every probe", "TMPDIR")


def _place(part: str, path: Path, unusable: State, disables: str, variable: str) -> Check:
    base = next((place for place in (path, *path.parents) if place.exists()), path)
    values: dict[str, int | str | None] = {"path": str(path)}
    if not base.is_dir() or not os.access(base, os.W_OK | os.X_OK):
        what = "may not be written to" if base.is_dir() else "is not a directory"
        remedy = f"set {variable} to a directory that may be written to"
        return Check(part, unusable, f"{path}: {base} {what}", disables, remedy, values)
    free = shutil.disk_usage(base).free
    values["free_bytes"] = free
    found = f"{path}: {'' if path.exists() else 'not made yet, '}{format_size(free)} free"
    if free >= LITTLE_DISK:
        return Check(part, State.OK, found, values=values)
    remedy = f"free some, or set {variable} to a directory on another disk"
    return Check(part, State.NOTE, found, "clones, snapshots and results may find no room", remedy, values)


def host_check(
    meminfo: Path = Path("/proc/meminfo"),
    limit: Path = Path("/sys/fs/cgroup/memory.max"),
    used: Path = Path("/sys/fs/cgroup/memory.current"),
) -> Check:
    """Return the check of cores and of memory, within the limits of a container (its control group's files)."""
    count = cores()
    available = []
    with contextlib.suppress(OSError, KeyError, ValueError, IndexError):
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        available.append(int(fields["MemAvailable"].split()[0]) * KiB)
    with contextlib.suppress(OSError, ValueError):  # no such group, or ``max``
        available.append(max(0, int(limit.read_text()) - int(used.read_text())))
    free = min(available, default=None)
    memory = "free memory unknown" if free is None else f"{format_size(free)} of memory free"
    found = f"{'1 core' if count == 1 else f'{count} cores'}, {memory}"
    values: dict[str, int | str | None] = {"cores": count, "free_bytes": free}
    if free is None or free >= LITTLE_MEMORY:
        return Check("host", State.OK, found, values=values)
    effect, remedy = "the kernel may kill probes of large models", "run fewer at once (--jobs 1), or free some"
    return Check("host", State.NOTE, found, effect, remedy, values)
