"""Why a run failed and what to do: the sentences and tables of a verdict, and the lines of code that hold memory.

The headline of a verdict is worded where the verdict is made: ``oomscope/snapshot/judge/headline.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from oomscope.report import parts
from oomscope.report.sentences import category_text, count, in_module, site_text
from oomscope.report.stacks import NO_STACKS, Stacks
from oomscope.snapshot.sites import Site, SiteBytes, brief_name, over_layers
from oomscope.snapshot.verdict_types import FixTried, Gap, Verdict
from oomscope.torch_versions import CONF_VARIABLE
from oomscope.units import format_size

LESS: Final = "reduce live memory"
"""Advice on too much live memory of unknown kind; see ``what_to_reduce``."""
LINE_TABLE: Final = "lines"
"""Id of the table of code lines in a page that has one, in which charts look lines up."""
SHOWN: Final = 8
"""Lines of code in a table on a terminal."""


def verdict_line(verdict: Verdict) -> parts.Line:
    """Return the verdict in one sentence, after its kind where something failed or grows."""
    if verdict.kind == "headroom" and not verdict.tags:
        return parts.Line(text=verdict.headline)
    return parts.Line(label="Verdict", strong=kind_text(verdict), text=f". {verdict.headline}")


def verdict_parts(
    verdict: Verdict, *, has_card: bool = True, variable: str = CONF_VARIABLE, less: str | None = None
) -> Iterator[parts.Part]:
    """Yield the verdict, what to do, and the free memory that could not serve the request."""
    yield verdict_line(verdict)
    if text := advice_text(verdict, has_card=has_card, variable=variable, less=less):
        yield parts.advice(text)
    if verdict.kind == "fragmentation":
        yield gap_table(verdict.gaps)


def gap_table(gaps: Iterable[Gap]) -> parts.Table:
    """Return the reserved and free bytes that could not serve the request, by reason."""
    ordered = sorted((gap for gap in gaps if gap.bytes), key=lambda gap: -gap.bytes)
    return parts.Table(
        title="Free but unusable memory",
        columns=parts.columns("size:Bytes", "Why they cannot serve the request"),
        rows=[(gap.bytes, gap.text or gap.reason.replace("_", " ")) for gap in ordered],
        hint="They sum to what the process may use less what was live at the failure.",
    )


def fix_table(verdict: Verdict, title: str, *, has_margin: bool = True) -> parts.Table:
    """Return every allocator setting that was tried, with what came out; ``has_margin``: the card is known."""
    is_run = any(fix.how == "run" for fix in verdict.tried)
    by, margin = ["By"] if is_run else [], ["size:Margin"] if has_margin else []
    return parts.Table(
        title=title,
        columns=parts.columns("Setting", *by, "Outcome", "size:Peak reserved", *margin, "count:Retries", ""),
        rows=[
            (
                fix.name,
                *(["run" if fix.how == "run" else "replay"] if is_run else []),
                parts.Cell(text=fix_outcome(fix), tone="good" if fix.survives else "bad"),
                fix.peak_reserved_bytes,
                *([fix.margin_bytes] if has_margin else []),
                fix.retries,
                fix.note,
            )
            for fix in verdict.tried
        ],
        hint="Run: the whole program ran again under the setting. Replay: its requests were replayed by an emulated "
        "allocator. The margin is what is left of the card at the peak; after a failure, what is missing.",
    )


def tried_title(verdict: Verdict) -> str:
    """Return the title of the table of settings."""
    if verdict.confirmed:
        return "Allocator settings tried, by running the whole program again or by replaying its allocations"
    return "Allocator settings tried on the same allocations"


def untried_text(verdict: Verdict) -> str | None:
    """Return which settings were not run although they were candidates; None where all were."""
    listed = ", ".join(verdict.untried)
    return f"not run, beyond the limits of number and time: {listed}" if listed else None


def kind_text(verdict: Verdict) -> str:
    """Return the verdict's kind with its tags, ``fragmentation (undecided)``, or the tags where nothing failed.

    A leak comes first where it is the cause of what failed: ``leak (capacity)``.
    """
    if verdict.kind == "headroom" and verdict.tags:
        return "; ".join(verdict.tags)
    text = verdict.kind + (", uncured" if verdict.uncured else "")
    if _is_caused_by_leak(verdict):
        return f"leak ({'; '.join([text, *(tag for tag in verdict.tags if tag != 'leak')])})"
    return f"{text} ({'; '.join(verdict.tags)})" if verdict.tags else text


def _is_caused_by_leak(verdict: Verdict) -> bool:
    """Whether what leaked would have served the request: what was short of it, or all of it where enough was free."""
    leak, requested = verdict.leak, verdict.requested_bytes
    if leak is None or requested is None or verdict.kind not in {"capacity", "fragmentation"}:
        return False
    lacking = verdict.wanted_bytes - verdict.available_bytes if verdict.kind == "capacity" else requested
    return leak.bytes_per_iteration * leak.iterations >= lacking


def fix_outcome(fix: FixTried) -> str:
    """Return how the replay or the run under one setting came out."""
    if fix.how != "run":
        return "passes" if fix.survives else failed_when(fix.failed_event)
    if fix.survives:
        return "ran to the end, tight" if fix.is_tight else "ran to the end"
    return f"failed in {fix.failed_in}" if fix.failed_in else "failed"


def failed_when(event: int | None) -> str:
    """Return at which event a replay failed; those before the first are blocks older than the recording."""
    if event is None:
        return "fails"
    return "fails before the recording began" if event < 0 else f"fails at event {event:,}"


def advice_text(
    verdict: Verdict, *, has_card: bool = True, variable: str = CONF_VARIABLE, less: str | None = None
) -> str | None:
    """Return what to do: about what grows, then about the failure if something was tried.

    Args:
        verdict: what is known of the failure.
        has_card: whether the card is known; else nothing is said of how much room is left.
        variable: where the torch that failed reads its settings.
        less: which memory to reduce, where the demand exceeds the card and that is known.
    """
    advice = (_leak_advice(verdict, has_card=has_card), _failure_advice(verdict, variable, less))
    return "; ".join(text for text in advice if text) or None


def _failure_advice(verdict: Verdict, variable: str, less: str | None) -> str | None:
    if "foreign" in verdict.tags:
        end = "end the other processes on the card, let those of the program hold less, or use another card"
        return f"{end}: alone on it the same allocations pass"
    if "fraction" in verdict.tags:
        cure = f"{_fragmentation_advice(verdict, variable, less)}; or " if verdict.cured_by else ""
        return (
            f"{cure}raise torch.cuda.set_per_process_memory_fraction (or per_process_memory_fraction in {variable}), "
            "which refused the request although the device had enough free"
        )
    if verdict.kind == "fragmentation":
        return _fragmentation_advice(verdict, variable, less)
    if verdict.kind == "capacity":
        return less or f"peak demand exceeds the card; {LESS} (smaller batch, recompute, offload, parallelism)"
    if verdict.kind == "outside":
        return (
            "leave the library that failed some room: call torch.cuda.empty_cache() before it, cap PyTorch by "
            "torch.cuda.set_per_process_memory_fraction, or reduce live memory"
        )
    return None


def _fragmentation_advice(verdict: Verdict, variable: str, less: str | None) -> str:
    if verdict.cured_by:
        return _cure_advice(verdict, variable)
    remedy = _private_pools_advice(verdict)
    if verdict.uncured and verdict.put_off_by:
        return f"{verdict.put_off_by.name} only delays the failure; {remedy or less or LESS}"
    if "later: capacity" in verdict.tags and verdict.gets_past:
        return f"{verdict.gets_past.name} avoids this failure, but peak demand exceeds the card later; {less or LESS}"
    if verdict.uncured:
        return f"no allocator setting tried serves these allocations; {remedy or less or LESS}"
    if "undecided" in verdict.tags:
        return "record from the start of the process: the layout of older blocks decides whether a setting helps"
    return f"the replay does not reproduce this failure, so no setting is shown to help; {remedy or less or LESS}"


def _cure_advice(verdict: Verdict, variable: str) -> str:
    """Return the preferred setting, how far it is known to serve, and what to do where it leaves little."""
    cure, row = f"{variable}={verdict.cured_by[0]}", verdict.preferred
    if not verdict.confirmed and (rest := verdict.rest_exceeds):
        return (
            f"try {cure}: the recorded allocations pass under it; but if the iteration goes on like the last one, "
            f"{format_size(rest.needed_bytes)} are needed, more than this process may use: then {LESS}"
        )
    if not verdict.confirmed and verdict.ends_at_failure:
        return (
            f"try {cure}: the recorded allocations pass under it, but the recording ends with this failure; whether "
            "what follows fits, only a whole run tells (oomscope probe)"
        )
    if not verdict.confirmed or row is None:
        return f"set {cure}: the same allocations pass under it, to the end of the recording"
    room = f"set {cure}: the whole program ran under it, with {format_size(row.margin_bytes)} to spare"
    if not row.is_tight:
        return room
    return f"{room}, which is tight; {LESS} for a reliable run"


def _private_pools_advice(verdict: Verdict) -> str | None:
    """Return the remedy where most of what is free lies in private pools; None elsewhere.

    Source: PyTorch docs/source/notes/cuda.rst, "Graph memory management" and "Sharing memory across captures".
    """
    largest = max(verdict.gaps, key=lambda gap: gap.bytes, default=None)
    if largest is None or largest.reason != "private_pool":
        return None
    return (
        "use fewer private pools: free blocks of a torch.cuda.MemPool, or of a CUDA graph, cannot serve other pools; "
        "graphs replayed one at a time, in the order of their capture, can share one (torch.cuda.graph(g, pool=handle) "
        "with one handle = torch.cuda.graph_pool_handle())"
    )


def _leak_advice(verdict: Verdict, *, has_card: bool) -> str | None:
    """Return the remedy for a leak (PyTorch docs/source/notes/faq.rst), and how long it can wait."""
    leak = verdict.leak
    if leak is None:
        return None
    size = format_size(leak.bytes_per_iteration)
    more = f" and {count(leak.further_lines, 'further line')}" if leak.further_lines else ""
    culprit = f", most of it from {site_text(leak.site)}{more}" if leak.site else ""
    text = (
        f"{size} more stay alive after each iteration{culprit}: look for lists, caches and hooks that outlive it; a "
        "tensor that is kept holds its memory, and its graph unless detached, so keep loss.item() or .detach().cpu()"
    )
    if has_card and (left := iterations_left(verdict)) is not None:
        about = "at most" if verdict.available_is_bound else "about"
        text += f"; at this rate there is room for {about} {count(left, 'more iteration')}"
    return text


def iterations_left(verdict: Verdict) -> int | None:
    """Return after how many more iterations a leak fills the card; None where nothing leaks, or the run failed."""
    if verdict.leak is None or verdict.kind != "headroom":
        return None
    return max(0, verdict.available_bytes - verdict.reserved_bytes) // verdict.leak.bytes_per_iteration


def category_table(
    categories: Mapping[str, int], title: str, confidence: Mapping[str, str] | None = None
) -> parts.Table:
    """Return the bytes of each category, largest first, and their sum; ``confidence``: how sure each is."""
    total = sum(categories.values())
    ordered = sorted(((name, size) for name, size in categories.items() if size), key=lambda row: -row[1])
    sure = ["Confidence"] if confidence else []
    return parts.Table(
        title=title,
        columns=parts.columns("category:Category", "size:Bytes", "share:Share", *sure, "bar:"),
        rows=[
            (name, size, size / total, *([confidence[name]] if confidence else []), parts.bar(size, total))
            for name, size in ordered
        ],
        total=(parts.Cell(text="all"), total, 1.0 if total else None, *([""] if confidence else []), ""),
    )


@dataclass(frozen=True, kw_only=True)
class CodeLine:
    """Requested bytes of one line of code, over all modules that ran it."""

    site: Site
    bytes: int
    count: int
    category: str
    modules: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The module; ``h.*`` for the same module of several layers, of several the first and how many more."""
        if len(self.modules) == 1:
            return brief_name(self.modules[0])
        merged = list(dict.fromkeys(over_layers(module) for module in self.modules))
        if merged[:1] == ["*"]:
            return count(len(self.modules), "module")
        return " and ".join([*merged[:1], *([f"{len(merged) - 1} more"] if len(merged) > 1 else [])])


