from __future__ import annotations

import csv
import json
import re
import threading
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.probe.job import ProbeJob
from oomscope.probe.result import ProbeResult
from oomscope.probe.tuning import variants
from tests.unit.probe.played import measured

NO_OTHERS = "device.non_torch_bytes=0"


@pytest.fixture(autouse=True)
def _played(monkeypatch):
    monkeypatch.setattr(variants, "launched", lambda job, stop: measured(job))


def test_advice_begins_with_the_cheapest_change_and_can_be_pasted(capsys) -> None:
    assert (
        run(["advise", "--preset", "gpt-tiny", NO_OTHERS, "--limit", "1200MiB", "--quiet", "--enough", "20"])
        == ExitCode.OK
    )
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[1].startswith("It fits with microbatches of 1, twice as many (")
    assert lines[2] == "As it is: out of memory (capacity), 1.25 GiB requested, 80.00 MiB too much"
    assert "  data.micro_batch_size=1 data.num_microbatches=4" in lines
    pasted = next(line for line in lines if line.startswith("  recompute.recompute_granularity=full")).split()
    assert run(["config", "check", "--preset", "gpt-tiny", *pasted]) == ExitCode.OK


def test_advice_as_a_document(capsys) -> None:
    assert (
        run(["advise", "--preset", "gpt-tiny", NO_OTHERS, "--limit", "1200MiB", "--json", "--verbose"]) == ExitCode.OK
    )
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["schema_version"] == 3
    assert [row["variant"]["outcome"] for row in document["fitting"]] == ["fits"] * len(document["fitting"])
    assert document["now"]["outcome"] == "oom"
    assert "expandable segments: out of memory" in err


def test_no_advice_is_an_out_of_memory(capsys) -> None:
    assert run(["advise", "--preset", "gpt-tiny", NO_OTHERS, "--limit", "100MiB", "--quiet"]) == ExitCode.OOM
    assert "Nothing that was tried fits." in capsys.readouterr().out


