"""A browser without a window, for the tests that open a page."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

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


TELL = """
const drive = () => {
  const found = {};
  STEPS
  const note = document.createElement("pre");
  note.id = "found";
  note.textContent = JSON.stringify(found);
  document.body.append(note);
};
const wait = () => (READY ? drive() : setTimeout(wait, 20));
wait();
"""


def driven(page: str, steps: str, folder: Path, ready: str = "true") -> dict[str, Any]:
    """Run ``steps``, which fill ``found``, on ``page`` once the expression ``ready`` holds; return ``found``."""
    script = TELL.replace("STEPS", steps).replace("READY", ready)
    file = folder / "driven.html"
    page = re.sub(r"<meta http-equiv=[^>]*>", "", page).replace("</body>", f"<script>{script}</script></body>")
    file.write_text(page, encoding="utf-8")
    done = browse(file, "--virtual-time-budget=8000", "--window-size=1200,1600")
    assert "CONSOLE" not in done.stderr
    seen = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert seen is not None, "the script did not come to its end"
    return json.loads(html.unescape(seen[1]))
