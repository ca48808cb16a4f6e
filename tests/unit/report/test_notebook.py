"""``oomscope.explain`` in a notebook."""

from __future__ import annotations

import builtins
import html
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import oomscope
from oomscope.errors import UsageError
from oomscope.snapshot.write import write_snapshot
from tests.unit.report import drawn
from tests.unit.report.browser import browse, in_a_browser


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snapshot of a job that fails."""
    return write_snapshot(drawn.failing(), tmp_path_factory.mktemp("job") / "s.pickle")


def test_a_cell_shows_the_page_in_a_frame_without_access_to_the_notebook(file: Path) -> None:
    found = oomscope.explain(file)
    sandbox, page = re.fullmatch(
        r'<iframe title=".*?" sandbox="(.*?)" srcdoc="([^"]*)".*</iframe>', found._repr_html_()
    ).groups()
    assert sandbox == "allow-scripts"
    assert html.unescape(page) == found.page()


def test_print_shows_the_report_and_tables_are_frames(file: Path) -> None:
    found = oomscope.explain(file, limit="100 MiB")
    assert "WOULD RUN OUT OF MEMORY on this card, asking for" in str(found)
    [device] = found.to_json()["devices"]
    assert found.tables["categories"]["bytes"].sum() == device["failure"]["requested_bytes"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"limit": 1, "gpu": "h100-80gb"}, "name one card"),
        ({"non_torch": "1 GiB"}, "--non-torch without a card"),
        ({"limit": "1 GiB", "non_torch": 2**30}, "leaves nothing of 1.00 GiB"),
        ({"limit": 0}, "a card of 0 B"),
    ],
)
def test_a_card_is_refused_as_on_the_command_line(file: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        oomscope.explain(file, **given)


def test_the_text_adds_no_output_to_a_cell(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = type("ZMQInteractiveShell", (), {})()  # what rich knows a notebook by
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    displayed: list[object] = []
    modules = {name: ModuleType(name) for name in ("IPython", "IPython.display")}
    vars(modules["IPython.display"])["display"] = displayed.append
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert "OUT OF MEMORY" in repr(oomscope.explain(file))
    assert displayed == []


def test_names_are_taken_out(file: Path) -> None:
    assert "model.py" not in oomscope.explain(file, redact="all").page()
    with pytest.raises(UsageError, match=r"redact='foo': no such level; give one of paths, source, all"):
        oomscope.explain(file, redact="foo")


def test_importing_the_package_imports_neither_pandas_nor_the_report() -> None:
    script = "import sys, oomscope; sys.exit('pandas' in sys.modules or 'oomscope.report' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.browser
@in_a_browser
def test_the_page_runs_inside_its_frame(file: Path) -> None:
    notebook = file.with_name("notebook.html")
    notebook.write_text(
        f"<!doctype html><title>notebook</title>{oomscope.explain(file)._repr_html_()}", encoding="utf-8"
    )
    assert "CONSOLE" not in browse(notebook).stderr
