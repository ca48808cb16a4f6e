from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from oomscope.report import sentences
from oomscope.report.text.console import result_console, show
from oomscope.report.text.layout import bar
from oomscope.report.text.probe import probe_report
from tests.unit.report import results


def rendered(result) -> str:
    file = io.StringIO()
    show(result_console(file), probe_report(result, title="gpt-tiny"))
    return file.getvalue()


def test_what_fits() -> None:
    text = " ".join(rendered(results.FITS).split())
    for piece in (
        "gpt-tiny · rank 0 of 1",
        "FITS, 2.00 GiB to spare",
        "activation",
        "83.3 %",
        "backward of iteration 1",
        "14.3 %",
        "recomputed",
        "model.py:88 forward in layers.3.mlp",
        "default settings",
        "█",
    ):
        assert piece in text


def test_an_oom_shows_verdict_gaps_and_every_fix_tried() -> None:
    text = rendered(results.OOM)
    assert "Verdict: fragmentation. The request of 1.50 GiB fits by size" in text
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True" in text
    assert "free remainders of segments that live blocks pin" in text
    assert "fails at event 99" in text
    assert "passes" in text


def test_settings_that_were_run_are_told_from_replays() -> None:
    text = rendered(results.CONFIRMED)
    assert re.search(r"expandable_segments:True +run +ran to the end +7\.00 GiB", text)
    assert re.search(r"max_split_size_mb:64 +run +failed in .* 9\.00 GiB", text)
    assert re.search(r"max_split_size_mb:256 +replay +passes", text)
    assert "not run, beyond the limits of number and time: roundup_power2_divisions:16" in text
    assert " By " not in rendered(results.OOM)


def test_nothing_measured_is_two_lines_and_what_is_missing_a_third() -> None:
    assert rendered(results.BROKEN).splitlines() == [
        "gpt-tiny · rank 0 of 1 · virtual",
        "NOT MEASURED (import): No module named 'tinytrain.data'",
        "What to do: name the checkout that holds it with --repo, or install the package where oomscope is",
    ]
    crashed = replace(results.BROKEN, failure=replace(results.BROKEN.failure, kind="crash", message="signal 11"))
    assert rendered(crashed).splitlines()[1:] == ["NOT MEASURED (crash): signal 11"]


def test_the_rows_of_sites_beyond_the_table_stay_in_the_sum() -> None:
    site = results.SITES[0].site
    many = tuple(replace(results.SITES[0], bytes=1024, count=1, site=replace(site, line=n)) for n in range(20))
    text = rendered(replace(results.FITS, peak=replace(results.PEAK, sites=many)))
    assert "12.00 KiB" in text
    assert "12 further lines" in text


def test_a_pipe_gets_plain_text() -> None:
    text = rendered(results.OOM)
    assert "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    console = Console(file=io.StringIO(), width=columns, force_terminal=True, color_system=None)
    show(console, probe_report(results.OOM, title="gpt-tiny"))
    assert max(len(line) for line in console.file.getvalue().splitlines()) <= columns


@pytest.mark.parametrize("columns", ["40", "400"])
def test_in_a_log_the_answer_is_one_line(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert sentences.status_text(results.OOM) in rendered(results.OOM).splitlines()


def test_markup_in_names_is_text() -> None:
    site = replace(results.LOSS, function="[bold]f[/bold]")
    text = rendered(replace(results.FITS, peak=replace(results.PEAK, site=site)))
    assert "[bold]f[/bold]" in text


def words_at(columns: int) -> set[str]:
    """Return the words of an out-of-memory report, and the pieces of those that hold a slash, a colon or the like."""
    console = Console(file=io.StringIO(), width=columns, force_terminal=True, color_system=None)
    show(console, probe_report(results.OOM, title="gpt-tiny"))
    return set(re.findall(r"[A-Za-z0-9]+", console.file.getvalue()))


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_word_is_broken_in_the_middle(columns: int) -> None:
    assert words_at(columns) == words_at(400)


def test_bar() -> None:
    assert bar(1, 2, width=10) == "█████"
    assert bar(0, 2) == bar(1, 0) == ""
