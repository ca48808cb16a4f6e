"""From a confirmed regression to the search for its commit: what is asked, and why nothing may be."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from oomscope.bisect import commit_bisect
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.result import BisectResult, CommitCulprit, ProbeRecord
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.bisect.search.line import Answer
from oomscope.bisect.vcs.ranges import parse_range
from oomscope.cli.bisect.command import bisect, search_of
from oomscope.cli.main import run
from oomscope.errors import ExitCode, GitError
from oomscope.gate.ledger.ledger import Ledger
from oomscope.gate.night.status import Status
from oomscope.probe.job import CommandTarget, EntryTarget
from oomscope.probe.tuning import variants
from oomscope.units import Bytes, GiB, MiB
from tests.integration.program import commit, git, new_repo
from tests.unit.gate.nights import measured, out_of_memory

SUITE = """\
cases:
  - name: train
    config: ../configs/train.yaml
    overrides: [probe.backend=virtual]
"""
TRAIN = "preset: gpt-tiny\n"
CHECKOUT = "git -C ../oomscope-{short} checkout --detach {hash}"


def answer(request: CommitRequest, **fields: Any) -> BisectResult:
    """Return what a search of two commits answers: by default that both ends are good."""
    said = {"outcome": "no_culprit", "message": "both ends are good"} | fields
    return BisectResult(
        axis="commits",
        good=request.range.good,
        bad=request.range.bad,
        bad_class=str(request.bad),
        candidates=1,
        on_line=1,
        considered=1,
        **said,
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list:
    """The searches that were asked for; each is answered by no culprit."""
    requests: list = []

    def search(request, **_reporter):
        requests.append(request)
        return answer(request)

    monkeypatch.setattr(commit_bisect, "bisect_commits", search)
    return requests


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose suite was green at its first commit."""
    repo = new_repo(tmp_path / "repo")
    commit(repo, "Train", {"ci/memory.yaml": SUITE, "configs/train.yaml": TRAIN})
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB))
    assert run(["gate", "update", str(repo / "ci/memory.yaml"), "--quiet"]) == ExitCode.OK
    commit(repo, "Accept", {})
    return repo


def night(capsys, repo: Path, *words: str) -> tuple[int, dict]:
    """Run the gate, and return its code and what it says of whose commit it was."""
    capsys.readouterr()
    ledger = str(repo.parent / "gate.sqlite")
    code = run(["gate", "run", str(repo / "ci/memory.yaml"), "--quiet", "--json", "--ledger", ledger, *words])
    return code, json.loads(capsys.readouterr().out)["cases"][0]


@pytest.mark.parametrize(
    ("result", "bad"),
    [
        (measured(GiB + MiB), f"requested>{GiB}"),
        (measured(GiB, reserved=GiB + 50 * MiB), f"reserved>{GiB + 20 * MiB}"),
        (out_of_memory(GiB), "any-oom"),
    ],
    ids=["requested", "reserved", "oom"],
)
def test_the_search_is_from_the_last_green_commit(repo: Path, asked: list, capsys, monkeypatch, result, bad) -> None:
    code, case = night(capsys, repo)
    assert (code, case["culprit"]) == (ExitCode.OK, None)
    good = case["standing"]["commit"]
    commit(repo, "Longer", {"configs/train.yaml": f"{TRAIN}# longer\n"})
    head = commit(repo, "Describe", {"README.md": "text"})
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: result)
    code, case = night(capsys, repo, "--bisect")
    assert code == ExitCode.REGRESSION
    (request,) = asked
    assert (request.range.good, request.range.bad, str(request.bad)) == (good, head, bad)
    assert (request.subject.path, request.subject.overrides) == ("configs/train.yaml", ("probe.backend=virtual",))
    assert request.repo.resolve() == (repo / "configs").resolve()
    assert (request.jobs, request.state_dirs) == (1, StateDirs.default())
    assert (case["culprit"]["outcome"], case["culprit"]["message"]) == ("no_culprit", "both ends are good")


