"""The wheels and the sdist: what they hold, and what an environment can do that has a wheel and what it declares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from oomscope.errors import ExitCode
from oomscope.virtual import build
from oomscope.virtual.build import platform_tag
from oomscope.virtual.sonames import CARD, FILES
from tests.made_once import made_once

ROOT = Path(__file__).resolve().parents[2]
BEFORE, AFTER = (ROOT / "fixtures" / "snapshots" / f"tinytrain-v0.{release}.pickle.gz" for release in (1, 2))
NIGHT = ROOT / "docs" / "examples" / "night.json"
SUITE = "cases: [{name: gpt-tiny, preset: gpt-tiny}]\n"
EACH = """\
import json, shlex, sys
from oomscope.cli.main import run
print(json.dumps([run(shlex.split(command)) for command in sys.argv[1:]]))
"""

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only a wheel for Linux has a card"),
    pytest.mark.skipif(not build.own_compiler(), reason="no compiler"),
]


def built(kind: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Have hatchling build a wheel or an sdist as pip has it built."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    environment = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel for this machine."""

    def build_wheel(folder: Path) -> None:
        done = built("wheel", folder)
        assert done.returncode == 0, done.stderr

    (wheel,) = made_once(tmp_path_factory, "dist", build_wheel).glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment without extras."""
    folder = made_once(tmp_path_factory, "base", lambda folder: environment_with(wheel, folder))
    return Path(sysconfig.get_path("scripts", vars={"base": str(folder)}))


def environment_with(wheel: Path, folder: Path, *extras: str) -> Path:
    """Make an environment of ``wheel`` and the packages that it declares, and return the folder of its programs.

    The packages are links to those of this environment; what is missing here, such as NVIDIA's, is missing there.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    names = ("scripts", "purelib")
    programs, place = (Path(sysconfig.get_path(name, vars={"base": str(folder)})) for name in names)
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet"]
    quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, env=quiet)
    (information,) = place.glob("oomscope-*.dist-info")
    waiting = [(metadata.PathDistribution(information), set(extras))]
    linked = {"oomscope"}
    while waiting:
        distribution, wanted = waiting.pop()
        for requirement in map(Requirement, distribution.requires or []):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in wanted or {""}):
                continue
            if requirement.name in linked or not (found := list(metadata.distributions(name=requirement.name))):
                continue
            linked.add(requirement.name)
            waiting.append((found[0], requirement.extras))
            for top in {file.parts[0] for file in found[0].files or []} - {"..", "__pycache__"}:
                (place / top).symlink_to(Path(str(found[0].locate_file(top))))
    return programs


def run_in(programs: Path, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program of an environment in ``folder``, without the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    command = [str(programs / words[0]), *words[1:]]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def run_each(
    programs: Path, folder: Path, commands: Iterable[str]
) -> tuple[list[int], subprocess.CompletedProcess[str]]:
    """Run command lines of oomscope, one after the other in one process, and return their exit codes."""
    done = run_in(programs, folder, "python", "-P", "-c", EACH, *commands)
    return json.loads(done.stdout.splitlines()[-1]), done


def test_the_wheel_has_the_libraries_and_no_sources(wheel: Path) -> None:
    assert wheel.name.endswith(f"-py3-none-{platform_tag(build.LIBRARIES / CARD)}.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"oomscope/virtual/lib/{file}" for file in FILES} <= names
    assert not [name for name in names if "csrc" in name or "virtual/build.py" in name or "/." in name]


def test_the_wheel_for_any_machine_has_all_but_the_card(wheel: Path, tmp_path: Path) -> None:
    done = built("wheel", tmp_path, OOMSCOPE_CARD_TARGET="none")
    assert done.returncode == 0, done.stderr
    (other,) = tmp_path.glob("*.whl")
    assert other.name.endswith("-py3-none-any.whl")
    names, all_names = (set(zipfile.ZipFile(each).namelist()) for each in (other, wheel))
    assert names == {name for name in all_names if not name.startswith("oomscope/virtual/lib/")}


def test_the_sdist_has_the_sources_and_no_libraries(tmp_path: Path) -> None:
    done = built("sdist", tmp_path)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"hatch_build.py", "requirements.lock", "oomscope/virtual/csrc/card.h", "oomscope/virtual/build.py"} <= names
    assert not [name for name in names if name.startswith("oomscope/virtual/lib/")]


def test_without_a_compiler_the_build_ends_with_one_line(tmp_path: Path) -> None:
    sitecustomize = "import importlib.util as u; find = u.find_spec\n"
    sitecustomize += "u.find_spec = lambda name, *rest: None if name == 'ziglang' else find(name, *rest)\n"
    (tmp_path / "sitecustomize.py").write_text(sitecustomize)
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path), "OOMSCOPE_CARD_TARGET": "aarch64-linux-gnu.2.28"}
    done = built("wheel", tmp_path / "dist", **environment)
    assert done.returncode == 1
    assert done.stderr == "oomscope: virtual card: no compiler for aarch64-linux-gnu.2.28; pip install ziglang\n"


