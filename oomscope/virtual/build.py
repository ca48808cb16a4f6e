"""Compiles the virtual card: ``csrc`` and the generated stubs into ``lib``, and ``startup.c`` beside it.

Runs from the wheel's build hook, from an editable install and as ``python -m oomscope.virtual.build``. It needs a C and
a C++17 compiler: ``CC`` and ``CXX``, else ``cc`` and ``c++``, else the package ``ziglang``. An object file is kept
under a hash of all that went into it, so that only changed sources are compiled again. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from oomscope.errors import MachineUnfitError
from oomscope.files import held, write_whole
from oomscope.virtual.elf import read_elf
from oomscope.virtual.sonames import CARD, FILES, KEEPER, SONAMES, file_of
from oomscope.virtual.stubs import write_stubs

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE / "csrc"
LIBRARIES = PACKAGE / "lib"
STAMP = ".built"
_OBJECTS = ".objects"
_EMPTY = "empty.c"

_COMMON = ("-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")
_C = ("-std=c11", *_COMMON)
_CXX = ("-std=c++17", "-fvisibility-inlines-hidden", *_COMMON)
_LINK = (
    "-shared",
    "-pthread",
    "-static-libstdc++",
    "-static-libgcc",
    "-Wl,-Bsymbolic",  # calls among the card's own functions stay inside
    "-Wl,--no-undefined",
    "-Wl,--strip-debug",  # zig compiles with -g
    "-Wl,-z,nodelete",  # torch's threads call it until the process ends
)
_EXPORTS = (
    "cu*",
    "__cuda*",
    "nvml*",
    "nvrtc*",
    "nvJitLink*",
    "nvtx*",
    "nvshmem*",
    "nccl*",
    "pnccl*",
    "oomscope_card_*",
)
"""The only names that leave the library: the interfaces of NVIDIA's libraries, and the card's own."""

_EVERYWHERE = re.compile(r"(libc|libm|libdl|libpthread|librt)\.so\.\d|ld-linux-[a-z0-9-]+\.so\.\d")
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)(\.\d+)?")
_OLDEST = (2, 17)
"""Oldest glibc of 64-bit platforms in PEP 600; older symbols need no older tag."""


@dataclass(frozen=True)
class Compiler:
    """The commands that compile C and C++."""

    c: tuple[str, ...]
    cxx: tuple[str, ...]


def find_compiler(target: str = "") -> Compiler:
    """Return the compiler to use.

    Args:
        target: machine and libc to compile for, as zig writes them (``aarch64-linux-gnu.2.28``); empty: this machine,
            by whichever compiler there is. With a target it is always zig's.

    Raises:
        MachineUnfitError: there is none.
    """
    if not target and (own := own_compiler()):
        return own
    if importlib.util.find_spec("ziglang") is None:
        raise MachineUnfitError(
            "no C and C++ compiler" if not target else f"no compiler for {target}",
            where="virtual card",
            remedy="pip install ziglang" if target else "install gcc and g++, or pip install ziglang",
        )
    zig = (sys.executable, "-m", "ziglang")
    machine = ("-target", target) if target else ()
    return Compiler((*zig, "cc", *machine), (*zig, "c++", *machine))


def own_compiler() -> Compiler | None:
    """Return the machine's own C and C++ compiler, by ``CC`` and ``CXX`` where they are set; None where it has none."""
    c = tuple(shlex.split(os.environ.get("CC", ""))) or ("cc",)
    cxx = tuple(shlex.split(os.environ.get("CXX", ""))) or ("c++",)
    return Compiler(c, cxx) if shutil.which(c[0]) and shutil.which(cxx[0]) else None


def build(out: Path = LIBRARIES, *, sources: Path = SOURCES, target: str = "") -> bool:
    """Build the card's libraries in ``out``; return whether anything had to be built.

    Every library takes its name when it is whole: a process that has the old one mapped keeps it. Builds of the same
    folder wait for each other.

    Args:
        out: the folder of the libraries; made where it is missing.
        sources: the folder of the sources.
        target: as for :func:`find_compiler`.

    Raises:
        MachineUnfitError: there is no compiler, or it fails; with the first lines that it said.
    """
    out.mkdir(parents=True, exist_ok=True)
    with held(out / STAMP):
        stamp = _stamp(sources, target)
        if _is_current(out, stamp):
            return False
        _build(out, sources, find_compiler(target))
        write_whole(out / STAMP, stamp.encode(), force=True)
    return True


def _is_current(out: Path, stamp: str) -> bool:
    built = out / STAMP
    return built.is_file() and built.read_text() == stamp and all((out / file).is_file() for file in FILES)


def _stamp(sources: Path, target: str) -> str:
    """Return a hash of everything that decides what is built, except the version of the compiler."""
    scripts = (path for path in PACKAGE.glob("*.py") if path.stem in {"build", "sonames", "stubs"})
    files = [*sorted(path for path in sources.rglob("*") if path.is_file()), *sorted(scripts), PACKAGE / "startup.c"]
    parts = [os.environ.get("CC", ""), os.environ.get("CXX", ""), target]
    return _hash([*parts, *(f"{path.name}\0{path.read_text()}" for path in files)])


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0\0".join(parts).encode()).hexdigest()


