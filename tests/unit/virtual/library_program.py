"""Runs the rows of ``operations`` on the virtual card, each in a fork of its own; prints a line of JSON for each.

Names of rows as arguments: these alone.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings

from tests.unit.virtual.operations import OPERATIONS


def main(names: list[str]) -> None:
    from oomscope.virtual import load

    load()
    import torch  # noqa: F401 - imported once, before the forks

    warnings.simplefilter("ignore")
    gc.freeze()  # which no fork is to look through, and copy
    for name in names or OPERATIONS:
        child = os.fork()
        if not child:
            sys.stdout.write(json.dumps(run(name)) + "\n")
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.stdout.write(json.dumps({"name": name, "error": f"ended with status {status}"}) + "\n")
        sys.stdout.flush()


def run(name: str) -> dict[str, object]:
    """Run a row in this process; return what came out of it."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from oomscope.virtual import state

    def random(*sizes, **options):
        return torch.randn(*sizes, device="cuda", **options)

    def csr(rows=3, columns=4):
        ends = torch.arange(rows + 1)
        return torch.sparse_csr_tensor(ends, torch.arange(rows) % columns, torch.ones(rows), (rows, columns)).cuda()

    def coo():
        return torch.sparse_coo_tensor(torch.tensor([[0, 1, 2], [0, 1, 3]]), torch.ones(3), (3, 4)).cuda()

    tools = (torch, F, SDPBackend, sdpa_kernel, random, csr, coo)
    scope = dict(zip(("torch", "F", "SDPBackend", "sdpa_kernel", "random", "csr", "coo"), tools, strict=True))
    said: dict[str, object] = {"name": name}
    try:
        exec(OPERATIONS[name].code, scope)
        torch.cuda.synchronize()
        said["shape"] = list(scope["y"].shape)
    except Exception as error:  # noqa: BLE001 - the test tells of it
        said["error"] = f"{type(error).__name__}: {error}"
    counted = state()
    return said | {
        "peak_bytes": torch.cuda.max_memory_reserved(),
        "unsupported": counted.unsupported,
        "unknown_reads": counted.unknown_reads,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