def test_without_a_green_night_there_is_nothing_to_search(repo: Path, asked: list, capsys, monkeypatch) -> None:
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB + MiB))
    code, case = night(capsys, repo, "--bisect")
    assert (code, asked) == (ExitCode.REGRESSION, [])
    said, _, command = case["culprit"]["message"].partition("; name a good commit yourself: oomscope bisect GOOD..")
    assert said == "the ledger has no green night of this case at another commit"
    words = r"[0-9a-f]{40} probe.backend=virtual --repo \S+ --config \S+ --bad 'requested>\d+' --jobs 1"
    assert re.fullmatch(words, command)


def test_the_good_end_is_of_this_history_whatever_branches_and_clocks_say(
    repo: Path, asked: list, capsys, monkeypatch
) -> None:
    longer = {"configs/train.yaml": f"{TRAIN}# longer\n"}
    main = git(repo, "symbolic-ref", "--short", "HEAD")
    good = commit(repo, "Describe", {"README.md": "text"})
    night(capsys, repo)
    git(repo, "checkout", "--quiet", "-b", "other", "HEAD~1")
    commit(repo, "Try something", {"NOTES.md": "else"})
    night(capsys, repo)
    git(repo, "checkout", "--quiet", main)
    git(repo, "checkout", "--quiet", "--detach", "HEAD~1")
    night(capsys, repo)
    git(repo, "checkout", "--quiet", main)
    commit(repo, "Longer", longer)
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB + MiB))
    night(capsys, repo, "--bisect")
    assert asked[0].range.good == good
    git(repo, "checkout", "--quiet", "--detach", f"{good}~1")
    commit(repo, "Longer, elsewhere", longer)
    git(repo, "reset", "--quiet", "--soft", f"{good}~2")
    commit(repo, "Longer, before any green night", {})
    _, case = night(capsys, repo, "--bisect")
    assert len(asked) == 1
    assert case["culprit"]["message"].startswith("no green night of this case is at an earlier commit")


def test_the_share_of_the_growth_that_came_with_the_commit_is_reported(repo: Path, capsys, monkeypatch) -> None:
    found = CommitCulprit(
        commit="c" * 40,
        subject="Widen",
        author="Eva",
        date="2026-01-01",
        delta=Bytes(requested_bytes=512, reserved_bytes=0),
        sites=(),
    )
    monkeypatch.setattr(
        commit_bisect, "bisect_commits", lambda request, **_: answer(request, outcome="culprit", culprit=found)
    )
    night(capsys, repo)
    commit(repo, "Longer", {"configs/train.yaml": f"{TRAIN}# longer\n"})
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB + MiB + 512))
    _, case = night(capsys, repo, "--bisect")
    assert (case["culprit"]["brought"], case["culprit"]["beyond"]) == (512, MiB + 512)
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: out_of_memory(GiB, demand=2 * GiB))
    _, case = night(capsys, repo, "--bisect")
    assert (case["culprit"]["brought"], case["culprit"]["beyond"]) == (None, None)


