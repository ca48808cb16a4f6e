"""Measure the committed configurations and programs on the virtual card and on the simulated device, side by side.

python benchmarks/side_by_side [--only TEXT] prints a line for each: both peaks (requested bytes), their difference, and
the verdict where it differs.
"""

import json
import subprocess
import sys
from pathlib import Path

import click

HERE = Path(__file__).parent
BACKENDS = ("virtual", "sim")


def _cases() -> list[tuple[str, list[str]]]:
    lines = (HERE / "configurations.txt").read_text().splitlines()
    configurations = [line for line in lines if not line.startswith("#")]
    source = (HERE / "programs.py").read_text().splitlines()
    programs = [line.removeprefix("def ").split("(")[0] for line in source if "(ctx: Context) -> Target:" in line]
    return [(line, ["--preset", *line.split()]) for line in configurations] + [
        (name, ["--entry", f"programs:{name}", "--repo", str(HERE)]) for name in programs
    ]


def _probe(arguments: list[str], backend: str) -> tuple[int | None, str]:
    """The peak's requested bytes (None: no answer) and what was said."""
    command = [sys.executable, "-m", "oomscope", "probe", *arguments, "--gpu", "h100-80gb", "--backend", backend]
    done = subprocess.run([*command, "--json"], check=False, capture_output=True, text=True)
    try:
        found = json.loads(done.stdout)
    except json.JSONDecodeError:
        return None, f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
    peak = found.get("peak")
    return (peak["requested_bytes"] if peak else None), f"exit {done.returncode}"


@click.command(help=__doc__)
@click.option("--only", metavar="TEXT", default="", help="Only those whose line has TEXT.")
def main(only: str) -> None:
    """Print a line for each case."""
    print(f"{'virtual':>15} {'sim':>15} {'difference':>14}  case")
    for name, arguments in _cases():
        if only not in name:
            continue
        (virtual, said), (sim, otherwise) = (_probe(arguments, backend) for backend in BACKENDS)
        apart = "" if virtual is None or sim is None else f"{sim - virtual:+,}"
        print(f"{virtual or said!s:>15} {sim or otherwise!s:>15} {apart:>14}  {name}", flush=True)


if __name__ == "__main__":
    main()
