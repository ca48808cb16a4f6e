"""The commands of every recipe in docs/ci, as they stand on its page, in a clean clone of a small repository.

What a recipe takes from elsewhere is stood in for: pip installs nothing, since oomscope is there; GitHub and Slurm are
scripts that write down what they were asked. On GitHub's red night the whole program runs; else its command line, which
is told what was measured once.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from oomscope.cli.main import run
from oomscope.errors import ExitCode
from tests.forked import probes
from tests.integration.program import OOMSCOPE, commit, git, new_repo
from tests.integration.recipes import ACTION, PAGES, RECIPES, Recipe, Step, blocks

SUITE = """\
defaults:
  overrides: [probe.backend=virtual, probe.iterations=1]
cases:
  - {name: train, config: ../train.yaml}
"""
CONFIG = "preset: gpt-tiny\nmodel: {{num_layers: 1}}\ndata: {{seq_length: {length}}}\n"
STAND_INS = {
    "pip": 'echo "pip $*" >> "$CALLS"',
    "python3": 'echo "python3 $*" >> "$CALLS"',
    "gh": 'echo "gh $*" >> "$CALLS"; case "$*" in *--paginate*) printf "%s" "$OLD_COMMENT";; esac',
    "mail": 'echo "mail $2" >> "$CALLS"',
    "sbatch": """\
