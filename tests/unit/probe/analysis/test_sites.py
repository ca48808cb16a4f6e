from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

import oomscope
from oomscope.probe.analysis.sites import SiteRule, site_rule
from oomscope.probe.job import BundledTarget, HarnessTarget, ProbeJob
from oomscope.snapshot.trace import Frame

PACKAGE = Path(oomscope.__file__).parent
TORCH = Frame(f"{sysconfig.get_paths()['purelib']}/torch/nn/modules/linear.py", 1, "forward")
PROBE = Frame(f"{PACKAGE}/probe/measure.py", 1, "run_once")
STDLIB = Frame(f"{sysconfig.get_paths()['stdlib']}/contextlib.py", 1, "inner")
CPP = Frame("??", 0, "at::native::add")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    path = tmp_path / "checkout"
    path.mkdir()
    return path


@pytest.fixture
def rule(checkout: Path) -> SiteRule:
    target = HarnessTarget(harness=str(checkout.parent / "harness.py"), repo=str(checkout))
    return site_rule(ProbeJob(target=target))


def test_the_innermost_line_of_the_checkout_is_the_site(rule: SiteRule, checkout: Path) -> None:
    inner = Frame(f"{checkout}/lib/attention.py", 5, "attend")
    outer = Frame(f"{checkout}/model.py", 9, "forward")
    harness = Frame(f"{checkout.parent}/harness.py", 2, "step")
    site = rule.site_of((CPP, TORCH, inner, outer, harness, PROBE), "blocks.0.attn")
    assert str(site) == "lib/attention.py:5 attend"
    assert site.module == "blocks.0.attn"


def test_the_checkout_comes_before_the_harness_even_if_further_out(rule: SiteRule, checkout: Path) -> None:
    harness = Frame(f"{checkout.parent}/harness.py", 2, "loss")
    model = Frame(f"{checkout}/model.py", 9, "forward")
    assert str(rule.site_of((TORCH, harness, model, harness))) == "model.py:9 forward"
    assert str(rule.site_of((TORCH, harness, PROBE))) == "harness.py:2 loss"


def test_what_the_job_puts_first_on_the_path_comes_before_the_checkout(checkout: Path) -> None:
    """The versions of packages that a search lays over the installed ones: they are what changes."""
    folder = checkout.parent / "packages" / "0123abcd"
    target = HarnessTarget(harness=str(checkout.parent / "harness.py"), repo=str(checkout))
    rule = site_rule(ProbeJob(target=target, environment={"PYTHONPATH": f"{folder}:/home/own"}))
    package, own = Frame(f"{folder}/tinywide/core.py", 7, "widen"), Frame(f"{checkout}/model.py", 9, "forward")
    assert str(rule.site_of((TORCH, package, own, PROBE))) == "tinywide/core.py:7 widen"
    inside_torch = Frame(f"{folder}/torch/nn/functional.py", 3, "linear")
    assert str(rule.site_of((inside_torch, own, PROBE))) == "model.py:9 forward"


def test_a_cell_of_a_notebook_has_one_name_in_all_runs(rule: SiteRule) -> None:
    cells = [Frame(f"/tmp/ipykernel_{process}/2691952220.py", 3, "step") for process in (25674, 7)]
    assert [str(rule.site_of((TORCH, cell))) for cell in cells] == ["ipykernel/2691952220.py:3 step"] * 2


def test_a_relative_name_is_of_a_file_where_the_program_starts(checkout: Path) -> None:
    """As of code that ``runpy.run_path("train.py")`` runs; after a change of folder nobody can tell."""
    (checkout / "part").mkdir()
    (checkout / "part" / "train.py").touch()
    target = HarnessTarget(harness=str(checkout.parent / "harness.py"), repo=str(checkout), folder="part")
    rule = site_rule(ProbeJob(target=target))
    outer = Frame(f"{checkout}/part/run.py", 2, "<module>")
    for name in ("train.py", "./train.py", "../part/train.py"):
        assert str(rule.site_of((TORCH, Frame(name, 10, "step"), outer))) == "part/train.py:10 step"
    assert str(rule.site_of((TORCH, Frame("gone.py", 10, "step"), outer))) == "part/run.py:2 <module>"
    assert str(rule.site_of((CPP, TORCH, outer))) == "part/run.py:2 <module>"


def test_other_code_of_the_user_comes_before_libraries(rule: SiteRule) -> None:
    shared = Frame("/opt/team/shared.py", 3, "blend")
    assert str(rule.site_of((TORCH, STDLIB, shared, PROBE))) == "/opt/team/shared.py:3 blend"


def test_a_checkout_behind_a_symbolic_link_is_recognised(checkout: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(checkout)
    rule = site_rule(ProbeJob(target=HarnessTarget(harness="/h/harness.py", repo=str(link))))
    for spelled in (checkout, link):
        assert rule.site_of((Frame(f"{spelled}/model.py", 1, "f"),)).file == "model.py"


def test_the_bundled_models_own_line_is_the_site() -> None:
    rule = site_rule(ProbeJob(target=BundledTarget(config={})))
    model = Frame(f"{PACKAGE}/model/layers/mlp.py", 8, "forward")
    assert str(rule.site_of((TORCH, model, PROBE))) == "oomscope/model/layers/mlp.py:8 forward"


def test_equal_modules_of_a_list_are_one_group(rule: SiteRule, checkout: Path) -> None:
    stack = (Frame(f"{checkout}/model.py", 9, "forward"),)
    assert rule.group_of(stack, "layers.12.mlp.fc1") == rule.group_of(stack, "layers.3.mlp.fc1")
    assert rule.group_of(stack, "layers.12.mlp.fc1").module == "layers.*.mlp.fc1"
    assert rule.group_of((), "layers.1") is None


def test_an_environment_inside_the_checkout_is_no_code_of_the_checkout(tmp_path: Path) -> None:
    library = tmp_path / ".venv" / "lib" / "python3.13" / "site-packages"
    rule = site_rule(ProbeJob(target=HarnessTarget(harness="/h.py", repo=str(tmp_path))))
    linear = Frame(f"{library}/torch/nn/modules/linear.py", 1, "forward")
    package = Frame(f"{library}/torchtune/modules/attention.py", 9, "forward")
    model = Frame(f"{tmp_path}/model.py", 9, "forward")
    assert str(rule.site_of((linear, package, model))) == "model.py:9 forward"
    assert str(rule.site_of((linear, package))) == "torchtune/modules/attention.py:9 forward"