@pytest.mark.parametrize(
    ("case", "changed", "before", "probe"),
    [
        (
            "{name: a, config: ../my train.yaml}",
            "my train.yaml",
            ["git show '{hash}:my train.yaml' > 'my train-{short}.yaml'"],
            "oomscope probe 'my train-{short}.yaml' probe.backend=virtual",
        ),
        (
            "{name: a, harness: harness.py, repo: .., rank: 0, overrides: [probe.backend=virtual]}",
            "train.py",
            ["test -d ../oomscope-{short} || git clone --shared --no-checkout . ../oomscope-{short}", CHECKOUT],
            "oomscope probe --harness ci/harness.py --repo ../oomscope-{short} probe.backend=virtual probe.rank=0",
        ),
        (
            "{name: a, entry: 'train:step', repo: ../../code}",
            "../code/train.py",
            ["test -d ../oomscope-{short} || git clone --shared --no-checkout ../code ../oomscope-{short}", CHECKOUT],
            "oomscope probe --entry train:step --repo ../oomscope-{short} probe.backend=virtual",
        ),
    ],
    ids=["config", "harness", "entry in another repository"],
)
def test_the_commands_are_for_the_root_of_any_checkout(
    tmp_path: Path, capsys, monkeypatch, case: str, changed: str, before: list[str], probe: str
) -> None:
    repo, code = new_repo(tmp_path / "repo"), new_repo(tmp_path / "code")
    commit(code, "Begin", {"train.py": ""})
    suite = f"cases: [{case}]\n"
    commit(repo, "Begin", {"ci/memory.yaml": suite, "ci/harness.py": "", "my train.yaml": TRAIN, "train.py": ""})
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB))
    assert run(["gate", "update", str(repo / "ci/memory.yaml"), "--quiet"]) == ExitCode.OK
    night(capsys, repo)
    (repo / changed).parent.joinpath(Path(changed).name).write_text(f"{TRAIN}# longer\n")
    guilty = commit(code if changed.startswith("..") else repo, "Longer", {})
    culprit = CommitCulprit(commit=guilty, subject="", author="", date="", delta=Bytes(), sites=())
    said = {"outcome": "culprit", "culprit": culprit}
    monkeypatch.setattr(commit_bisect, "bisect_commits", lambda request, **_: answer(request, **said))
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB + MiB))
    _, found = night(capsys, repo, "--bisect")
    names = {"hash": guilty, "short": guilty[:10]}
    expected = [command.format(**names) for command in (*before, f"PYTORCH_ALLOC_CONF=max_split_size_mb:64 {probe}")]
    assert found["culprit"]["commands"] == expected
    git(tmp_path, "clone", "--quiet", str(repo), "elsewhere/repo")
    git(tmp_path, "clone", "--quiet", str(code), "elsewhere/code")
    for command in expected[:-1] * 2:
        subprocess.run(command, shell=True, cwd=tmp_path / "elsewhere/repo", check=True, capture_output=True)


OWN = """\
cases:
  - {name: file, from: megatron, config: ../train.yaml}
  - {name: entry, entry: "tiny.train:build", repo: ..}
  - {name: number, command: "python train.py", metric_regex: 'peak: (\\d+)', repo: ..}
  - {name: file of ours, harness: harness.py, repo: ..}
"""


def test_each_kind_of_case_is_searched_as_it_was_measured(
    repo: Path, asked: list, capsys, monkeypatch, tmp_path: Path
) -> None:
    arguments = "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nseq_length: 64\nmicro_batch_size: 1\n"
    files = {"train.yaml": arguments, "ci/memory.yaml": OWN, "ci/harness.py": "def setup(ctx): ...\n"}
    commit(repo, "Measure more", files)
    assert run(["gate", "update", str(repo / "ci/memory.yaml"), "--quiet"]) == ExitCode.OK
    commit(repo, "Accept more", {})
    night(capsys, repo)
    commit(repo, "Longer", {"train.yaml": f"{arguments}# longer\n"})
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB + MiB))
    assert night(capsys, repo, "--bisect", "--jobs", "2", "--state", str(tmp_path / "state"))[0] == ExitCode.REGRESSION
    assert {(request.jobs, request.state_dirs) for request in asked} == {(2, StateDirs(tmp_path / "state"))}
    file, entry, number, harness = (request.subject for request in asked)
    assert (file.path, file.dialect) == ("train.yaml", "megatron")
    assert entry.target_at("there") == EntryTarget(entry="tiny.train:build", repo="there")
    command = CommandTarget(command="python train.py", metric_regex="peak: (\\d+)", repo="there")
    assert number.target_at("there") == command
    assert harness.target.harness == str((repo / "ci" / "harness.py").absolute())
    for request in asked:
        with bisect.make_context("bisect", list(request.journal.words)) as ctx:
            search = search_of(ctx)
        assert parse_range(search.ends) == request.range
        assert search.options.repo == request.repo == request.repo.resolve()
        assert (search.subject(), search.bad) == (request.subject, request.bad)
        assert (search.jobs, search.state_dirs) == (request.jobs, request.state_dirs)


