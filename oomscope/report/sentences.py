"""Words that all reports share: counts, sizes, moments, lines of code, durations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from oomscope.bisect.vcs.repository import ABBREVIATED
from oomscope.printable import one_line
from oomscope.probe.job import Progress
from oomscope.snapshot.read.rank_files import LeftOut, Unread
from oomscope.snapshot.sites import Site
from oomscope.units import format_size


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 probe``, ``2 probes``, ``2 searches``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def stage_text(progress: Progress) -> str:
    """Return ``step 1 of 2``."""
    return f"{progress.stage} {progress.done} of {progress.total}" if progress.total else progress.stage


def percent(part: int, whole: int) -> str:
    """Return ``part`` of ``whole`` as ``12.3 %``; a dash where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def known_size(size: int | None, *, signed: bool = False) -> str:
    """Return ``size`` for a table; a dash where it is not known."""
    return "-" if size is None else format_size(size, signed=signed)


def site_text(site: Site | None) -> str:
    """Return ``…/model/mlp.py:88 forward``; of a place without a file, such as an operator, its name."""
    if site is None:
        return "an unknown line"
    return site.brief


def in_module(module: str) -> str:
    """Return the end of a sentence that names a module; empty without one that says anything."""
    if module in {"", "*"}:
        return ""
    return f" in {f'module {module}' if module.isdigit() else module}"


def category_text(category: str) -> str:
    """Return a category as words."""
    return category.replace("_", " ")


def unread_text(unread: Unread) -> str:
    """Return which snapshot file could not be read, and why."""
    return f"{one_line(unread.file)} cannot be read ({unread.reason})"


def left_out_texts(left_out: Sequence[LeftOut]) -> Iterator[str]:
    """Yield which files of a folder are left out, and why: a line a rank."""
    for rank in dict.fromkeys(each.rank for each in left_out):
        names = [one_line(PurePath(each.file).name) for each in left_out if each.rank == rank]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        why = "their rank is unknown" if rank is None else f"another file of rank {rank} was taken"
        yield f"left out: {shown}; {why}"


def moment_text(iteration: int, phase: str, microbatch: int = -1) -> str:
    """Return ``backward of iteration 1, microbatch 3``, leaving out what is unknown, and the first microbatch.

    Most programs have no other.
    """
    named = "another part" if phase == "other" else phase
    text = named or ("an unknown phase" if iteration < 0 else "")
    if iteration >= 0:
        text += f"{' of ' if text else ''}iteration {iteration}"
    return f"{text}, microbatch {microbatch}" if microbatch > 0 else text


def date_text(date: str) -> str:
    """Return an ISO 8601 date and time for people: ``2025-01-06 19:24 UTC``, another zone as ``+05:30``."""
    day, separator, rest = date.partition("T")
    if not separator:
        return date
    zone = rest.removeprefix(rest[:8])
    return f"{day} {rest[:5]} {'UTC' if zone in {'+00:00', 'Z'} else zone}".rstrip()


def duration_text(seconds: float) -> str:
    """Return ``4.2 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_seconds(seconds: float) -> str:
    """Return ``1.23 s``, ``45.6 ms``, ``1,234 s``."""
    return f"{three_digits(seconds)} s" if seconds >= 1 else f"{three_digits(1000 * seconds)} ms"


def slowdown_text(share: float | None) -> str:
    """Return ``+3.2 %``; a dash where it is not known."""
    return "-" if share is None else f"{100 * share:+.1f} %"


def three_digits(number: float) -> str:
    """Return three significant digits, and every digit before the point: ``1.23``, ``45.6``, ``1,234``."""
    return f"{number:,.0f}" if abs(number) >= 999.5 else f"{number:.3g}"


def short_hash(commit: str) -> str:
    """Return the beginning of a hash."""
    return commit[:ABBREVIATED]


def shortened(text: str, width: int) -> str:
    """Return ``text`` in at most ``width`` characters, cut in the middle: beginning and end distinguish texts."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
