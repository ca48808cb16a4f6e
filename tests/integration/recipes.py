"""The recipes of docs/ci as their CI systems read them: jobs of commands, taken from the pages' own text."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "ci"
ACTION = ROOT / "action.yml"
CONTEXT = {
    "matrix.runner": "cpu",
    "matrix.labels": "ubuntu-latest",
    "github.workspace": "$GITHUB_WORKSPACE",
    "github.token": "token",
    "github.event.number": "7",
    "github.event.number || 'night'": "7",
    "github.event_name == 'pull_request'": "true",
    "github.run_id": "1",
    "github.run_attempt": "1",
    "steps.upload.outputs.artifact-url": "https://github.example/artifact",
}
"""What GitHub puts for ``${{ … }}``."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Commands for one shell."""

    script: str
    always: bool = False
    """Run also after a step that failed."""
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A page, as one runner without a GPU would run it."""

    steps: list[Step]
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Scripts that the page puts into the repository."""
    kept: tuple[str, ...] = ()
    """Files that the page's CI system takes from the workspace."""


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of code of a page."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def github() -> Recipe:
    """Return the steps of the action, with the inputs that the page's workflow gives."""
    (text,) = blocks("github.md", "yaml")
    (use,) = [step for step in _filled(text)["jobs"]["gate"]["steps"] if "oomscope@" in step["uses"]]
    inputs = {name: each.get("default", "") for name, each in yaml.safe_load(ACTION.read_text())["inputs"].items()}
    assert use["with"].keys() <= inputs.keys()
    given = {f"inputs.{name}": value for name, value in {**inputs, **use["with"]}.items()}
    run = _filled(ACTION.read_text(), **given)["runs"]["steps"]
    steps = [
        Step(script=step["run"], always="always()" in step.get("if", ""), env=step.get("env", {}))
        for step in run
        if "run" in step
    ]
    artifact = next(step for step in run if step.get("uses", "").startswith("actions/upload-artifact"))
    return Recipe(steps=steps, kept=(artifact["with"]["path"], "comment.md"))


def _filled(text: str, **more: str) -> Any:
    """Return the YAML document ``text`` with what GitHub puts for its expressions."""
    context = CONTEXT | more
    return yaml.safe_load(re.sub(r"\$\{\{ (.*?) \}\}", lambda found: context[found[1]], text))


def gitlab() -> Recipe:
    """Return the job of the pipeline."""
    (text,) = blocks("gitlab.md", "yaml")
    job = yaml.safe_load(text)["memory"]
    artifacts = job["artifacts"]
    return Recipe(
        steps=[Step(script="\n".join([*job["before_script"], *job["script"]]))],
        env={**job["variables"], "RUNNER_KIND": job["parallel"]["matrix"][0]["RUNNER_KIND"][0]},
        kept=(*artifacts["paths"], *artifacts["reports"].values()),
    )


def jenkins() -> Recipe:
    """Return the stages of the pipeline."""
    (text,) = blocks("jenkins.md", "groovy")
    assert text.count("{") == text.count("}")
    scripts = [textwrap.dedent(script) for script in re.findall(r"sh '''\n(.*?)'''", text, re.DOTALL)]
    env = dict(re.findall(r'^\s+(XDG_\w+) = "(.*)"$', text, re.MULTILINE))
    kept = re.findall(r"testResults: '(.*?)'|artifacts: '(.*?)'", text)
    return Recipe(
        steps=[Step(script=script) for script in scripts],
        env={**env, "RUNNER_KIND": "cpu"},
        kept=tuple(filter(None, (name for pair in kept for name in pair))),
    )


def slurm() -> Recipe:
    """Return what cron runs, and the scripts."""
    (crontab,) = blocks("slurm.md", "crontab")
    files = {}
    for text in blocks("slurm.md", "bash"):
        files[re.search(r"^# (ci/\S+):", text, re.MULTILINE)[1]] = text
    command = crontab.split(maxsplit=5)[5]
    return Recipe(steps=[Step(script=command)], env={"RUNNER_KINDS": "cpu"}, files=files, kept=("nights/cpu-*.json",))


RECIPES = {"github.md": github, "gitlab.md": gitlab, "jenkins.md": jenkins, "slurm.md": slurm}