@pytest.mark.parametrize(
    ("error", "said"),
    [(GitError("git: it is gone"), "git: it is gone"), (KeyError("step"), "internal error: KeyError: 'step'")],
)
def test_a_search_that_fails_hides_no_regression(repo: Path, capsys, monkeypatch, error, said) -> None:
    def broken(_request, **_reporter):
        raise error

    night(capsys, repo)
    commit(repo, "Longer", {"configs/train.yaml": f"{TRAIN}# longer\n"})
    monkeypatch.setattr(commit_bisect, "bisect_commits", broken)
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB + MiB))
    code, case = night(capsys, repo, "--bisect")
    assert code == ExitCode.REGRESSION
    assert case["culprit"]["message"].startswith(said)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_search_loses_nothing_of_the_night(repo: Path, capsys, monkeypatch, tmp_path, stop) -> None:
    result, junit, ledger = tmp_path / "night.json", tmp_path / "night.xml", tmp_path / "gate.sqlite"
    seen: list = []

    def stopped(_request, **_reporter):
        with Ledger(ledger) as book:
            seen.append((json.loads(result.read_text()), junit.read_text(), book.points()[-1].case))
        raise stop

    night(capsys, repo)
    commit(repo, "Longer", {"configs/train.yaml": f"{TRAIN}# longer\n"})
    monkeypatch.setattr(commit_bisect, "bisect_commits", stopped)
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB + MiB))
    words = (*("--ledger", str(ledger)), *("--result", str(result)), *("--junit", str(junit)), "--bisect", "--quiet")
    code = run(["gate", "run", str(repo / "ci/memory.yaml"), *words])
    assert code == (143 if isinstance(stop, SystemExit) else ExitCode.REGRESSION)
    if isinstance(stop, KeyboardInterrupt):
        assert "the search was interrupted" in capsys.readouterr().out
        assert "the search was interrupted" in result.read_text()
        assert "the search was interrupted" in junit.read_text()
    ((document, page, case),) = seen
    assert (document["exit_code"], document["cases"][0]["status"]) == (1, "worse")
    assert "<failure" in page
    assert case.status is Status.WORSE
    with Ledger(ledger) as book:
        points = book.points("train")
    assert [point.case.status for point in points] == [Status.SAME, Status.WORSE]
    assert (points[-1].case.culprit is None) == isinstance(stop, SystemExit)


def test_changes_in_no_commit_are_reported_and_are_no_green_end(repo: Path, asked: list, capsys, monkeypatch) -> None:
    (repo / "configs/train.yaml").write_text(f"{TRAIN}# not committed\n")
    _, case = night(capsys, repo)
    assert case["standing"]["dirty"]
    commit(repo, "Longer", {"configs/train.yaml": f"{TRAIN}# longer\n"})
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB + MiB))
    _, case = night(capsys, repo, "--bisect")
    assert asked == []
    assert "no green night" in case["culprit"]["message"]


BAD, GOOD, UNTESTABLE = Answer.BAD, Answer.GOOD, Answer.UNTESTABLE


@pytest.mark.parametrize(
    ("outcome", "ends", "said"),
    [
        ("ends_invalid", (BAD, BAD), "the last green commit GREEN is worse now as well (1.00 MiB above): the program"),
        ("ends_invalid", (BAD, GOOD), "now the last green commit GREEN is worse (1.00 MiB above), and this one is not"),
        ("no_culprit", (GOOD, GOOD), "measured by the search, this commit is not worse (1.00 MiB above): the program"),
        ("ends_invalid", (UNTESTABLE, BAD), None),
    ],
)
def test_a_night_that_no_commit_explains_says_so(
    repo: Path, capsys, monkeypatch, outcome: str, ends: tuple[Answer, Answer], said: str | None
) -> None:
    _, case = night(capsys, repo)
    green = case["standing"]["commit"][:10]
    commit(repo, "Longer", {"configs/train.yaml": f"{TRAIN}# longer\n"})
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB + MiB))
    probes = tuple(
        ProbeRecord(number=number, role=role, answer=end, reason="1.00 MiB above")
        for number, (role, end) in enumerate(zip(("good end", "bad end"), ends, strict=True), start=1)
    )
    found = {"outcome": outcome, "message": "as the search says", "probes": probes}
    monkeypatch.setattr(commit_bisect, "bisect_commits", lambda request, **_: answer(request, **found))
    code, case = night(capsys, repo, "--bisect")
    assert (code, case["status"]) == (ExitCode.REGRESSION, "worse"), "it was worse twice"
    message = case["culprit"]["message"]
    if said is None:
        assert message == "as the search says"
        return
    assert message.startswith(f"no commit explains it: {said.replace('GREEN', green)}")
    assert message.endswith("or something outside the repository changed since (packages, data, the card)")
