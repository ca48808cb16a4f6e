"""Reports on terminals of all widths: nothing that matters is cut off, and no number is broken."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from oomscope.gate.night.status import Status
from oomscope.probe.tuning.advise import Advice, Proposal
from oomscope.probe.tuning.variants import Variant
from oomscope.report.text.advise import advice_report
from oomscope.report.text.bisect import bisect_report, probe_line
from oomscope.report.text.console import Harmless
from oomscope.report.text.diff import diff_report
from oomscope.report.text.gate import gate_report
from oomscope.report.text.layout import table
from oomscope.report.text.probe import probe_report
from oomscope.units import GiB
from tests.unit.gate.nights import case_result, night
from tests.unit.report import differences, results, searches

REPORTS = {
    "fits": probe_report(results.FITS, title="cfg.yaml"),
    "oom": probe_report(results.OOM, title="cfg.yaml"),
    "commits": bisect_report(searches.COMMITS),
    "keys": bisect_report(searches.KEYS),
    "diff": diff_report(differences.GREW, by=None, shown=12),
    "night": gate_report(night(1, case_result(1, Status.WORSE, name="llama3-70b-tp8-pp4"), case_result(2))),
}
SIZE = re.compile(r"[\d.,]+ [KMGT]iB")


def printed(report: RenderableType, width: int) -> list[str]:
    plain: dict[str, Any] = {"color_system": None, "highlight": False, "emoji": False, "markup": False}
    console = Console(file=io.StringIO(), width=width, force_terminal=True, **plain)
    console.print(Harmless(report), crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def sizes(lines: list[str]) -> set[str]:
    """Return the sizes, also those that a sentence breaks between number and unit."""
    return set(SIZE.findall(" ".join(" ".join(lines).split())))


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("name", REPORTS)
def test_a_narrow_terminal_is_told_the_same_sizes(name: str, width: int) -> None:
    lines = printed(REPORTS[name], width)
    assert sizes(printed(REPORTS[name], 200)) - sizes(lines) == set()
    assert max(map(len, lines)) <= width


def test_overrides_to_paste_are_broken_as_a_shell_joins_them() -> None:
    overrides = ("recompute.recompute_granularity=selective", "recompute.recompute_modules=[core_attn]", "a.b=1")
    fits = Variant(overrides=overrides, outcome="fits")
    proposal = Proposal(names=("core_attn",), families=(), variant=fits, slowdown=0.1, saved_bytes=GiB)
    lines = printed(advice_report(Advice(now=Variant(overrides=(), outcome="oom"), fitting=(proposal,))), 60)
    start = lines.index("To paste") + 1
    assert lines[start : start + 2] == [
        "  recompute.recompute_granularity=selective \\",
        "    'recompute.recompute_modules=[core_attn]' a.b=1",
    ]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
def test_no_number_is_broken_however_narrow_the_terminal_is(width: int) -> None:
    rows = table("Case", ">Expected", ">Measured", ">Difference")
    rows.add_row("llama3-70b-tp8", "62.17 GiB", "64.00 GiB", "+1.83 GiB")
    rows.add_row("tiny", "512.00 MiB", "512.00 MiB", "")
    lines = printed(rows, width)
    for number in ("62.17 GiB", "64.00 GiB", "+1.83 GiB", "512.00 MiB"):
        assert any(number in line for line in lines)
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("width", [60, 80])
def test_a_probe_keeps_its_cells_whole_on_a_narrow_terminal(width: int) -> None:
    probe = next(record for record in searches.PROBES if record.bytes)
    lines = printed(probe_line(replace(probe, reason="fits, and the reason says more than a line holds " * 2)), width)
    assert all(len(line) <= width for line in lines)
    assert sum("requested " in line and "reserved " in line for line in lines) == 1
    margin = len(lines[0]) - len(lines[0].lstrip()) + lines[0].lstrip().index(probe.commit[:10])
    assert all(line.startswith(" " * margin) for line in lines[1:])
    assert len(printed(probe_line(probe), 200)) == 1
