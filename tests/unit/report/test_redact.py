"""What is hidden is nowhere in a document, what is not hidden stays, and tables keep their sense."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.report.redact import Level, is_public, redacted
from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.provenance import Provenance
from oomscope.snapshot.sites import Site
from oomscope.snapshot.trace import Action, Annotation, Frame, Snapshot
from tests.trace_builder import TraceBuilder
from tests.unit.snapshot.strategies import recordings

LEVELS = get_args(Level)
MODEL = Site(file="/home/quinn/acme/model.py", line=88, function="forward", module="acme.layers.0.mlp")
TWIN = Site(file="/home/quinn/other/model.py", line=3, function="secret_step")
TORCH = Site(file="/home/quinn/venv/lib/python3.11/site-packages/torch/optim/adam.py", line=7, function="step")
OPERATOR = Site(file="", line=0, function="sum_dim_IntList (operator, C++)")
KERNEL = Site(file="", line=0, function="acme::secret_kernel (C++)")


@dataclass(frozen=True, kw_only=True)
class Report:
    headline: str
    sites: tuple[Site, ...]
    file: str
    count: int = 5
    categories: tuple[str, ...] = ("activation", "forward")


REPORT = Report(
    headline=(
        "the peak of /home/quinn/job/snap-0.pickle is in forward, at /home/quinn/acme/model.py:88 forward "
        "(…/quinn/acme/model.py:88 forward) in acme.layers.0.mlp, not in /home/quinn/other/model.py"
    ),
    sites=(MODEL, TWIN, TORCH, OPERATOR, KERNEL, MODEL),
    file="/home/quinn/job/snap-0.pickle",
)


def test_paths_become_names_that_distinguish_files() -> None:
    report = redacted(REPORT, "paths")
    assert [(site.file, site.line, site.function) for site in report.sites[:3]] == [
        ("model.py", 88, "forward"),
        ("model.py~2", 3, "secret_step"),
        ("torch/optim/adam.py", 7, "step"),
    ]
    assert report.file == "snap-0.pickle"
    assert report.headline == (
        "the peak of snap-0.pickle is in forward, at model.py:88 forward (model.py:88 forward) in acme.layers.0.mlp, "
        "not in model.py~2"
    )
    assert report.sites[0].module == MODEL.module


def test_source_takes_functions_and_lines_but_for_those_of_pytorch() -> None:
    report = redacted(REPORT, "source")
    assert [(site.file, site.line, site.function) for site in report.sites] == [
        ("file1.py", 1, "function1"),
        ("file2.py", 1, "function2"),
        ("torch/optim/adam.py", 7, "step"),
        ("", 0, "sum_dim_IntList (operator, C++)"),
        ("", 0, "function3"),
        ("file1.py", 1, "function1"),
    ]
    assert "is in forward, at file1.py:1 function1 (file1.py:1 function1) in acme.layers.0.mlp" in report.headline
    assert report.categories == REPORT.categories


def test_all_takes_modules_and_file_names_too() -> None:
    report = redacted(REPORT, "all")
    assert report.sites[0].module == "module1"
    assert report.file == "snapshot1"
    assert "in module1, not in file2.py" in report.headline


@pytest.mark.parametrize("level", LEVELS)
def test_no_folder_is_left(level: Level) -> None:
    assert "quinn" not in repr(redacted(REPORT, level))


@given(recordings(), recordings(), st.sampled_from(LEVELS))
def test_a_difference_keeps_its_numbers(before, after, level) -> None:
    named = [
        Named(name, Snapshot(segments=segments, traces=(trace,)))
        for name, (trace, segments, _) in (("/secret/a.pickle", before), ("/secret/b.pickle", after))
    ]
    whole = diff(*named)
    hidden = redacted(whole, level)
    text = json.dumps(hidden.to_json())
    assert "/repo" not in text
    assert "/secret" not in text
    assert (level == "all") <= ("layers" not in text)
    for one, other in zip(whole.devices, hidden.devices, strict=True):
        assert [row.delta_bytes for row in one.lines] == [row.delta_bytes for row in other.lines]
        assert len({(row.site, row.category) for row in other.lines}) == len(
            {(row.site, row.category) for row in one.lines}
        )
        assert one.timeline == other.timeline


def test_a_snapshot_can_be_redacted_as_a_whole() -> None:
    builder = TraceBuilder()
    stack = (Frame(TORCH.file, 7, "step"), Frame(MODEL.file, 88, "forward"), Frame("??", 0, "at::empty"))
    builder.event(
        Action.ALLOC, 0, 4, stack=stack, module="acme.layers.0.mlp", forward_stack=(Frame(TWIN.file, 1, "f"),)
    )
    snapshot = Snapshot(
        segments=(),
        traces=(builder.build(),),
        annotations=(Annotation(name="acme epoch", stage="START", device=0, time_us=1),),
        provenance=replace(Provenance(), host="quinn-box"),
    )
    hidden = redacted(snapshot, "all")
    assert hidden.traces[0].stacks[1] == (
        Frame("torch/optim/adam.py", 7, "step"),
        Frame("file1.py", 1, "function1"),
        Frame("??", 0, "at::empty"),
    )
    assert hidden.traces[0].modules == ("", "module1")
    assert "acme" not in repr(hidden)
    assert "quinn" not in repr(hidden)
    assert hidden.traces[0].size.tolist() == [4]


HIDDEN = (
    Frame("/home/quinn/acme/csrc/fused.cpp", 77, "acme::fused_secret(at::Tensor const&, int)"),
    Frame("/home/quinn/acme/secret_kernel.cu", 12, "secret"),
    Frame("C:\\Users\\quinn\\acme\\secret.pyd", 3, "secret"),
    Frame("torch/acme_train.py", 4, "secret"),
    Frame("acme.ipy", 5, "secret"),
    Frame("??", 0, "void at::native::launch<acme::Secret>(acme::Secret)"),
)


@pytest.mark.parametrize("frame", HIDDEN, ids=str)
def test_code_of_any_language_is_hidden(frame: Frame) -> None:
    builder = TraceBuilder()
    builder.event(Action.ALLOC, 0, 4, stack=(frame,))
    snapshot = Snapshot(segments=(), traces=(builder.build(),))
    assert "quinn" not in repr(redacted(snapshot, "paths"))
    (place,) = redacted(snapshot, "source").traces[0].stacks[1]
    assert (place.filename, place.name) == ("??" if frame.filename == "??" else "file1.py", "function1")
    assert place.line <= 1


@pytest.mark.parametrize(
    ("function", "public"),
    [
        ("at::empty(c10::ArrayRef<long>)", True),
        ("void at::native::(anonymous namespace)::fill<std::complex<float>>(at::Tensor const&)", True),
        ("at::native::add_kernel (C++)", True),
        ("(no stack)", True),
        ("std::vector<at::Tensor> acme::split(at::Tensor)", False),
        ("(anonymous namespace)::secret(at::Tensor)", False),
        ("secret", False),
    ],
)
def test_what_is_pytorchs_own(function: str, public: bool) -> None:
    assert is_public(function) == public
