"""Damaged files and odd words: whatever a command is given, it answers in one line with a code that is no defect.

A number names the same damage always; ``OOMSCOPE_FUZZ=20`` tries twenty times as many as a usual run of the tests.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from oomscope.bisect.run.runner import LocalRunner
from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.probe.tuning import variants
from tests.unit.cli.test_bisect_journal import Searches
from tests.unit.gate.nights import measured

TIMES: Final = int(os.environ.get("OOMSCOPE_FUZZ", "1"))
DEFECTS: Final = {ExitCode.INTERNAL, ExitCode.BROKEN_PIPE, ExitCode.INTERRUPTED}
_WORDS: Final = """
    null ~ true -1 0 1e400 .nan -.inf 0x1F 1_000 2026-02-30 12:61:61 "" ' [ ] { {} [] [[[[]]]] &a *a | --- ...
    ../../etc/passwd --upload-pack=x $(id) <script>alert(1)</script> é
"""
ODD: Final = (
    *_WORDS.split(),
    *('"\\ud800"', "9" * 400, "{a: {b: {c: 1}}}", "!!python/object/apply:os.system [id]", "!!binary aGk=", "!!set {a}"),
    *("&a [*a]", "<<: {a: 1}", "? x", "%YAML 9.9", "\t", "\x00", "\x1b[31m", "\u202e", "\ufeff", "\u2028", "a" * 5000),
)
_VALUE: Final = re.compile(r"(?<=[:\-\[,] )[^\n,\]]+|(?<=\")[^\"]*(?=\")|\d+")
CONFIG = """\
model:
  num_layers: 2
  hidden_size: 128
  num_attention_heads: 4
  vocab_size: 1024
parallel: {tensor_model_parallel_size: 2, sequence_parallel: true}
recompute: {recompute_granularity: selective, recompute_modules: [core_attn]}
data: {seq_length: 128, micro_batch_size: 1}
device: {limit: 80GiB, gpu: h100-80gb}
allocator: {conf: "expandable_segments:True"}
probe: {rank: 0, iterations: 2, timeout_s: 60}
"""
SUITE = """\
defaults:
  limit: 80GiB
  metrics: {peak_requested: {warn: 1 MiB, fail: 2 %}}
cases:
  - name: tiny
    preset: gpt-tiny
    rank: 0
  - name: mine
    config: cfg.yaml
    overrides: [data.micro_batch_size=2]
    metrics: {peak_reserved: {fail: 20 MiB}, overhead: null}
"""
BRANCHES = (
    *("größe", "🔥", "a\u202eb", "refs/heads/main", "HEAD", "a.yaml", "$(touch\u00a0pwned)", "'\";|&<>", "%s%n{0}"),
    *("x" * 200, "@x", "deadbeef"),
)
"""Names that git takes for branches (git-check-ref-format(1)), some of them by plumbing alone."""
RANGES = (
    "--upload-pack=touch pwned..HEAD",
    "-x..HEAD",
    "HEAD..-x",
    "HEAD..--exec=touch pwned",
    "^HEAD..HEAD",
    "@{-1}..",
    "..@{-1}",
    "good...main",
    "....",
    "..",
    "...",
    "HEAD..HEAD",
    "HEAD~999999999..HEAD",
    "HEAD^{tree}..HEAD",
    "HEAD^{/no such words}..HEAD",
    ":/commit 1..HEAD",
    "HEAD:a.yaml..HEAD",
    "HEAD@{1970-01-01}..HEAD",
    "HEAD@{99999}..HEAD",
    "0" * 40 + "..HEAD",
    "f" * 40 + "..HEAD",
    "/dev/null..HEAD",
    "~..~",
    " .. ",
    "good\n..main",
    "good\0..main",
    "good\x1b[31m..main",
    "\udcff..main",
    "x" * 100_000 + "..main",
    "refs/heads/..main",
    "--all..main",
    "--git-dir=/tmp..main",
    "--help",
    "",
)


def damaged(content: bytes, number: int) -> bytes:
    """Return ``content`` damaged in one to three places: a bit, a cut, an odd value, or a line lost or twice."""
    dice = random.Random(number)
    for _ in range(dice.randint(1, 3)):
        kind, lines = dice.choice(["bit", "cut", "value", "value", "value", "line"]), content.splitlines(keepends=True)
        text = content.decode(errors="surrogateescape")
        if kind == "bit" and content:
            at = dice.randrange(len(content))
            content = content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :]
        elif kind == "cut":
            content = content[: dice.randrange(len(content) + 1)]
        elif kind == "line" and lines:
            at = dice.randrange(len(lines))
            line = lines[at]
            lines[at : at + 1] = dice.choice([[], [b" " + line], [line.lstrip()], [line, line], [b"\xff\n"]])
            content = b"".join(lines)
        elif places := list(_VALUE.finditer(text)):
            place = dice.choice(places)
            text = text[: place.start()] + dice.choice(ODD) + text[place.end() :]
            content = text.encode(errors="surrogateescape")
    return content


def spoilt(path: Path) -> Iterator[str]:
    """Put one thing after another in the place of ``path``, which no file should be, and yield its name."""
    path.unlink()
    yield "nothing"
    path.write_bytes(b"")
    yield "an empty file"
    path.write_bytes(bytes(range(256)) * 16)
    yield "binary"
    path.unlink()
    path.mkdir()
    yield "a folder"
    path.rmdir()
    path.symlink_to(path)
    yield "a link to itself"


class Told:
    """What commands said: how often they ended how, and what they should not have said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.codes, self.wrong = capsys, Counter[int](), list[str]()

    def by(self, name: object, *words: str) -> None:
        """Run a command; ``name`` says of which damage."""
        self.capsys.readouterr()
        code = run(list(words))
        said = self.capsys.readouterr()
        self.codes[code] += 1
        is_one_line = re.fullmatch(r"oomscope: [^\n]*\n", said.err)
        is_fine = code in {ExitCode.OK, ExitCode.REGRESSION} or said.out or is_one_line
        is_clean = not any(ord(letter) < 32 and letter not in "\n\t" for letter in said.out + said.err)
        if code not in set(ExitCode) - DEFECTS or "Traceback" in said.err + said.out or not (is_fine and is_clean):
            self.wrong.append(f"{name}: {' '.join(words)} ended with {code} and said {said.err[-600:]!r}")


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Iterator[Told]:
    """Hold at the end that nothing wrong was said."""
    made = Told(capsys)
    yield made
    assert made.wrong == []


