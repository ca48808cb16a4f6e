"""The pictures of the documentation: charts as files, and the page of each command as Chromium shows it.

``make pictures`` draws them anew; it takes some minutes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "fixtures" / "tour" / "build.py"
BEFORE, AFTER = "tinytrain-v0.1.pickle.gz", "tinytrain-v0.2.pickle.gz"
COPIED = (*(ROOT / "fixtures" / "snapshots" / name for name in (BEFORE, AFTER)), ROOT / "docs/examples/night.html")
OOMSCOPE = (sys.executable, "-m", "oomscope")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
EXPANDABLE = ("--gpu", "h100-80gb", "allocator.conf=expandable_segments:True", "--snapshot", "expandable.pickle")
GRID = ("--preset", "gpt-tiny", "--limit", "1.35GiB", "data.micro_batch_size=1,8,32,64", "recompute=none,full")
HEIGHTS = {"page": 1330, "probe": 1000, "diff": 900, "bisect": 1300, "night": 900, "sweep": 800}
"""Of each page the pixels that are shown, from its top."""


def draw(out: Path) -> None:
    """Write the pictures into ``out``.

    Raises:
        subprocess.CalledProcessError: a command failed; what it says is on standard error.
        SystemExit: there is no Chromium.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("no chromium: install it (Debian: apt install chromium)")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary) / "trainer"

        def run(*command: str | Path, cwd: Path = work) -> None:
            subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)

        run(sys.executable, TOUR, "trainer", cwd=work.parent)
        for path in COPIED:
            shutil.copy(path, work)
        run(*OOMSCOPE, "explain", "snap-0.oom.pickle.gz", "--png", "default.png", "--html", "page.html")
        run(*OOMSCOPE, "probe", "train.yaml", "--quiet", *EXPANDABLE, "--html", "probe.html")
        run(*OOMSCOPE, "explain", "expandable.pickle", "--png", "expandable.png")
        run(*OOMSCOPE, "diff", BEFORE, AFTER, "--html", "diff.html")
        run(*OOMSCOPE, "sweep", *GRID, "--quiet", "--html", "sweep.html")
        run(*OOMSCOPE, "demo", "demo")
        shutil.copy(work / "demo" / "bisect.html", work)
        for name, height in HEIGHTS.items():
            options = (
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--window-size=1200,{height}",
            )
            shoot = (browser, *options, f"--screenshot={work / name}.png", (work / f"{name}.html").as_uri())
            subprocess.run(shoot, check=True, capture_output=True)  # it complains about a desktop that is not there
        for name in ("default", "expandable", *HEIGHTS):
            shutil.copy(work / f"{name}.png", out)


if __name__ == "__main__":
    draw(Path(sys.argv[1]).absolute() / "pictures")
