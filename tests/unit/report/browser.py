"""A browser without a window, for the tests that open a page."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH to open the report with")


def browse(file: Path, *switches: str) -> subprocess.CompletedProcess[str]:
    """Open a page; return the elements as they ended up, and on stderr what it complained of."""
    return subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *("--no-first-run", "--enable-logging=stderr", f"--user-data-dir={file.parent / 'profile'}"),
            *("--dump-dom", *switches, file.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