def test_the_whole_table_is_had_of_what_fits(capsys) -> None:
    assert run(["advise", "--preset", "gpt-tiny", NO_OTHERS, "--limit", "4GiB", "--quiet", "--all"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "It fits as it is." in out
    assert "recompute all layers" in out
    assert "100% of the optimizer's" in out


@pytest.mark.parametrize(
    ("content", "words", "ranks"),
    [
        ("", [], {0, 1}),
        ("probe: {rank: first}", [], {0, 1}),  # as config show writes the default
        ("probe: {rank: last}", [], {1}),
        ("probe: {rank: first}", ["--rank", "first"], {0}),
        ("", ["probe.rank=first"], {0}),
    ],
)
@pytest.mark.parametrize("command", [["advise", "--all"], ["sweep", "data.micro_batch_size=1,2"]])
def test_every_stage_is_probed_unless_a_rank_is_chosen(
    tmp_path: Path, monkeypatch, capsys, command: list[str], content: str, words: list[str], ranks: set[int]
) -> None:
    jobs: list[ProbeJob] = []

    def kept(job: ProbeJob, stop: threading.Event) -> ProbeResult:
        jobs.append(job)
        return measured(job)

    monkeypatch.setattr(variants, "launched", kept)
    path = tmp_path / "cfg.yaml"
    path.write_text(f"preset: gpt-tiny\nparallel: {{pipeline_model_parallel_size: 2}}\n{content}\n")
    assert run([*command, str(path), "--limit", "4GiB", "--fresh", "--quiet", *words]) == ExitCode.OK
    assert {job.rank for job in jobs} == ranks
    out = capsys.readouterr().out
    assert re.search(r"Outcome +Rank", out)
    assert command[0] == "sweep" or f"(rank {min(ranks)})" in out.splitlines()[2]


@pytest.mark.parametrize(
    ("command", "default"),
    [("advise", "one of every pipeline stage"), ("sweep", "one of every pipeline stage"), ("probe", "first")],
)
def test_the_help_names_the_ranks_that_are_probed(command: str, default: str, capsys) -> None:
    assert run([command, "--help"]) == ExitCode.OK
    assert f"Which rank of the world to play (default: {default})." in " ".join(capsys.readouterr().out.split())


def test_a_grid_warns_of_what_does_nothing(capsys) -> None:
    assert run(["sweep", "--preset", "gpt-tiny", "recompute=none,moe", "--quiet"]) == ExitCode.OK
    out = " ".join(capsys.readouterr().out.split())
    assert "Measured, with a warning" in out
    assert "recomputing moe does nothing: no layer of this model has it (rule R27)" in out


def test_a_grid_is_printed_and_written(tmp_path: Path, capsys) -> None:
    words = ["recompute=none,full", "offload=none,layers:2", "--limit", "1500MiB", "--csv", str(tmp_path / "out")]
    assert run(["sweep", "--preset", "gpt-tiny", NO_OTHERS, "--verbose", *words]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert "gpt-tiny · 4 combinations · 2 fits · 1 oom · 1 refused" in out
    assert "does not work with recompute_granularity full" in out
    assert "4 of 4: recompute=full, offload=layers:2: " in err
    rows = list(csv.DictReader((tmp_path / "out" / "combinations.csv").read_text().splitlines()))
    assert [row["outcome"] for row in rows] == ["oom", "fits", "fits", "refused"]
    assert rows[1]["requested_bytes"] == str((256 + 64 * 6 * 2) << 20)


def test_a_page_and_a_picture_are_written(tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    page, picture = tmp_path / "grid.html", tmp_path / "grid.png"
    words = ["sweep", "--preset", "gpt-tiny", "recompute=none,full", "--quiet", "--html", str(page)]
    assert run([*words, "--png", str(picture)]) == ExitCode.OK
    assert capsys.readouterr().err.splitlines() == [f"Wrote {page}", f"Wrote {picture}"]
    assert "<h1>gpt-tiny</h1>" in page.read_text(encoding="utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run(words) == ExitCode.USAGE
    assert "file exists" in capsys.readouterr().err
    assert run([*words, "--force", "--png", str(page)]) == ExitCode.USAGE
    assert "name one file" in capsys.readouterr().err


def test_an_interrupt_leaves_a_page_of_what_is_there(tmp_path: Path, monkeypatch, capsys) -> None:
    def once(job, stop):
        if job.target.config["data"]["micro_batch_size"] > 1:
            raise KeyboardInterrupt
        return measured(job)

    monkeypatch.setattr(variants, "launched", once)
    page = tmp_path / "grid.html"
    words = ["sweep", "--preset", "gpt-tiny", "data.micro_batch_size=1,2,4", "--quiet", "--fresh", "--html", str(page)]
    assert run(words) == ExitCode.INTERRUPTED
    assert "1 fits · 2 interrupted" in capsys.readouterr().out
    assert "It was interrupted" in page.read_text(encoding="utf-8")


def test_results_are_kept_and_can_be_had_afresh(monkeypatch, capsys) -> None:
    words = ["sweep", "--preset", "gpt-tiny", NO_OTHERS, "data.micro_batch_size=1,2", "--json", "--quiet"]
    jobs: list[object] = []

    def counted(job, stop):
        jobs.append(job)
        return measured(job)

    monkeypatch.setattr(variants, "launched", counted)
    documents = []
    for extra in (["--fresh"], [], ["--fresh"]):
        assert run([*words, *extra]) == ExitCode.OK
        documents.append(json.loads(capsys.readouterr().out))
    assert len(jobs) == 4
    assert documents[0] == documents[1] == documents[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep", "--preset", "gpt-tiny"], "nothing to vary"),
        (["sweep", "--preset", "gpt-tiny", "recompute=now"], "no choice 'now'"),
        (
            ["sweep", "--preset", "gpt-tiny", "model.num_layer=2,4"],
            "'model.num_layer' is not a key; did you mean num_layers?",
        ),
        (
            ["sweep", "--preset", "gpt-tiny", "mode.num_layers=2,4"],
            "'mode.num_layers' is not a key; did you mean model?",
        ),
        (["sweep", "--preset", "gpt-tiny", "recompute=full", "--world-size", "2"], "--world-size without --from"),
        (["advise"], "no configuration given"),
        (["advise", "--preset", "gpt-tiny", "recompute.recompute_granularity=full"], "R3"),
    ],
)
def test_mistakes_are_reported_before_anything_is_measured(arguments: list[str], said: str, capsys) -> None:
    assert run(arguments) == ExitCode.USAGE
    assert said in capsys.readouterr().err


def test_a_mistyped_axis_is_answered_with_the_one_that_may_be_meant(capsys) -> None:
    assert run(["sweep", "--preset", "gpt-tiny", "recomput=none,full", "data.micro_batch_size=1,2"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "oomscope: nothing is called 'recomput'; did you mean recompute?\n"


@pytest.mark.parametrize("command", [["advise"], ["sweep", "data.micro_batch_size=1,2"]])
def test_a_card_that_is_not_there_is_refused_before_anything_is_tried(capsys, command: list[str]) -> None:
    words = [*command, "--preset", "gpt-tiny", "--backend", "cuda", "--quiet"]
    assert run(words) == ExitCode.MACHINE_UNFIT
    assert "--backend cuda: there is no GPU; use --backend virtual" in capsys.readouterr().err
