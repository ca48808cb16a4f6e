"""Installs some of NVIDIA's wheels that this Python's torch declares, in its versions: runtime, NVRTC and cuDNN.

    python -m tests.nvidia_wheels

With them `tests/integration/test_virtual_card.py` shows that none of their functions is called.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires


def install(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *words], check=True)


def main() -> None:
    declared = [requirement.partition(";")[0].strip() for requirement in requires("torch") or ()]
    toolkit = next(each.rpartition("==")[2] for each in declared if each.startswith("cuda-toolkit"))
    install(f"cuda-toolkit[cudart,nvrtc]=={toolkit}")  # which pins the two
    install("--no-deps", *(each for each in declared if each.startswith("nvidia-cudnn")))


if __name__ == "__main__":
    main()
