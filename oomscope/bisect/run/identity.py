"""The key under which a result may be used again: all that can change it, installed packages among it.

An editable package keeps its version while its files change, so its code counts by its content.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from oomscope.probe.job import BundledTarget, ProbeJob
from oomscope.probe.machine.environment import MEASURED_VARIABLES, child_environment
from oomscope.probe.machine.fingerprint import fingerprint, hash_of_files
from oomscope.probe.targets.harness import harness_files

KEY_VERSION = 5

_NOT_MEASURED = ("target", "timeout_s", "snapshot_path", "environment")
"""Fields of a job that say how it is run, not what is measured: a result under another time-out is the same result.
Variables count by their hash, and to a bundled target only the measured ones."""
_DRIVER = Path("/proc/driver/nvidia")

_IGNORED_NAMES = """
    TERM TERMINFO TERM_PROGRAM TERM_PROGRAM_VERSION TERM_SESSION_ID COLORTERM COLUMNS LINES NO_COLOR FORCE_COLOR
    CLICOLOR CLICOLOR_FORCE LS_COLORS VTE_VERSION WINDOWID GPG_TTY TMUX TMUX_PANE STY WINDOW
    PWD OLDPWD SHLVL _ PS1 PS2 PROMPT_COMMAND HISTFILE HISTSIZE HISTCONTROL EDITOR VISUAL PAGER LESS LESSOPEN LESSCLOSE
    MAIL DISPLAY WAYLAND_DISPLAY XAUTHORITY DBUS_SESSION_BUS_ADDRESS XDG_RUNTIME_DIR XDG_SEAT XDG_VTNR INVOCATION_ID
    JOURNAL_STREAM HOSTNAME
"""
_IGNORED = frozenset(_IGNORED_NAMES.split())
"""Variables of the terminal, the shell and the login, which say nothing of the work. Language, home, caches and all
others may decide what a harness reads, and count."""
_IGNORED_PREFIXES = ("SSH_", "XDG_SESSION_")


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a harness target is made of; a bundled one is made of its configuration, which the job holds."""

    tree: str = ""
    """Hash of the tree of files under test (submodules included, by their commits)."""
    harness: str = ""
    """Hash of the harness and of the modules beside it that it imports."""
    packages: str = ""
    """Names the packages that are laid over the installed ones; empty for none."""

    @classmethod
    def of(cls, tree: str, harness: Path) -> Content:
        """Return the content of a checkout of ``tree`` under the file ``harness``."""
        names = {file: file.relative_to(harness.parent).as_posix() for file in harness_files(harness)}
        names[harness] = ""  # what it is called does not matter
        digests = {name: hashlib.sha256(file.read_bytes()).hexdigest() for file, name in names.items()}
        return cls(tree=tree, harness=digest_of(digests))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a result depends on besides its job and content."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions, oomscope's own sources and the measured variables (:mod:`oomscope.probe.machine.fingerprint`)."""
    packages: str = ""
    """Hash of all installed distributions (:func:`oomscope.bisect.run.identity.installed_packages`)."""
    gpus: tuple[str, ...] = ()
    """Driver and cards, as the driver describes them; empty where there is no NVIDIA driver."""

    @classmethod
    def here(cls, environment: Mapping[str, str]) -> Machine:
        """Return this machine under ``environment``."""
        return cls(versions=fingerprint(environment), packages=installed_packages(), gpus=driver_and_cards())


