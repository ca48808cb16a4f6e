"""The pictures of the documentation, from the commands that docs/verdict.md names, and a page as Chromium shows it.

``make pictures`` draws them anew; it takes a minute.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOUR = Path(__file__).parents[2] / "fixtures" / "tour" / "build.py"
OOMSCOPE = (sys.executable, "-m", "oomscope")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
EXPANDABLE = ("--gpu", "h100-80gb", "allocator.conf=expandable_segments:True", "--snapshot", "expandable.pickle")


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
        folder = Path(temporary)

        def run(*command: str | Path, cwd: Path = folder / "trainer") -> None:
            subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)

        run(sys.executable, TOUR, "trainer", cwd=folder)
        run(*OOMSCOPE, "explain", "snap-0.oom.pickle.gz", "--png", "default.png", "--html", "page.html")
        run(*OOMSCOPE, "probe", "train.yaml", "--quiet", *EXPANDABLE)
        run(*OOMSCOPE, "explain", "expandable.pickle", "--png", "expandable.png")
        page = (folder / "trainer" / "page.html").as_uri()
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,1330")
        shoot = (browser, *options, f"--screenshot={folder / 'trainer' / 'page.png'}", page)
        subprocess.run(shoot, check=True, capture_output=True)  # it complains about a desktop that is not there
        for name in ("default.png", "expandable.png", "page.png"):
            shutil.copy(folder / "trainer" / name, out / name)


if __name__ == "__main__":
    draw(Path(sys.argv[1]).absolute() / "pictures")
