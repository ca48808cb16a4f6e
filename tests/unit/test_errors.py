from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import oomscope
from oomscope.errors import GRAVITY, ExitCode, OomscopeError, gravest

ROOT = Path(oomscope.__file__).parent
WITHOUT_REMEDY = {
    "bisect/vcs/checkouts.py": "its message says what to run, and goes into a note",
    "bisect/run/prober.py": "says again what an earlier attempt, or a probe's own process, said with its remedy",
    "bisect/targets/subjects.py": "the reason of an untestable commit, in a table",
    "bisect/run/experiment.py": "the user's own command failed, and its words are shown",
    "gate/culprit.py": "why a night has no culprit, in its report, beside what to do about the regression",
    "cli/main.py": "the user interrupted it, and knows what next",
    "cli/bisect/command.py": "click's, which gets the remedy of every such error: see COMMAND --help",
}
"""Files whose errors name no next step, and why."""


def error_classes(trees: list[ast.Module]) -> set[str]:
    """Return the names of all classes below OomscopeError, found as often as the tree is deep."""
    found = {"OomscopeError"}
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for _ in range(6):
        found |= {each.name for each in classes if found & {base.id for base in each.bases if hasattr(base, "id")}}
    return found


def without_remedy() -> Iterator[tuple[str, int, str]]:
    texts = {path: path.read_text() for path in ROOT.rglob("*.py")}
    trees = {path: ast.parse(text) for path, text in texts.items() if "Error" in text or "Problem(" in text}
    names = error_classes(list(trees.values())) - {"InvalidConfigError"}  # made of problems, looked at below
    positional = {"Problem": 3}
    said = ("must be", "needs a", "cannot be read as", ", but {error}")  # the message itself says what would be right
    for path, tree in trees.items():
        if path.parent.name == "pytest_plugin":  # whose errors are pytest's own
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in names | set(positional):
                given = {keyword.arg for keyword in node.keywords} & {"remedy", None}
                text = ast.unparse(node)
                if not given and len(node.args) < positional.get(name, 99) and not any(each in text for each in said):
                    yield str(path.relative_to(ROOT)), node.lineno, text


def test_every_error_that_is_raised_names_a_next_step() -> None:
    found = list(without_remedy())
    assert [each for each in found if each[0] not in WITHOUT_REMEDY] == []
    assert {file for file, _, _ in found} == set(WITHOUT_REMEDY), "a reason that is not needed any more"


def test_an_error_is_one_line_whatever_it_is_about() -> None:
    error = OomscopeError("two\nlines", where="a\nfile", remedy="do\tthis")
    assert str(error) == "a file: two lines; do this"


def test_every_code_has_its_place_among_the_gravest() -> None:
    assert set(GRAVITY) == set(ExitCode)
    assert gravest([]) is ExitCode.OK
    assert gravest([ExitCode.REGRESSION, ExitCode.USAGE, ExitCode.OOM]) is ExitCode.USAGE


def test_every_code_has_its_row_in_the_page_on_exit_codes() -> None:
    page = (ROOT.parent / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|", page, re.MULTILINE)
    assert [int(row) for row in rows] == sorted(ExitCode)
