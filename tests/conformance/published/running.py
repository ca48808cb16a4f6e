"""Runs the processes behind rows on the virtual card, and keeps what they measured: a later call goes on from there.

All of it lies in one folder: clones of the repositories, ``transformers-VERSION`` (``pip install --target``), the trees
that are checked out, and what was measured.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from oomscope.virtual.cards import find_card
from oomscope.virtual.loading import LIBRARIES
from oomscope.virtual.settings import CardSettings

from . import peft_rows
from .liger_rows import LigerCase, LigerScript
from .peft_rows import PeftRuns

TRANSFORMERS = (("2024-10-24", "4.44.2"), ("2025-01", "4.46.3"), ("2025-06", "4.49.0"), ("2026", "4.53.3"))
"""Versions that Liger's scripts run with: up to a date, the newest one before it or nearly so."""
TRANSFORMERS_NOW = "4.57.1"
TORCH = (
    ("2024-09-04", "2.4.0"),
    ("2024-10-17", "2.4.1"),
    ("2025-01-29", "2.5.1"),
    ("2025-04-23", "2.6.0"),
    ("2025-06-04", "2.7.0"),
    ("2025-08-06", "2.7.1"),
    ("2025-10-15", "2.8.0"),
)
"""The newest torch on PyPI up to a date, for rows that do not name theirs (2.5.0 had but twelve days)."""
TORCH_NOW = "2.11.0"
MEGATRON_CORE = "megatron-core-0.16.1"
"""The folder of what Liger's ``megatron_*`` scripts compare with; they leave those rows out where it is missing."""
_HERE = Path(__file__).parent
_CHECKOUT = _HERE.parents[2]

Measured = Mapping[tuple[str, ...], Mapping[str, object]]
"""By key: ``bytes`` or ``error``."""


@dataclass(frozen=True)
class Sources:
    """The folder that everything is read from and written to."""

    folder: Path

    def clone(self, repository: str) -> Path:
        """Return where a repository is cloned."""
        return self.folder / repository.split("/")[1]

    def tree(self, repository: str, parts: Mapping[str, Sequence[str]]) -> Path:
        """Return a folder with paths of commits, checked out once.

        Args:
            repository: ``owner/name``.
            parts: paths by commit; those that a commit lacks are left out.
        """
        tree = self.folder / "trees" / "-".join([self.clone(repository).name, *(commit[:9] for commit in parts)])
        if not tree.exists():
            tree.mkdir(parents=True)
            for commit, paths in parts.items():
                for path in paths:
                    self._check_out(self.clone(repository), commit, path, tree)
        return tree

    def run(
        self,
        name: str,
        program: Sequence[object],
        wanted: Sequence[Sequence[str]],
        *,
        gpu: str,
        packages: Sequence[str],
        torch: str,
    ) -> Measured:
        """Return what a program measured on a card; it is run only where something is wanting.

        Args:
            name: of the file that keeps the results.
            program: the file of this package and its arguments, to which the file of the results is added.
            wanted: keys; those that are wanting go to its standard input, as JSON.
            gpu: the card.
            packages: folders of installed packages, by name.
            torch: version.

        Raises:
            FileNotFoundError: there is no Python with this torch, or no such folder.
        """
        for package in packages:
            if not (self.folder / package).is_dir():
                raise FileNotFoundError(f"{self.folder / package}: make this folder by pip install --no-deps --target")
        python = self.folder / f"torch-{torch}" / "bin" / "python"
        if not python.exists():
            raise FileNotFoundError(f"{python}: make this environment, with torch {torch} and the triton that it names")
        out = self.folder / "measured" / f"{name}.jsonl"
        out.parent.mkdir(exist_ok=True)
        measured = _read(out)
        wanting = [key for key in wanted if tuple(key) not in measured]
        if not wanting:
            return measured
        script, *arguments = program
        with out.with_suffix(".log").open("a") as log:
            subprocess.run(
                [str(python), str(_HERE / str(script)), *map(str, arguments), str(out)],
                input=json.dumps(wanting),
                text=True,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                env=self._environment(gpu, packages),
            )
        return _read(out)

    def _environment(self, gpu: str, packages: Sequence[str]) -> dict[str, str]:
        path = [*(str(self.folder / package) for package in packages), str(_CHECKOUT)]
        return {
            **os.environ,
            **CardSettings(card=find_card(gpu)).variables(),
            "PYTHONPATH": os.pathsep.join(path),
            "HF_HUB_OFFLINE": "1",
            "TRITON_LIBCUDA_PATH": str(LIBRARIES),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # its worker processes would import torch without the card
        }

    @staticmethod
    def _check_out(clone: Path, commit: str, path: str, tree: Path) -> None:
        archive = subprocess.run(["git", "-C", str(clone), "archive", commit, path], capture_output=True, check=False)
        if archive.returncode == 0:
            subprocess.run(["tar", "x", "-C", str(tree)], input=archive.stdout, check=True)


def _read(path: Path) -> Measured:
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return {tuple(line["key"]): line for line in lines}


def run_liger(sources: Sources, script: LigerScript, cases: Sequence[LigerCase]) -> Measured:
    """Return what a script of Liger's measured."""
    timestamp = cases[0].timestamp
    packages = [f"transformers-{_version_at(timestamp, TRANSFORMERS, TRANSFORMERS_NOW)}"]
    packages += [MEGATRON_CORE] if script.kernel.startswith("megatron") else []
    torch = _version_at(timestamp, TORCH, TORCH_NOW)
    paths = ("src", "benchmark", "test/__init__.py", "test/utils.py", "test/chunked_loss")
    tree = sources.tree("linkedin/Liger-Kernel", {script.commit: paths})
    name = f"liger-{script.commit[:9]}-{script.kernel}-{find_card(script.gpu).name}-torch{torch}"
    keys = [case.key for case in cases]
    program = ("liger_process.py", tree, script.kernel)
    return sources.run(name, program, keys, gpu=script.gpu, packages=packages, torch=torch)


def _version_at(timestamp: str, versions: Sequence[tuple[str, str]], now: str) -> str:
    return next((version for until, version in versions if timestamp < until), now)


def run_peft(sources: Sources, runs: PeftRuns, experiments: Sequence[str]) -> Measured:
    """Return what experiments of PEFT's measured, and the reference."""
    comparison = "method_comparison/MetaMathQA"
    parts = ("experiments", "utils.py", "data.py", "default_training_params.json")
    tree = sources.tree(
        peft_rows.REPOSITORY,
        {runs.peft: ["src"], runs.results: [f"{comparison}/{part}" for part in parts]},
    )
    name = f"peft-{runs.results[:9]}-{runs.peft[:9]}-torch{runs.torch}"
    wanted = [(experiment,) for experiment in (peft_rows.REFERENCE, *experiments)]
    program = ("peft_process.py", tree)
    packages = [f"transformers-{runs.transformers}"]
    return sources.run(name, program, wanted, gpu=peft_rows.CARD, packages=packages, torch=runs.torch)