@pytest.fixture
def searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Searches:
    made = Searches(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("oomscope.bisect.run.prober.runner_of", lambda *_: LocalRunner(run=made.measure))
    monkeypatch.chdir(made.repo.path)
    return made


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a suite, its baseline, a night and a ledger, over a played probe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(1 << 30))
    (tmp_path / "cfg.yaml").write_text(CONFIG)
    (tmp_path / "memory.yaml").write_text(SUITE)
    assert run(["gate", "update", "memory.yaml", "--quiet"]) == ExitCode.OK
    words = ["--quiet", "--ledger", "gate.sqlite", "--result", "night.json"]
    assert run(["gate", "run", "memory.yaml", *words]) == ExitCode.OK
    return tmp_path


RUN = ("gate", "run", "memory.yaml", "--no-ledger", "--quiet")
IMPORT = ("gate", "import", "night.json", "--ledger", "gate.sqlite")
HISTORY = ("gate", "history", "--ledger", "gate.sqlite")


@pytest.mark.parametrize(
    ("name", "times", "commands", "refused"),
    [
        ("cfg.yaml", 60, [("config", "check", "cfg.yaml")], 15),
        ("memory.yaml", 40, [RUN], 10),
        ("memory.baseline.yaml", 40, [RUN], 10),
        ("night.json", 25, [IMPORT, ("gate", "update", "memory.yaml", "--from", "night.json"), HISTORY], 10),
        ("gate.sqlite", 30, [HISTORY, IMPORT], 8),
    ],
)
def test_damaged_files(
    gate: Path, told: Told, name: str, times: int, commands: list[tuple[str, ...]], refused: int
) -> None:
    whole = (gate / name).read_bytes()
    for number in range(times * TIMES):
        (gate / name).write_bytes(damaged(whole, number))
        for words in commands:
            told.by(number, *words)
    assert told.codes[ExitCode.USAGE] >= refused


@pytest.mark.parametrize("name", ["memory.yaml", "memory.baseline.yaml", "cfg.yaml", "gate.sqlite", "night.json"])
def test_something_else_in_the_place_of_a_file(gate: Path, told: Told, name: str) -> None:
    for what in spoilt(gate / name):
        told.by(what, "gate", "run", "memory.yaml", "--ledger", "gate.sqlite", "--quiet")
        told.by(what, *HISTORY)
        told.by(what, *IMPORT)


def test_damaged_journals(searches: Searches, told: Told, tmp_path: Path) -> None:
    commands = (("log", "1"), ("export", "1"), ("resume", "1", "--quiet"))
    searches.interrupted(4)
    (journal,) = (tmp_path / "state").rglob("*.jsonl")
    whole = journal.read_bytes()
    for number in range(24 * TIMES):
        journal.write_bytes(damaged(whole, number))
        told.by(number, "bisect", *commands[number % 3])
    assert set(told.codes) >= {ExitCode.OK, ExitCode.USAGE}
    for what in spoilt(journal):
        told.by(what, "bisect", *commands[0])


@pytest.mark.parametrize("whole", [False, True], ids=["as a range", "after --"])
def test_a_range_is_nothing_but_a_range(searches: Searches, told: Told, whole: bool) -> None:
    own = ["--config", "a.yaml", "--quiet"]
    for words in RANGES:
        told.by(repr(words[:60]), "bisect", *([*own, "--", words] if whole else [words, *own]))
    assert set(told.codes) <= {ExitCode.OK, ExitCode.USAGE, ExitCode.INCONCLUSIVE}
    assert not list(searches.repo.path.parent.rglob("pwned"))


def test_a_branch_may_be_called_anything_that_git_allows(searches: Searches, told: Told, capsys) -> None:
    for name in BRANCHES:
        searches.repo.git("update-ref", f"refs/heads/{name}", "main")
    for name in BRANCHES:
        told.by(repr(name), "bisect", f"good..{name}", "--config", "a.yaml", "--quiet")
    capsys.readouterr()
    assert run(["bisect", f"good..refs/heads/{BRANCHES[6]}", "--config", "a.yaml", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["culprit"]["commit"] == searches.hashes[8]
    assert not list(searches.repo.path.parent.rglob("pwned"))
