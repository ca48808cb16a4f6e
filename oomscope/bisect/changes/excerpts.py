"""What a commit says and changes, as a page shows it: its message, its hunks, and the code around lines that grew.

Of a large commit the hunks come first that wrote lines whose bytes differ; what is beyond the limits is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from oomscope.bisect.changes.hunks import DIFF
from oomscope.bisect.results.growth import SiteGrowth
from oomscope.bisect.results.result import CommitCulprit
from oomscope.bisect.results.sections import CodeLine, Excerpt
from oomscope.bisect.vcs.git import Git
from oomscope.bisect.vcs.patches import Hunk, parse_patch
from oomscope.bisect.vcs.repository import Commit, Repository
from oomscope.bisect.vcs.source_text import Source
from oomscope.errors import GitError

MOST_FILES: Final = 200
"""Files of a commit whose hunks are read."""
MOST_CHANGED: Final = 2000
"""Lines that a file changes by; more than that are generated or copied, and nobody reads them."""
MOST_LINES: Final = 400
"""Lines of all hunks together."""
LONGEST: Final = 200
"""Characters of a line."""
SURROUNDED: Final = 8
"""Lines outside the change whose surroundings are shown: those that changed most."""
AROUND: Final = 3
"""Lines shown above and below such a line."""


def with_change(culprit: CommitCulprit, repository: Repository, before: Commit, source: Source) -> CommitCulprit:
    """Return ``culprit`` with its message and its change; as it is where git lacks them."""
    git = repository.trusted_git
    try:
        message = git.text("log", "-1", "--format=%B", culprit.commit, "--").strip()
        paths, unread = _readable(git, before.hash, culprit)
        patch = git.output("diff-tree", *DIFF, before.hash, culprit.commit, "--", *paths) if paths else b""
    except GitError:
        return culprit
    hunks = parse_patch(patch)
    ordered = sorted(hunks, key=lambda hunk: not _grew_in(hunk, culprit.sites))
    shown, left = [], MOST_LINES
    for hunk in ordered:
        excerpt = _of_hunk(hunk)
        if len(excerpt.lines) <= left:
            shown.append(excerpt)
            left -= len(excerpt.lines)
    around = tuple(_surroundings(culprit.sites, shown, source))
    left_out = len(hunks) - len(shown) + unread
    return replace(culprit, message=message, hunks=tuple(shown), left_out=left_out, around=around)


def _readable(git: Git, before: str, culprit: CommitCulprit) -> tuple[list[str], int]:
    """Return the paths of text files that change by few lines, those with lines that grew first, and how many not."""
    grown = {row.site.file for row in culprit.sites if row.site}
    rows = git.listed("diff-tree", "-r", "-z", "--numstat", "--no-renames", before, culprit.commit, "--")
    found = []
    for row in rows:
        added, removed, path = row.split("\t", 2)
        if added != "-" and int(added) + int(removed) <= MOST_CHANGED:
            found.append(path)
    shown = sorted(found, key=lambda path: path not in grown)[:MOST_FILES]
    return [f":(top,literal){path}" for path in shown], len(rows) - len(shown)


def _grew_in(hunk: Hunk, sites: Sequence[SiteGrowth]) -> bool:
    return any(row.site and row.site.file == hunk.path and row.site.line in hunk.added | hunk.removed for row in sites)


def _of_hunk(hunk: Hunk) -> Excerpt:
    """Return the lines of ``hunk`` with the numbers that they have after the change, or had before it."""
    lines, old, new = [], max(1, hunk.old_start), max(1, hunk.new_start)
    for raw in hunk.body.split(b"\n")[:-1]:
        mark, text = raw[:1].decode("ascii", "replace"), _text(raw[1:].decode(errors="replace"))
        if mark not in {" ", "+", "-"}:
            continue
        lines.append(CodeLine(mark, old if mark == "-" else new, text))
        old, new = old + (mark != "+"), new + (mark != "-")
    return Excerpt(path=hunk.path, section=hunk.section, lines=tuple(lines))


def _surroundings(sites: Sequence[SiteGrowth], shown: Sequence[Excerpt], source: Source) -> Iterator[Excerpt]:
    """Yield the code around the lines that grew most and that no hunk shows."""
    seen = {(each.path, line.number) for each in shown for line in each.lines if line.mark != "-"}
    asked = 0
    for row in sorted(sites, key=lambda row: -row.delta_bytes):
        site = row.site
        if site is None or row.delta_bytes <= 0 or (site.file, site.line) in seen or asked == SURROUNDED:
            continue
        asked += 1
        text = source.lines(site.file) or ()
        if site.line <= len(text):
            first = max(1, site.line - AROUND)
            numbered = enumerate(text[first - 1 : site.line + AROUND], start=first)
            lines = tuple(CodeLine(" ", number, _text(line)) for number, line in numbered)
            seen |= {(site.file, line.number) for line in lines}
            yield Excerpt(path=site.file, section=site.function, lines=lines)


def _text(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
