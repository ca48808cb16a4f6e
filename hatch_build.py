"""Hatchling's hook: compiles the virtual card into the wheel, and in place for an editable install.

``OOMSCOPE_CARD_TARGET`` compiles for another machine or an older glibc, by zig: ``x86_64-linux-gnu.2.28``. With
``none``, and elsewhere than on Linux, the wheel has no card and is for any machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))

from oomscope.errors import MachineUnfitError
from oomscope.virtual import build
from oomscope.virtual.build import platform_tag
from oomscope.virtual.sonames import CARD, FILES, KEEPER

TARGET = os.environ.get("OOMSCOPE_CARD_TARGET", "")
NO_CARD = "none"
ZIG = "ziglang>=0.13"


class CardHook(BuildHookInterface[Any]):
    """Builds the card where there is one: on Linux. Elsewhere the wheel has none and is for any machine."""

    def dependencies(self) -> list[str]:
        """Return the compiler from PyPI where the machine has none."""
        if not _has_card():
            return []
        return [ZIG] if TARGET or not build.own_compiler() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name what goes into the wheel."""
        if self.target_name != "wheel" or not _has_card():
            return
        out = Path(self.root, "build", f"card-{TARGET}") if TARGET else build.LIBRARIES
        try:
            build.build(out, target=TARGET)
            tags = [platform_tag(out / file) for file in (CARD, KEEPER)]
        except MachineUnfitError as error:
            sys.exit(f"oomscope: {error}")
        if version == "editable":
            return
        build_data["pure_python"] = False
        newest = max(tags, key=lambda tag: [int(number) for number in tag.split("_")[1:3]])  # of glibc
        build_data["tag"] = f"py3-none-{newest}"
        for file in FILES:
            build_data["force_include"][str(out / file)] = f"oomscope/virtual/lib/{file}"


def _has_card() -> bool:
    return TARGET != NO_CARD and (bool(TARGET) or sys.platform.startswith("linux"))