def test_without_torch_files_are_read_compared_and_judged(base: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.yaml").write_text(SUITE)
    commands = {
        f"explain {AFTER} --html page.html --csv tables": ExitCode.OK,
        f"diff {BEFORE} {AFTER} --html difference.html": ExitCode.OK,
        f"replay {AFTER} --conf expandable_segments:True": ExitCode.OK,
        f"gate update memory.yaml --from {NIGHT} --case gpt-tiny": ExitCode.OK,
        f"gate report {NIGHT} --html night.html --comment comment.md": ExitCode.REGRESSION,
        f"gate import {NIGHT} --ledger ledger.sqlite": ExitCode.OK,
        "config show --preset gpt-tiny": ExitCode.OK,
    }
    codes, done = run_each(base, tmp_path, commands)
    assert codes == list(commands.values()), done.stderr


def test_without_torch_what_measures_says_in_one_line_what_to_install(base: Path, tmp_path: Path) -> None:
    texts = {
        "memory.yaml": SUITE,
        "good.yaml": "preset: gpt-tiny",
        "bad.yaml": "preset: gpt-tiny\nmodel: {num_layers: 3}",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    commands = [
        "probe --preset gpt-tiny",
        "advise --preset gpt-tiny --limit 2GiB",
        "sweep --preset gpt-tiny recompute=none,full",
        "bisect good.yaml..bad.yaml --state state",
        "demo",
    ]
    codes, done = run_each(base, tmp_path, commands)
    assert codes == [ExitCode.MACHINE_UNFIT] * len(commands), done.stderr
    assert done.stderr.splitlines() == ["oomscope: torch is not installed; pip install 'oomscope[probe]'"] * len(
        commands
    )
    codes, done = run_each(base, tmp_path, ["gate run memory.yaml --no-ledger", "doctor"])
    assert codes == [ExitCode.MACHINE_UNFIT] * 2
    assert done.stdout.count("pip install 'oomscope[probe]'") == 3


def test_without_torch_a_program_brings_its_own(base: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nblock = torch.empty(2**20, device='cuda')\n")
    probe = ("oomscope", "probe", "--json", "--backend", "virtual", "--", sys.executable, "train.py")
    done = run_in(base, tmp_path, *probe)
    assert done.returncode == ExitCode.OK, done.stderr
    assert json.loads(done.stdout)["peak"]["requested_bytes"] == 2**22


def test_with_the_extra_it_probes_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    programs = environment_with(wheel, tmp_path / "venv", "probe")
    no_tools = tmp_path / "bin"
    no_tools.mkdir()
    probe = ("oomscope", "probe", "--preset", "gpt-tiny", "--backend", "virtual", "--json")
    done = run_in(programs, tmp_path, *probe, PATH=str(no_tools))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"] == "fits"
    done = run_in(programs, tmp_path, "oomscope", "demo", "--json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / json.loads(done.stdout)["folder"] / "tinytrain" / "config.yaml").is_file()