def key_of(job: ProbeJob, content: Content, machine: Machine, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the key of ``job`` as JSON values.

    Where the checkout or the harness lie does not matter; what they hold does, and how an entry or a command is
    written. Driver and cards count unless a virtual card was asked for. What lies in a checkout may read any
    variable, so its whole environment counts but for what belongs to the terminal, the shell and the login; to a
    bundled target only the measured variables matter, which ``machine`` has.
    """
    fields = {name: value for name, value in job.to_json().items() if name not in _NOT_MEASURED}
    is_bundled = isinstance(job.target, BundledTarget)
    if isinstance(job.target, BundledTarget):
        target: dict[str, Any] = {"kind": job.target.kind, "config": job.target.config}
        target["environment"] = hash_of_environment(
            {name: value for name, value in job.environment.items() if name in MEASURED_VARIABLES}
        )
    else:
        target = {**job.target.identity(), "tree": content.tree, "harness": content.harness}
        target["environment"] = hash_of_environment(child_environment(job, environment))
        target["variables"] = hash_of_environment(job.environment)
    return {
        "key_version": KEY_VERSION,
        "target": target,
        "job": fields,
        "versions": dict(machine.versions),
        "packages": "" if is_bundled else machine.packages,
        "overlay": content.packages,
        "gpus": [] if job.backend == "virtual" else list(machine.gpus),
    }


def digest_of(key: Mapping[str, Any]) -> str:
    """Return the name of a key: the SHA-256, in hex, of its canonical JSON."""
    return hashlib.sha256(json.dumps(key, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def hash_of_environment(variables: Mapping[str, str | None]) -> str:
    """Return a hash of what counts of ``variables``, whose values may be secret and are not to be kept."""
    return digest_of({name: value for name, value in variables.items() if affects_result(name)})


def affects_result(variable: str) -> bool:
    """Whether a result may depend on ``variable``: not if it belongs to the terminal, the shell or the login."""
    return variable not in _IGNORED and not variable.startswith(_IGNORED_PREFIXES)


def driver_and_cards(root: Path = _DRIVER) -> tuple[str, ...]:
    """Return what the NVIDIA driver's files under ``root`` say of itself and its cards; empty without a driver."""
    version = root / "version"
    if not version.is_file():
        return ()
    cards = sorted(path.read_text(errors="replace") for path in root.glob("gpus/*/information"))
    return (version.read_text(errors="replace"), *cards)


_CODE: Final = frozenset({".py", ".so", ".pyd", ".dylib"})
"""Suffixes of the files that a program imports."""
_LONGEST_S: Final = 60
_OWN: Final = "oomscope"
"""Ignored here: the key of a result holds the hash of its sources anyway."""


@cache
def installed_packages() -> str:
    """Return the SHA-256, in hex, of names and versions of all installed distributions, and of editable code."""
    return hash_of_distributions(importlib.metadata.distributions())


@cache
def packages_of(interpreter: str | None) -> str | None:
    """Return the same of another Python, which runs a program; empty for this one, whose are part of the key.

    Its own user's folder and ``.pth`` files count, ``PYTHONPATH`` does not. None where it cannot be asked, as one in a
    disposable clone (whose path no result has).
    """
    if interpreter is None or interpreter == sys.executable:
        return ""
    if not Path(interpreter).is_absolute():
        return None
    command = [interpreter, "-E", "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LONGEST_S, check=True, cwd=os.sep)
        folders = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return hash_of_distributions(importlib.metadata.distributions(path=folders))


def hash_of_distributions(distributions: Iterable[importlib.metadata.Distribution]) -> str:
    """Return the SHA-256, in hex, of ``distributions``, in any order."""
    rows = set()
    for item in distributions:
        name = (item.name or "").lower()
        root = None if name == _OWN else editable_root(item)
        rows.add(f"{name}=={item.version}" if root is None else f"{name}=={item.version} {_hash_of_code(root)}")
    return hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()


def editable_root(distribution: importlib.metadata.Distribution) -> Path | None:
    """Return the folder that an editable distribution was installed from; None of any other (PEP 610)."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        is_editable = origin.get("dir_info", {}).get("editable", False)
        return Path(url2pathname(urlsplit(origin["url"]).path)) if is_editable else None
    except (ValueError, KeyError, AttributeError):  # written by another tool, or by hand
        return None


def _hash_of_code(root: Path) -> str:
    """Return a hash of the code under ``root``, without hidden folders and virtual environments."""
    paths: list[Path] = []
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name[0] != "." and not Path(folder, name, "pyvenv.cfg").exists()]
        paths += (Path(folder, name) for name in files if Path(name).suffix in _CODE)
    return hash_of_files(root, paths)
