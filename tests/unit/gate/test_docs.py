"""The page of the gate says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from oomscope.errors import GRAVITY as CODES
from oomscope.errors import ExitCode
from oomscope.gate.night.status import GRAVITY, ruling
from oomscope.gate.suite.metrics import METRICS
from oomscope.gate.suite.suite import load_suite
from oomscope.units import format_size

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "gate.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under ``heading``."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [re.split(r"\s*\|\s*", line)[1:-1] for line in lines[2:]]


def test_every_metric_is_listed_with_its_band() -> None:
    listed = {name.strip("`"): rest for name, *rest in rows("Metrics and bands")}
    assert list(listed) == list(METRICS)
    for name, metric in METRICS.items():
        meaning, default, band = listed[name]
        assert meaning == metric.meaning
        assert (default == "yes") == metric.by_default
        width = metric.bands.fail.absolute
        assert band == (format_size(width, digits=0) if width else "0")


def test_every_verdict_is_listed_with_its_code() -> None:
    listed = {verdict: code for verdict, _, code in rows("Verdicts")}
    assert set(listed) == {str(status) for status in GRAVITY}
    for status in GRAVITY:
        assert listed[str(status)].split(";")[0] == str(int(ruling([status]).exit_code))
    strict = ruling([status for status in GRAVITY if str(status) == "better"], strict=True).exit_code
    assert listed["better"].startswith(f"0; {int(strict)} with `--strict`")


def test_the_examples_are_suites(tmp_path: Path) -> None:
    path, names = tmp_path / "memory.yaml", []
    for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        path.write_text(text)
        names.append([case.name for case in load_suite(path).cases])
    assert names == [["our program", "our trainer", "llama3-8b", "long context"]]


def test_no_recipe_lets_a_code_pass_that_may_hide_a_regression() -> None:
    pages = [PAGE, *(page.read_text(encoding="utf-8") for page in (DOCS / "ci").glob("*.md"))]
    allowed = [
        code for page in pages for said in re.findall(r"exit_codes: \[(.*?)\]", page) for code in said.split(",")
    ]
    assert allowed
    for code in allowed:
        assert CODES.index(ExitCode(int(code))) > CODES.index(ExitCode.REGRESSION)
