from __future__ import annotations

import io

from rich.console import Console

from oomscope.cli.onlooker import Onlooker
from oomscope.cli.progress import progress_text, shown_progress
from oomscope.probe.job import Progress
from tests.unit.report import searches


def consoles() -> tuple[Console, Console]:
    return tuple(Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None) for _ in range(2))


def test_the_running_probe_is_shown_and_gone_before_its_answer() -> None:
    answers, progress = consoles()
    onlooker = Onlooker(answers, progress)
    onlooker.probing("aaaaaaaaaa start", 1)
    onlooker.progressed(Progress(stage="step", done=1, total=2))
    onlooker.probed(searches.PROBES[0])
    assert "probe 1: aaaaaaaaaa start" in progress.file.getvalue()
    assert answers.file.getvalue().startswith("  1  good")
    assert progress._live_stack == []


def test_without_a_terminal_only_answers_are_printed() -> None:
    answers, _ = consoles()
    progress = Console(file=io.StringIO(), width=200)
    onlooker = Onlooker(answers, progress)
    onlooker.probing("name", 1)
    onlooker.probed(searches.PROBES[0])
    assert progress.file.getvalue() == ""


def test_closing_twice_is_fine() -> None:
    onlooker = Onlooker(*consoles())
    onlooker.probing("name", 1)
    onlooker.close()
    onlooker.close()


def test_progress_in_words() -> None:
    assert progress_text(Progress(stage="import")) == "import"
    assert progress_text(Progress(stage="step", done=1, total=4)) == "step 1 of 4"


def test_a_log_gets_one_line_a_stage(capsys) -> None:
    with shown_progress("x") as announce:
        for done in range(3):
            announce(Progress(stage="step", done=done, total=3))
    assert capsys.readouterr().err == "x: step\n"


def test_control_sequences_in_names_are_shown_and_not_obeyed(capsys) -> None:
    _, progress = consoles()
    onlooker = Onlooker(progress, progress)
    onlooker.probing("aaaaaaaaaa \x1b]0;title\x07", 1)
    onlooker.close()
    assert r"aaaaaaaaaa \x1b]0;title\x07" in progress.file.getvalue()
    with shown_progress("\x1b[31m.yaml") as announce:
        announce(Progress(stage="step"))
    assert capsys.readouterr().err == "\\x1b[31m.yaml: step\n"
