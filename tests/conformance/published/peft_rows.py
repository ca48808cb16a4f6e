"""PEFT's rows: the experiment of its method comparison that printed them, and the reference they are held against.

The absolute number includes the last batch's logits, as long as the batch's longest text. LoRA of rank 32 was trained
on the same batches by the same commit, so the difference to it does not.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .rows import Row

REPOSITORY = "huggingface/peft"
REFERENCE = "lora/llama-3.2-3B-rank32"
"""The experiment."""
CARD = "l40s"


@dataclass(frozen=True)
class PeftRuns:
    """Experiments that are run by one process."""

    results: str
    """The commit that holds results and experiments."""
    peft: str
    """The commit of the library."""
    transformers: str
    """Version."""
    torch: str
    """Version."""


def experiment_of(row: Row) -> str:
    """Return ``method/experiment``."""
    return Path(row.path).stem.replace("--", "/", 1)


def runs_of(rows: Iterable[Row]) -> dict[PeftRuns, list[Row]]:
    """Return the processes behind some rows, each with its rows.

    Raises:
        LookupError: a row does not say what it was run with.
    """
    runs: dict[PeftRuns, list[Row]] = {}
    for row in rows:
        versions = re.fullmatch(r"transformers (\S+); peft \S+ @(\w+)", row.versions)
        if versions is None:
            raise LookupError(f"line {row.line} does not name its versions: {row.versions}")
        runs.setdefault(PeftRuns(row.commit, versions[2], versions[1], row.torch.partition("+")[0]), []).append(row)
    return runs


def reference_bytes(clone: Path, runs: PeftRuns, others: Iterable[PeftRuns]) -> int:
    """Return what PEFT recorded of the reference: its mean over the first steps up to the first evaluation.

    The folder of results may still hold the reference of an older torch. Then the one of the same torch that another
    commit holds is taken, if there is one.
    """
    found = [_reference(clone, commit) for commit in (runs.results, *(other.results for other in others))]
    same = (
        reference
        for reference in found
        if reference["meta_info"]["package_info"]["torch-version"].startswith(runs.torch)
    )
    return round(next(same, found[0])["train_info"]["metrics"][0]["mem allocated avg"])


@cache
def _reference(clone: Path, commit: str) -> dict[str, Any]:
    path = f"method_comparison/MetaMathQA/results/{REFERENCE.replace('/', '--')}.json"
    command = ["git", "-C", str(clone), "show", f"{commit}:{path}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(text)
    return result
