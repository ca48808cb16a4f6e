"""Whatever a repository is like, ``oomscope bisect`` finds its culprit or says in one line why it cannot.

The command line is the real one; the probe only reads a number out of the checkout.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from oomscope.bisect.run.runner import LocalRunner
from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.probe.job import HarnessTarget, ProbeJob
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.probe_results import AVAILABLE, error, fits, oom
from tests.unit.bisect.repos import Repo, fingerprint

SIZES = (500, 501, 1202, 1203)
CULPRIT = 2

Odd = Callable[[Repo, Path], Path]
"""Makes of a plain repository, and a place for more, the one that is searched."""


def probe(job: ProbeJob, *_more: object, **_options: object) -> ProbeResult:
    assert isinstance(job.target, HarnessTarget)
    try:
        size = int((Path(job.target.repo) / "size.txt").read_text())
    except (OSError, ValueError) as reason:
        return error("import", str(reason))
    return fits(size) if size <= AVAILABLE else oom(live=900, requested=100, demand=size)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oomscope.bisect.run.prober.runner_of", lambda *_: LocalRunner(run=probe))


@pytest.fixture
def plain(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "plain")
    for size in SIZES:
        repo.commit(f"size {size}", {"size.txt": f"{size}\n"})
    return repo


class Answer:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.err = status, err
        self.document = json.loads(out)

    @property
    def culprit(self) -> str:
        assert self.status == ExitCode.OK, self.document
        assert self.document["outcome"] == "culprit", self.document
        return str(self.document["culprit"]["subject"])

    @property
    def refusal(self) -> str:
        """The one line in which it was refused."""
        assert self.status == ExitCode.USAGE, self.document
        (line,) = self.err.splitlines()
        return line


def search(repo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str, ends: str = "") -> Answer:
    """Bisect ``repo``, which stays as it is, and leave nothing behind."""
    harness, state = tmp_path / "harness.py", tmp_path / "state"
    harness.touch()
    before = fingerprint(tmp_path)
    arguments = ["bisect", ends or "main~3..main", "--repo", str(repo), "--harness", str(harness), *words]
    status = run([*arguments, "--backend", "virtual", "--state", str(state), "--json", "--quiet"])
    after = fingerprint(tmp_path)
    assert {
        name for name in before | after if before.get(name) != after.get(name) and not name.startswith("state")
    } == set()
    assert not state.exists() or not list((state / "checkouts").iterdir())
    captured = capsys.readouterr()
    return Answer(status, captured.out, captured.err)


def packed(repo: Repo, _more: Path) -> Path:
    repo.git("gc", "--quiet", "--aggressive", "--prune=now")
    assert not (repo.path / ".git/refs/heads/main").exists()
    return repo.path


def bare(repo: Repo, more: Path) -> Path:
    repo.git("clone", "--quiet", "--bare", str(repo.path), str(more / "bare.git"))
    return more / "bare.git"


def linked(repo: Repo, more: Path) -> Path:
    repo.git("worktree", "add", "--quiet", "--detach", str(more / "linked"), "main~2")
    return more / "linked"


def in_use(repo: Repo, more: Path) -> Path:
    """Detached, with edits, staged and conflicting files, a sparse checkout and a lock on the index."""
    repo.git("checkout", "--quiet", "--detach", "main~1")
    (repo.path / "size.txt").write_text("<<<<<<< being edited")
    (repo.path / "staged").touch()
    repo.git("add", "staged")
    repo.git("config", "core.sparseCheckout", "true")
    (repo.path / ".git/info/sparse-checkout").write_text("/nothing\n")
    (repo.path / ".git/index.lock").touch()
    return repo.path


def shallow(repo: Repo, more: Path) -> Path:
    repo.commit("later", {})
    repo.git("clone", "--quiet", "--depth=5", repo.path.as_uri(), str(more / "shallow"))
    return more / "shallow"


def borrowing(repo: Repo, more: Path) -> Path:
    """A clone without objects of its own, of one that has none either."""
    repo.git("clone", "--quiet", "--shared", str(repo.path), str(more / "one"))
    repo.git("clone", "--quiet", "--shared", str(more / "one"), str(more / "two"))
    return more / "two"


def behind_a_link(repo: Repo, more: Path) -> Path:
    (more / "link").symlink_to(repo.path)
    return more / "link"


def a_submodules_own(repo: Repo, more: Path) -> Path:
    above = Repo(more / "above")
    above.git("submodule", "add", "--quiet", str(repo.path), "below")
    above.git("-C", "below", "checkout", "--quiet", "-B", "main", "origin/main")
    return above.path / "below"


def oddly_named(repo: Repo, more: Path) -> Path:
    place = more / 'it\'s a "répo" $HOME;%20 -n\\'
    repo.path.rename(place)
    return place


def with_odd_files(repo: Repo, _more: Path) -> Path:
    names = (
        "-n",
        'a "quoted" name',
        "new\nline",
        "tab\t",
        "ünï/日本/è",
        "README",
        "readme",
        "a*b[c]?",
        ":(top)",
        "con ",
    )
    (repo.path / "dangling").symlink_to("/nowhere/at all")
    (repo.path / "loop").symlink_to(".")
    repo.commit("odd names", dict.fromkeys(names, "x"))
    (repo.path / os.fsdecode(b"not utf-8 \xff")).touch()
    repo.commit("more", {"/".join(["d" * 200] * 9): "deep"})
    return repo.path


def with_traps(repo: Repo, more: Path) -> Path:
    """Hooks, filters, monitors and templates that would leave a trace or break what is laid out."""
    trap = f"touch '{more}/sprung'; cat"
    for name in ("filter.trap.smudge", "filter.trap.process", "core.fsmonitor", "core.sshCommand", "diff.external"):
        repo.git("config", name, trap)
    repo.git("config", "filter.trap.required", "true")
    repo.git("config", "core.autocrlf", "true")
    repo.git("config", "core.worktree", "/nowhere")
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc"):
        hook = repo.path / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\n{trap}\n")
        hook.chmod(0o755)
    return repo.path


def of_another_user(repo: Repo, _more: Path) -> Path:
    if os.getuid() != 0:
        pytest.skip("only root can give a repository away")
    for path in (repo.path, *repo.path.rglob("*")):
        os.chown(path, 12345, 12345)
    return repo.path


def with_reftable(repo: Repo, more: Path) -> Path:
    try:
        repo.git("clone", "--quiet", "--ref-format=reftable", str(repo.path), str(more / "reftable"))
    except AssertionError:
        pytest.skip("this git knows no reftable (since 2.45)")
    return more / "reftable"


FOUND: tuple[Odd, ...] = (
    *(packed, bare, linked, in_use, shallow, borrowing, behind_a_link, a_submodules_own, oddly_named, with_odd_files),
    *(with_traps, of_another_user, with_reftable),
)


@pytest.mark.parametrize("odd", FOUND, ids=lambda odd: odd.__name__)
def test_the_culprit_is_found(odd: Odd, plain: Repo, tmp_path: Path, capsys) -> None:
    first = plain.git("rev-list", "--max-parents=0", "main")
    (tmp_path / "more").mkdir()
    place = odd(plain, tmp_path / "more")
    answer = search(place, tmp_path, capsys, ends=f"{first}..main")
    assert answer.culprit == f"size {SIZES[CULPRIT]}"
    assert not (tmp_path / "more/sprung").exists()


def without_commits(_repo: Repo, more: Path) -> Path:
    return Repo(more / "empty").path


def without_git(_repo: Repo, more: Path) -> Path:
    (more / "folder").mkdir()
    return more / "folder"


def not_there(_repo: Repo, more: Path) -> Path:
    return more / "missing"


def sha256(_repo: Repo, more: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", "--object-format=sha256", more / "sha256"], check=True)
    return more / "sha256"


def too_shallow(repo: Repo, more: Path) -> Path:
    repo.git("clone", "--quiet", "--depth=2", repo.path.as_uri(), str(more / "shallow"))
    return more / "shallow"


def without_its_objects(repo: Repo, more: Path) -> Path:
    repo.git("clone", "--quiet", "--shared", str(repo.path), str(more / "clone"))
    (repo.path / ".git/objects").rename(more / "elsewhere")
    return more / "clone"


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (without_commits, "no such commit"),
        (without_git, "not a git repository"),
        (not_there, "is not a directory"),
        (sha256, "SHA-256"),
        (too_shallow, "run git fetch --unshallow"),
        (without_its_objects, "no such commit"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_cannot_be_searched_is_refused_in_one_line(
    odd: Odd, said: str, plain: Repo, tmp_path: Path, capsys
) -> None:
    (tmp_path / "more").mkdir()
    refusal = search(odd(plain, tmp_path / "more"), tmp_path, capsys).refusal
    assert said in refusal
    assert "Traceback" not in refusal


def with_a_path_that_is_too_long(repo: Repo, _more: Path) -> Path:
    blob = repo.git("hash-object", "-w", "size.txt")
    repo.git("update-index", "--add", "--cacheinfo", f"100644,{blob},{'/'.join(['d' * 200] * 21)}")
    repo.git("commit", "--quiet", "-m", "long")
    return repo.path


def with_a_submodule(repo: Repo, more: Path) -> Path:
    """The number lies in a submodule of a submodule."""
    inner, middle, outer = Repo(more / "inner"), Repo(more / "middle"), Repo(more / "outer")
    for size in SIZES:
        inner.commit(f"size {size}", {"size.txt": f"{size}\n"})
    middle.git("submodule", "add", "--quiet", "--name", "the inner one", str(inner.path), "deep/inner")
    middle.commit("with the inner one", {})
    outer.git("submodule", "add", "--quiet", str(middle.path), "middle")
    outer.git("submodule", "update", "--quiet", "--init", "--recursive")
    (outer.path / "size.txt").symlink_to("middle/deep/inner/size.txt")
    for size, commit in zip(SIZES, inner.git("rev-list", "--reverse", "main").split(), strict=True):
        outer.git("-C", "middle/deep/inner", "checkout", "--quiet", commit)
        outer.git("-C", "middle", "commit", "--quiet", "--all", "-m", f"size {size}")
        outer.commit(f"size {size}", {})
    return outer.path


def test_submodules_of_submodules_are_searched(plain: Repo, tmp_path: Path, capsys) -> None:
    (tmp_path / "more").mkdir()
    place = with_a_submodule(plain, tmp_path / "more")
    assert search(place, tmp_path, capsys).culprit == f"size {SIZES[CULPRIT]}"
    (place / ".git/modules/middle/modules/the inner one").rename(tmp_path / "more/gone")
    answer = search(place, tmp_path, capsys, "--fresh")
    assert answer.status == ExitCode.INCONCLUSIVE
    (note,) = answer.document["notes"]
    assert note.startswith("submodule deep/inner is empty: it is not in the repository's own copy: run git submodule")


def without_files(repo: Repo, more: Path) -> Path:
    repo.git("config", "uploadpack.allowFilter", "true")
    repo.git("clone", "--quiet", "--filter=blob:none", "--bare", repo.path.as_uri(), str(more / "partial"))
    return more / "partial"


@pytest.mark.parametrize(
    ("odd", "said"),
    [(with_a_path_that_is_too_long, "unable to create file"), (without_files, "size.txt")],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_commit_that_cannot_be_laid_out_is_untestable_and_says_why(
    odd: Odd, said: str, plain: Repo, tmp_path: Path, capsys
) -> None:
    (tmp_path / "more").mkdir()
    answer = search(odd(plain, tmp_path / "more"), tmp_path, capsys)
    assert answer.status == ExitCode.INCONCLUSIVE
    assert answer.document["outcome"] == "ends_invalid"
    assert said in json.dumps([answer.document["message"], answer.document["notes"]])
    assert len(answer.document["message"]) < 1000