def _build(out: Path, sources: Path, compiler: Compiler) -> None:
    objects = out / _OBJECTS
    objects.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".build-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        work = Path(folder)
        headers = _hash(path.read_text() for path in sorted(sources.rglob("*.h")))
        units = [*sorted(sources.rglob("*.c")), *sorted(sources.rglob("*.cpp")), *write_stubs(work)]
        compiled = list(pool.map(lambda unit: _compile(unit, sources, objects, compiler, headers), units))
        for stale in set(objects.iterdir()) - set(compiled):
            stale.unlink()
        _link_card(work, compiled, compiler)
        _run([*compiler.c, *_C, "-shared", "-s", "-o", KEEPER, str(PACKAGE / "startup.c")], folder=work)
        (work / _EMPTY).write_text("extern int nothing;\n")  # zig's linker wants a source
        list(pool.map(lambda soname: _link_empty(work, soname, compiler), SONAMES))
        for file in FILES:
            (work / file).replace(out / file)


def _compile(unit: Path, sources: Path, objects: Path, compiler: Compiler, headers: str) -> Path:
    command = [*compiler.cxx, *_CXX] if unit.suffix == ".cpp" else [*compiler.c, *_C]
    digest = _hash([*command, headers, unit.read_text()])[:16]
    compiled = objects / f"{unit.stem}-{digest}.o"
    if not compiled.is_file():
        part = compiled.with_suffix(".part")
        # The folder's own path stays out of what is compiled: names of sources are relative to it.
        source = unit.relative_to(sources) if unit.is_relative_to(sources) else unit
        _run([*command, "-I.", "-c", str(source), "-o", str(part)], folder=sources)
        part.replace(compiled)
    return compiled


def _link_card(folder: Path, objects: Sequence[Path], compiler: Compiler) -> None:
    exports = folder / "exports.map"
    exports.write_text(f"{{ global: {' '.join(f'{name};' for name in _EXPORTS)} local: *; }};\n")
    options = (*_LINK, f"-Wl,-soname,{CARD}", f"-Wl,--version-script={exports}")
    _run([*compiler.cxx, *map(str, objects), "-o", CARD, *options, "-ldl"], folder=folder)


def _link_empty(folder: Path, soname: str, compiler: Compiler) -> None:
    options = ("-shared", "-nostdlib", "-s", f"-Wl,-soname,{soname}", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN")
    _run([*compiler.c, *options, "-o", file_of(soname), _EMPTY, CARD], folder=folder)


def _run(command: Sequence[str], *, folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if done.stderr:
        sys.stderr.write(done.stderr)
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), f"status {done.returncode}")
        program = "zig" if "ziglang" in command else Path(command[0]).name
        raise MachineUnfitError(
            f"{program} fails: {said.strip()}", where="virtual card", remedy="see the compiler's output above"
        )


def platform_tag(library: Path) -> str:
    """Return the platform tag of a wheel whose only compiled code is ``library`` and what needs it.

    A wheel may be tagged ``manylinux_X_Y`` where it runs on every Linux with glibc X.Y or newer (PEP 600): it wants no
    newer symbol, and no library that is not everywhere.

    Raises:
        MachineUnfitError: it wants libraries or versions that a machine need not have.
        OSError, ValueError: it cannot be read.
    """
    elf = read_elf(library)
    foreign = [name for name in elf.needed if not _EVERYWHERE.fullmatch(name)]
    foreign += sorted({symbol.version for symbol in elf.wanted if symbol.version and not _GLIBC.match(symbol.version)})
    if foreign:
        raise MachineUnfitError(
            f"needs {', '.join(foreign)}, which is not on every Linux", where=str(library), remedy="link it statically"
        )
    versions = [match for symbol in elf.wanted if (match := _GLIBC.match(symbol.version))]
    major, minor = max([(int(match[1]), int(match[2])) for match in versions] + [_OLDEST])
    return f"manylinux_{major}_{minor}_{elf.machine}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build from the command line."""
    parser = argparse.ArgumentParser(prog="python -m oomscope.virtual.build", description="Compile the virtual card.")
    parser.add_argument("--out", type=Path, default=LIBRARIES, help="folder of the libraries (default: the package's)")
    parser.add_argument("--target", default="", help="cross-compile by zig, for example aarch64-linux-gnu.2.28")
    options = parser.parse_args(arguments)
    try:
        built = build(options.out.absolute(), target=options.target)
    except MachineUnfitError as error:
        sys.stderr.write(f"oomscope: {error}\n")
        return int(error.exit_code)
    sys.stdout.write(f"{'Built' if built else 'Up to date:'} {options.out / CARD}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
