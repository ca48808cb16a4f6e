"""Runs one benchmark script of Liger-Kernel on the virtual card: a process of its own, as its authors ran it.

    python liger_process.py TREE KERNEL OUT < WANTED

TREE holds Liger's ``src`` and ``benchmark``. The script runs as the main program, all its providers and sizes in its
order, speed before memory: what an earlier case leaves behind (workspaces of cuBLAS) is part of a later one's peak.
Speed is measured by Triton's own ``do_bench``, whose buffer of 256 MB stays cached and serves later requests. Two
functions are replaced: the time between two events is constant, and ``run_benchmarks`` of Liger's utils adds to OUT
instead of Liger's file, a JSON object a line, and goes on after a case that fails.
Initial values are left out, because modules are made on the host and the card holds none of what is copied. Memory is
measured by Liger's own code. Cases of WANTED (JSON) that the script does not have are run after the others: their
author had changed the script's list of sizes.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import oomscope.virtual.loading

oomscope.virtual.loading.load()

import torch  # noqa: E402 - the card is loaded first

ELAPSED_MS = 500.0
"""What each pair of events measures: Triton then repeats what it times a few times only."""
INITIALISERS = ("kaiming_uniform_", "normal_", "trunc_normal_", "uniform_", "xavier_uniform_")
MiB = 1 << 20


class Runner:
    """Stands in for ``run_benchmarks`` and keeps what it takes to run single cases later."""

    def __init__(self, utils: Any, out: TextIO) -> None:
        self._utils = utils
        self._out = out
        self._memory_functions: dict[str, Callable[[Any], Any]] = {}
        self._measured: set[tuple[str, ...]] = set()

    def run_benchmarks(
        self,
        bench_test_fn: Callable[[Any], Any],
        kernel_name: str,
        metric_name: str,
        metric_unit: str,
        x_name: str,
        x_label: str,
        x_values: list[Any],
        kernel_providers: list[str],
        kernel_operation_modes: Any = (None,),
        extra_benchmark_configs: Any = None,
        overwrite: bool = False,
    ) -> None:
        """Run every case in Liger's order."""
        if metric_name == "memory":
            self._memory_functions[kernel_name] = bench_test_fn
        for config in extra_benchmark_configs:
            for mode in kernel_operation_modes:
                for provider in kernel_providers:
                    for x in x_values:
                        self._run(bench_test_fn, kernel_name, metric_name, (provider, mode, x, config))

    def run_missing(self, wanted: list[list[str]]) -> None:
        """Run the cases that the script did not have."""
        for kernel, provider, mode, x, config in wanted:
            if (kernel, provider, mode, x, config) in self._measured:
                continue
            function = self._memory_functions.get(kernel)
            if function is None:
                self._write((kernel, provider, mode, x, config), {"error": "the script ends before it measures memory"})
                continue
            values = {name: _dtype(value) for name, value in json.loads(config).items()}
            self._run(function, kernel, "memory", (provider, mode, _number(x), values), listed=False)

    def _run(
        self, function: Callable[[Any], Any], kernel: str, metric: str, case: tuple[Any, ...], listed: bool = True
    ) -> None:
        provider, mode, x, config = case
        given = self._utils.SingleBenchmarkRunInput(
            x=x, kernel_provider=provider, kernel_operation_mode=mode, extra_benchmark_config=config
        )
        said: dict[str, Any] = {"listed": listed}
        try:
            output = function(given)
            said["bytes"] = round(output.y_50 * MiB)
        except Exception as error:  # noqa: BLE001 - whatever a script raises is this case's result
            said["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
            traceback.print_exc(limit=-6)
        if metric != "memory":
            if "error" in said:
                sys.stderr.write(f"speed of {provider} {mode} {x}: {said['error']}\n")
            return
        key = (kernel, provider, str(mode), str(x), json.dumps(_plain(config), sort_keys=True))
        self._measured.add(key)
        self._write(key, said)

    def _write(self, key: tuple[str, ...], said: dict[str, Any]) -> None:
        self._out.write(json.dumps({"key": key, **said}) + "\n")
        self._out.flush()


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration as Liger's file writes it: dtypes by name."""
    return {name: str(value) if isinstance(value, torch.dtype) else value for name, value in config.items()}


def _dtype(value: Any) -> Any:
    return getattr(torch, value.removeprefix("torch.")) if str(value).startswith("torch.") else value


def _number(x: str) -> Any:
    try:
        return json.loads(x)
    except ValueError:
        return x


def script_of(folder: Path, kernel: str) -> Path:
    """Return the script that measures a kernel: most are called by its name, some by a part of it.

    Raises:
        FileNotFoundError: there is none.
    """
    short = kernel.removeprefix("fused_linear_")
    for name in (kernel, short, short.rpartition("_")[0]):
        path = folder / f"benchmark_{name}.py"
        if path.exists():
            return path
    raise FileNotFoundError(f"no script in {folder} measures {kernel}")


def leave_values_out() -> None:
    """Let torch's initialisers return the tensor as it is."""
    for name in INITIALISERS:
        setattr(torch.nn.init, name, lambda tensor, *args, **kwargs: tensor)


def main(tree: Path, kernel: str, out: Path) -> None:
    """Run the script and what it lacks; the process ends here."""
    wanted = json.load(sys.stdin)
    folder = tree / "benchmark" / "scripts"
    sys.path[:0] = [str(folder), str(tree / "src"), str(tree)]
    leave_values_out()
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "0" if name == "liger-kernel" else version(name)
    torch.cuda.Event.elapsed_time = lambda self, end: ELAPSED_MS  # type: ignore[method-assign]
    utils = importlib.import_module("utils")
    with out.open("a") as file:
        runner = Runner(utils, file)
        vars(utils)["run_benchmarks"] = runner.run_benchmarks
        sys.argv = [str(script_of(folder, kernel))]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except Exception:  # noqa: BLE001 - the cases so far stand
            traceback.print_exc(limit=-8)
        runner.run_missing(wanted)
    sys.stderr.flush()
    os._exit(0)  # autograd's thread may abort an interpreter that ends right after backward()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
