"""Measure published rows of memory again on the virtual card: recorded, measured, difference.

    python tests/conformance/public_rows.py FILE [--only TEXT] [--sources FOLDER]

FILE is a CSV of rows with the programs behind them; those of grade A and A- are run. FOLDER (``public-rows``) holds
clones of Liger-Kernel and peft; ``transformers-VERSION`` and ``megatron-core-0.16.1`` folders (``pip install --no-deps
--target``, the first with the tokenizers and huggingface_hub that fit); and ``torch-VERSION`` environments: torch and
its triton (``pip install --no-deps``), and on their path oomscope's own packages. A row is run with the torch that it
names, else with the one that was newest when it was recorded (``published/running.py``). What was measured is kept in
FOLDER, so a later call goes on. The rules by which rows are excluded stand in ``published/exclusions.py``, known
mechanisms in ``published/mechanisms.py``. The exit code is 0 only where every miss is explained.
"""

from __future__ import annotations

import sys

from published.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], __doc__ or ""))