for word; do
  case "$word" in
    --export=ALL,*) export "${word#--export=ALL,}";;
    --output=*) output=${word#--output=};;
  esac
done
bash "$word" > "$output" 2>&1
""",
}
TOLD = """\
import json, sys
from oomscope.cli.main import main
from oomscope.probe.tuning import variants
from oomscope.probe.result import ProbeResult
(case,) = json.load(open({night!r}))["cases"]
variants.launched = lambda job, stop: ProbeResult.from_json(case["probe"])
main()
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A machine of a CI system with a fresh clone."""

    origin: Path
    workspace: Path
    environment: dict[str, str]

    @property
    def calls(self) -> list[str]:
        """What the stand-ins were asked."""
        path = Path(self.environment["CALLS"])
        return path.read_text().splitlines() if path.exists() else []

    def run(self, recipe: Recipe, **more: str) -> int:
        """Run the steps of ``recipe`` as its CI system would, and return the status of the job."""
        status = 0
        for step in recipe.steps:
            if status == 0 or step.always:
                status = self._shell(step, recipe.env | more) or status
        return status

    def _shell(self, step: Step, env: dict[str, str]) -> int:
        given = {name: self._expanded(str(value)) for name, value in (env | step.env).items()}
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", step.script],
            cwd=self.workspace,
            env=self.environment | given,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert "command not found" not in done.stderr, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode

    def _expanded(self, value: str) -> str:
        for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE", "RUNNER_KIND"):
            for form in (f"${{{name}}}", f"${name}"):
                value = value.replace(form, self.environment.get(name, ""))
        return value


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a suite and its baseline."""
    repo = new_repo(tmp_path_factory.mktemp("origin") / "project")
    scripts = {name: text for make in RECIPES.values() for name, text in make().files.items()}
    files = {"ci/memory-cpu.yaml": SUITE, "train.yaml": CONFIG.format(length=128), "ci/requirements.txt": "oomscope\n"}
    commit(repo, "Train", {**files, **scripts})
    for name in scripts:
        (repo / name).chmod(0o755)
    suite, night = str(repo / "ci/memory-cpu.yaml"), str(repo.parent / "night.json")
    with probes():
        assert run(["gate", "run", suite, "--quiet", "--no-ledger", "--result", night]) == ExitCode.NO_BASELINE
    assert run(["gate", "update", suite, "--from", night]) == ExitCode.OK
    commit(repo, "Accept", {})
    return repo


@pytest.fixture
def runner(origin: Path, tmp_path: Path) -> Runner:
    """A machine with a clone, on which programs of other people are stood in for."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, body in STAND_INS.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    told = TOLD.format(night=str(origin.parent / "night.json"))
    (tools / "oomscope").write_text(f"#!{sys.executable}\n{told}")
    (tools / "oomscope").chmod(0o755)
    home = tmp_path / "home"
    workspace = home / "nightly"
    git(tmp_path, "clone", "--quiet", str(origin), str(workspace))
    (workspace / ".venv/bin").mkdir(parents=True)
    for name in ("pip", "oomscope"):
        (workspace / ".venv/bin" / name).symlink_to(tools / name)
    names = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "GIT_"))},
        **dict.fromkeys(names, str(workspace)),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(home),
        "USER": "ada",
        "CALLS": str(tmp_path / "calls"),
        "OLD_COMMENT": "",
        "GITHUB_REPOSITORY": "ada/project",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "step.md"),
        "RUNNER_KIND": "cpu",
    }
    return Runner(origin=origin, workspace=workspace, environment=environment)


def check_green(runner: Runner, recipe: Recipe) -> None:
    """Run ``recipe`` where nothing changed."""
    assert runner.run(recipe) == ExitCode.OK
    for pattern in recipe.kept:
        assert list(runner.workspace.glob(pattern)), f"{pattern} is kept, and nothing wrote it"
    (result,) = [*runner.workspace.glob("night.json"), *runner.workspace.glob("nights/*.json")]
    assert json.loads(result.read_text())["exit_code"] == ExitCode.OK
    assert any("-r ci/requirements.txt" in call for call in runner.calls)
    assert git(runner.workspace, "status", "--porcelain", "--untracked-files=no") == ""


@pytest.mark.parametrize("page", [page for page in RECIPES if page != "github.md"])
def test_a_recipe_runs_as_it_stands(page: str, runner: Runner) -> None:
    check_green(runner, RECIPES[page]())


def test_a_red_night_fails_the_job_and_names_the_commit_once(runner: Runner) -> None:
    """The GitHub recipe twice: green, and red after a commit, with the ledger that was carried over."""
    recipe = RECIPES["github.md"]()
    check_green(runner, recipe)
    program = Path(runner.environment["PATH"].partition(":")[0]) / "oomscope"
    program.unlink()
    program.symlink_to(OOMSCOPE)
    posted = "gh api --method POST repos/ada/project/issues/7/comments --field body=@comment.md"
    assert runner.calls[-1] == posted
    commit(runner.workspace, "Say hello", {"README.md": "Hello\n"})
    guilty = commit(runner.workspace, "Train on longer sequences", {"train.yaml": CONFIG.format(length=256)})
    commit(runner.workspace, "Say more", {"README.md": "Hello again\n"})
    for name in ("night.json", "night.xml", "night.html", "comment.md"):
        (runner.workspace / name).unlink()  # a fresh checkout has none of them
    assert runner.run(recipe, OLD_COMMENT="9") == ExitCode.REGRESSION
    assert runner.calls[-1] == "gh api --method PATCH repos/ada/project/issues/comments/9 --field body=@comment.md"
    document = json.loads((runner.workspace / "night.json").read_text())
    assert document["cases"][0]["culprit"]["commit"] == guilty
    comment = (runner.workspace / "comment.md").read_text()
    assert comment.startswith("<!-- oomscope gate: ci/memory-cpu.yaml -->\n### ❌")
    assert "Train on longer sequences" in comment
    assert "(https://github.example/artifact)" in comment
    summary = Path(runner.environment["GITHUB_STEP_SUMMARY"]).read_text()
    assert summary.index("GREEN") < summary.index("RED")


@pytest.mark.parametrize("page", ["github.md", "jenkins.md"])
def test_a_gate_that_wrote_nothing_shows_nothing_of_an_earlier_night(page: str, runner: Runner) -> None:
    (runner.workspace / "ci/memory-cpu.yaml").write_text("cases: []\n")
    if page == "jenkins.md":  # whose workspace stays
        for name in ("night.json", "night.xml", "night.html"):
            (runner.workspace / name).write_text("green")
    assert runner.run(RECIPES[page]()) == ExitCode.NOTHING_MEASURED
    assert not [*runner.workspace.glob("night.*")]
    assert not [call for call in runner.calls if call.startswith("gh ")]


def test_a_comment_is_tried_only_where_it_may_be_made_and_only_a_bots_is_replaced() -> None:
    (step,) = [step for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"] if step.get("name") == "Comment"]
    assert "github.event.pull_request.head.repo.full_name == github.repository" in step["if"]
    jq = re.search(r'--jq "(.*)" \|', step["run"])
    assert jq is not None
    assert jq[1] == (r".[] | select(.user.type == \"Bot\" and (.body | startswith(\"$(head -n 1 comment.md)\"))) | .id")


def test_cron_mails_what_is_not_green(runner: Runner) -> None:
    recipe = RECIPES["slurm.md"]()
    (runner.workspace / "ci/memory-cpu.yaml").write_text("cases: []\n")
    assert runner.run(recipe) == ExitCode.NOTHING_MEASURED
    assert runner.calls[-1] == "mail memory gate on cpu: exit code 8"
    assert "the suite has no cases" in (runner.workspace / "nights/cpu.log").read_text()


def test_the_page_of_the_action_lists_its_inputs() -> None:
    text = (PAGES / "github.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE) == list(yaml.safe_load(ACTION.read_text())["inputs"])


@pytest.mark.parametrize("page", RECIPES)
def test_every_page_has_a_recipe_for_both_kinds_of_runner(page: str) -> None:
    text = (PAGES / page).read_text(encoding="utf-8")
    assert "cpu" in text
    assert "gpu" in text
    assert page in (PAGES / "README.md").read_text(encoding="utf-8")
    for block in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(block), dict)