def code_lines(sites: Iterable[SiteBytes]) -> list[CodeLine]:
    """Return ``sites`` by line of code and category, largest first."""
    groups: dict[tuple[str, int, str, str], list[SiteBytes]] = {}
    for row in sites:
        groups.setdefault((row.site.file, row.site.line, row.site.function, row.category), []).append(row)
    found = [
        CodeLine(
            site=group[0].site,
            bytes=sum(row.bytes for row in group),
            count=sum(row.count for row in group),
            category=group[0].category,
            modules=tuple(dict.fromkeys(row.site.module for row in group if row.site.module)),
        )
        for group in groups.values()
    ]
    return sorted(found, key=lambda each: -each.bytes)


def line_table(
    title: str,
    sites: Iterable[SiteBytes],
    shown: int = SHOWN,
    *,
    modules: bool = True,
    name: str = "",
    stacks: Stacks = NO_STACKS,
) -> parts.Table:
    """Return the lines of code that hold most bytes, the others as one row, and the sum."""
    found = code_lines(sites)
    module = ["Module"] if modules else []
    table = parts.Table(
        title=title,
        name=name,
        columns=parts.columns("size:Bytes", "count:Blocks", "category:Category", "code:Line", *module),
        rows=[
            (
                each.bytes,
                each.count,
                each.category,
                stacks.cell(each.site, each.category),
                *([each.module] if modules else []),
            )
            for each in found
        ],
        total=(
            sum(each.bytes for each in found),
            sum(each.count for each in found),
            "",
            "all",
            *([""] if modules else []),
        ),
    )
    return parts.cut(table, shown, "line")


def holders(sites: Iterable[SiteBytes]) -> list[tuple[str, str, str]]:
    """Return the three lines of code that hold most: size, category and place."""
    return [
        (
            format_size(each.bytes),
            category_text(each.category),
            site_text(each.site) + in_module(each.module),
        )
        for each in code_lines(sites)[:3]
    ]
