"""The report of a search: the answer, its evidence in tables, and the commands that repeat it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from oomscope.bisect.results.growth import SiteGrowth
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import BisectResult, CommitCulprit, KeyChange, KeysCulprit, ProbeRecord, StepRow
from oomscope.bisect.results.sections import CodeVsConfig, HunkChange, Narrowed, WalkedLine, Waterfall, levels
from oomscope.bisect.search.line import Answer
from oomscope.report import parts
from oomscope.report.commands import bisect_sentences
from oomscope.report.commands.probe import less_text
from oomscope.report.commands.search_status import Asked, Bracket, PlaceState, asked_on, bracket_of, place_states
from oomscope.report.parts import Span, columns, line
from oomscope.report.sentences import category_text, count, duration_text, known_size, short_hash, shortened
from oomscope.report.stacks import NO_STACKS, Stacks
from oomscope.report.verdict_text import LINE_TABLE, fix_table, verdict_parts
from oomscope.snapshot.sites import Site, brief_name
from oomscope.units import Bytes, format_size

ANSWER_TONES: Final = {Answer.GOOD: "good", Answer.BAD: "bad", Answer.UNTESTABLE: "warn"}
STEP_WIDTH: Final = 60
"""Characters of a commit in the table of steps."""
GROWTH_SHOWN: Final = 8
SUSPECTS_SHOWN: Final = 30
SITES_SHOWN: Final = 3
COLUMNS_SHOWN: Final = 48
"""Probes in the table of what each changed."""
PLACE_STATE_TEXTS: Final = {
    PlaceState.GOOD: "probed: good",
    PlaceState.BAD: "probed: bad",
    PlaceState.UNTESTABLE: "untestable",
    PlaceState.BEFORE: "not probed, before a good commit",
    PlaceState.AFTER: "not probed, after a bad commit",
    PlaceState.OPEN: "not probed, not ruled out",
}


class PageDetail(NamedTuple):
    """What a page shows beyond the report on a terminal."""

    change: Sequence[parts.Figure]
    """Message and changes of the commit at fault."""
    figures: Sequence[parts.Figure]
    """The range, and both runs over each other."""
    lines: int
    """Lines of code whose bytes differ."""
    stacks: Stacks
    """Stacks behind these lines."""
    address: Callable[[Site], str]
    """Returns the address of a line; empty where that is not known."""


def plan_report(plan: SearchPlan) -> list[parts.Part]:
    """Return what lies ahead of a search."""
    at_most = f"at most {count(plan.probes_at_most, 'probe')}, untestable ones apart"
    if plan.more_if:
        at_most += f"; more if {', or if '.join(plan.more_if)}"
    return [line(f"{plan.title}; {at_most}", "soft"), *map(parts.note, plan.notes)]


def bisect_report(result: BisectResult, page: PageDetail | None = None) -> Iterator[parts.Part]:
    """Yield the answer of a search with its evidence; on a ``page`` with every probe."""
    yield parts.BLANK
    tone = {"culprit": "bad", "no_culprit": "good"}.get(result.outcome, "warn")
    yield parts.status(bisect_sentences.heading(result), tone)
    yield line(bisect_sentences.message(result))
    if next_step := bisect_sentences.remedy(result):
        yield parts.Line(label="What to do", text=next_step)
    yield from (parts.note(note, "") for note in result.notes)
    yield line(bisect_sentences.search_text(result), "soft")
    rows = bisect_sentences.before_and_after(result)
    if isinstance(result.culprit, CommitCulprit):
        rows.insert(0, ("Author", f"{result.culprit.author}, {result.culprit.date}"))
    if heaviest := bisect_sentences.heaviest_step(result):
        rows.append(("Heaviest", heaviest))
    if rows:
        yield parts.Facts(rows=rows)
    if pinned := bisect_sentences.pinned_text(result):
        yield line(pinned)
    if result.first_bad and result.verdict:
        yield from verdict_parts(result.verdict, less=less_text(result.first_bad.result))
    yield from (*page.change, *page.figures) if page else ()
    yield from _sections(result, page)


def _sections(result: BisectResult, page: PageDetail | None) -> Iterator[parts.Part]:
    yield from _culprit_parts(result)
    if result.suspects:
        yield _suspect_table(result)
    if result.sites:
        yield growth_table(result.sites, unchanged=bisect_sentences.unchanged_bytes(result), page=page)
    yield from _step_parts(result)
    if page:
        yield _key_matrix(result)
    yield from _untestable_parts(result)
    if result.verdict and result.verdict.tried:
        yield fix_table(result.verdict, "Allocator settings tried on the first bad run")
    for title, evidence in (("last good", result.last_good), ("first bad", result.first_bad)):
        if evidence and evidence.commands:
            hint = bisect_sentences.threshold_text(result) or ""
            yield parts.Commands(title=f"To repeat the {title} probe", commands=evidence.commands, hint=hint)
    if page:
        yield _probe_table(result.probes)
        yield from _cost_parts(result)


def _culprit_parts(result: BisectResult) -> Iterator[parts.Part]:
    """Yield what is at fault inside the answer: code or configuration, keys, hunks."""
    if result.square is not None:
        yield _corner_table(result.square)
    if result.square is not None and result.also is not None:
        yield key_table(f"Keys of {result.square.path} that contribute", result.also.keys)
    if result.culprit and result.culprit.keys:
        keys, changed = result.culprit.keys, result.candidates
        if isinstance(result.culprit, CommitCulprit):  # its keys are all that it changed, until they are narrowed
            changed = result.culprit.narrowed.candidates if result.culprit.narrowed else len(keys)
        yield key_table(bisect_sentences.keys_title(keys), keys, is_whole=changed == len(keys) == 1)
    if isinstance(result.culprit, CommitCulprit) and (narrowed := result.culprit.narrowed):
        if narrowed.keys:
            of = f", of {narrowed.candidates} keys that changed" if narrowed.candidates > 1 else ""
            yield parts.Heading(text=f"At fault{of}: {', '.join(narrowed.keys)}")
        yield _hunk_table(narrowed)


def key_table(title: str, keys: Sequence[KeyChange], *, is_whole: bool = False) -> parts.Table:
    """Return the keys with both values and the bytes that each brings by itself; ``is_whole``: nothing else changed."""

    def delta(change: KeyChange) -> str:
        is_alone = is_whole and change.delta is None
        return "the whole change" if is_alone else bisect_sentences.delta_text(change.delta)

    return parts.Table(
        title=title,
        columns=columns("Key", "Good", "Bad", "By itself"),
        rows=[(change.key, *change.texts, delta(change)) for change in keys],
    )


def _corner_table(square: CodeVsConfig) -> parts.Table:
    """Return a row for each pair of code and configuration, and what both bring only together."""
    together = square.interaction
    return parts.Table(
        title="Code and configuration",
        columns=columns("Code", "Configuration", "", "number:Requested", "number:Reserved", "Why"),
        rows=[
            (
                *(short_hash(corner.code), short_hash(corner.config)),
                parts.Cell(text=corner.answer.value, tone=ANSWER_TONES[corner.answer]),
                *_texts(corner.peak, signed=False),
                corner.reason,
            )
            for corner in (square.old_old, square.new_old, square.old_new, square.new_new)
        ],
        total=None if together is None else ("only together", "", "", *_texts(together), ""),
    )


def _texts(sizes: Bytes | None, *, signed: bool = True) -> tuple[str, str]:
    if sizes is None:
        return "not measured", ""
    return format_size(sizes.requested_bytes, signed=signed), known_size(sizes.reserved_bytes, signed=signed)


def _hunk_table(narrowed: Narrowed) -> parts.Table:
    """Return the hunks with the bytes that each brings by itself; the rows with bytes sum to the commit's."""
    rows: list[parts.Row] = []
    for hunk in narrowed.hunks:
        sizes = _texts(hunk.delta) if hunk.is_guilty else ("not at fault", "")
        rows.append((str(hunk.number), hunk.name, hunk.section, *sizes, _hunk_lines(hunk)))
    if len(narrowed.guilty) > 1:
        is_known = all(hunk.delta is not None for hunk in narrowed.guilty)
        label = "only together" if is_known else "together, or not measured"
        rows.append(("", label, "", *_texts(narrowed.interaction), ""))
    if narrowed.candidates > len(narrowed.guilty):
        rows.append(("", "all other hunks", "", *_texts(narrowed.rest), ""))
    return parts.Table(
        title=_hunks_title(narrowed),
        columns=columns("number:#", "Hunk", "In", "number:Requested", "number:Reserved", "Lines that it wrote"),
        rows=rows if narrowed.hunks else [],
        total=("", "the commit", "", *_texts(narrowed.delta + narrowed.rest), ""),
    )


def _hunks_title(narrowed: Narrowed) -> str:
    guilty = f"{count(len(narrowed.guilty), 'hunk')} of {narrowed.candidates} in this commit"
    if not narrowed.lumped:
        return f"At fault: {guilty}"
    if narrowed.lumped == len(narrowed.guilty):
        return f"At fault, but they cannot be separated: {guilty}"
    return f"At fault: {guilty}, {narrowed.lumped} of which cannot be separated"


def _hunk_lines(hunk: HunkChange) -> str:
    rows = sorted(hunk.sites, key=lambda row: -abs(row.delta_bytes))
    lines = [f"{bisect_sentences.growth_text(row)} {format_size(row.delta_bytes, signed=True)}" for row in rows]
    more = [f"and {count(len(lines) - SITES_SHOWN, 'further line')}"] if len(lines) > SITES_SHOWN else []
    return "\n".join((*lines[:SITES_SHOWN], *more))


def _suspect_table(result: BisectResult) -> parts.Table:
    """Return the commits or keys among which the one at fault is not known; of many the first and how many more."""
    names = ("Commit", "Subject") if result.suspects[0].commit is not None else ("Key", "Good → bad")
    shown, more = result.suspects[:SUSPECTS_SHOWN], result.suspects[SUSPECTS_SHOWN:]
    rows: list[parts.Row] = [(bisect_sentences.suspect_name(each), each.subject, each.reason) for each in shown]
    if more:
        rows.append(("", f"and {len(more)} more, up to {bisect_sentences.suspect_name(more[-1])}", ""))
    return parts.Table(title="One of these is at fault", columns=columns(*names, "Why it was not ruled out"), rows=rows)


def growth_table(rows: Sequence[SiteGrowth], *, unchanged: int = 0, page: PageDetail | None = None) -> parts.Table:
    """Return the lines that changed most, the rest as one row, those that did not change, and the sum of all."""
    ordered = sorted(rows, key=lambda row: -abs(row.delta_bytes))
    table = parts.Table(
        title="Lines whose requested bytes differ; they sum to the change",
        name=LINE_TABLE,
        columns=columns("change:Change", "size:Before", "size:After", "category:Category", "code:Line"),
        rows=[
            (
                *(row.delta_bytes, row.before_bytes, row.after_bytes),
                row.category if row.site else "",
                _growth_cell(row, page),
            )
            for row in ordered
        ],
        total=(
            sum(row.delta_bytes for row in rows),
            sum(row.before_bytes for row in rows) + unchanged,
            sum(row.after_bytes for row in rows) + unchanged,
            "",
            "all requested bytes" if unchanged else "all",
        ),
    )
    table = parts.cut(table, page.lines if page else GROWTH_SHOWN, "line")
    same = (0, unchanged, unchanged, "", parts.Cell(text="lines that did not change"))
    return replace(table, rows=[*table.rows, same]) if unchanged else table


def _growth_cell(row: SiteGrowth, page: PageDetail | None) -> parts.Cell:
    cell = (page.stacks if page else NO_STACKS).cell(row.site, row.category, bisect_sentences.growth_text(row))
    return replace(cell, link=page.address(row.site)) if page and row.site and row.after_bytes else cell


def _step_parts(result: BisectResult) -> Iterator[parts.Part]:
    if result.waterfall or result.steps:
        yield _step_table(result)
    if result.waterfall and not result.waterfall.is_complete:
        yield line("The deadline passed before every range whose ends differ was split.", "warn")
    if result.waterfall and (text := _unseen_text(result.waterfall)):
        yield line(text, "soft")


def _beginning(text: str) -> str:
    """Return as many whole words of a commit's hash and subject as a column of a table has room for."""
    if len(text) <= STEP_WIDTH:
        return text
    return f"{text[:STEP_WIDTH].rpartition(' ')[0] or text[:STEP_WIDTH]} …"


def _step_table(result: BisectResult) -> parts.Table:
    """Return a row for the good end, one for each step, and one for the bad end with the sums."""
    searched = result.waterfall
    title = "Steps" if searched else "Steps seen on the way"
    steps = result.steps if searched else bisect_sentences.folded(result.steps, bisect_sentences.guilty_commit(result))
    start = _start(result) or Bytes(requested_bytes=0)
    reached = [start, *levels(start, (step.delta for step in steps))]
    drawn = [each.requested_bytes if each.reserved_bytes is None else each.reserved_bytes for each in reached]
    low, high = min(drawn), max(drawn)
    is_of_both = result.square is not None and result.square.guilty == "combination"
    first = "good end, new config" if is_of_both else "good end"
    rows: list[parts.Row] = [("", "", start.reserved_bytes, "", first, "")]
    marked = None
    for step, level, (before, after) in zip(steps, reached[1:], pairwise(drawn), strict=True):
        ends = sorted(((each - low) / max(1, high - low)) for each in (before, after))
        tone = "bad" if after > before else "good"
        name = _beginning(bisect_sentences.step_text(step)) if step.commit else step.label
        if step.commit is not None and step.commit == bisect_sentences.guilty_commit(result):
            marked = len(rows)
        rows.append(
            (
                *(step.delta.requested_bytes, step.delta.overhead_bytes, level.reserved_bytes),
                Span(start=ends[0], end=ends[1], tone=tone),
                parts.Cell(text=name, title=step.label),
                _dominant_text(step),
            )
        )
    change = sum((step.delta for step in steps), start=Bytes(reserved_bytes=start.reserved_bytes and 0))
    bar = parts.Column(name="", kind="bar", width=16)
    return parts.Table(
        title=f"{title}; they sum to the difference of the ends",
        columns=[
            *columns("change:Requested", "change:Overhead", "size:Reserved"),
            bar,
            *columns("Came with", "Mostly"),
        ],
        rows=rows,
        total=(
            change.requested_bytes,
            change.overhead_bytes,
            reached[-1].reserved_bytes,
            "",
            "bad end, and the sum",
            "",
        ),
        marked=marked,
        hint="Overhead is reserved less requested memory. Each bar begins where the one above ends; the axis begins at "
        "the lowest level, not at zero.",
    )


def _start(result: BisectResult) -> Bytes | None:
    """Return the bytes of the good end, from which the steps lead; None where it was not measured."""
    if result.waterfall is not None:
        return result.waterfall.start
    if result.square is not None and result.square.guilty == "combination":  # commits with the new configuration
        return result.square.old_new.peak
    ends = (probe.peak for probe in result.probes if probe.role == "good end" or probe.commit == result.good)
    return next((sizes for sizes in ends if sizes is not None), None)


def _unseen_text(found: Waterfall) -> str | None:
    """Return how many commits no probe looked into; None where there are none."""
    hiding = [stretch.commits - 1 for stretch in found.unseen if stretch.commits > 1]
    if not hiding:
        return None
    where = count(len(hiding), "range")
    return (
        f"{count(sum(hiding), 'commit')} in {where} with equal ends were not probed: a step and its revert there would "
        "not be seen. --exhaustive probes them."
    )


def _dominant_text(step: StepRow) -> str:
    """Return the line that changed most, with its bytes and category, and the leak that begins; empty for neither."""
    leak = f"a leak of {format_size(step.leak_bytes)} an iteration begins" if step.leak_bytes else ""
    growth = step.dominant
    if growth is None:
        return leak
    size, site = format_size(growth.delta_bytes, signed=True), growth.site
    text = f"{size} {category_text(growth.category)}"
    if site is not None:
        text += f", {brief_name(site.file.rsplit('/', 1)[-1])}:{site.line}" if site.file else f", {site.brief}"
    return "; ".join(filter(None, (text, leak)))


def _key_matrix(result: BisectResult) -> parts.Table:
    """Return which changes each probe made; those that every probe made together are one row, the guilty ones first."""
    probes = [record for record in result.probes if record.keys is not None][:COLUMNS_SHOWN]
    guilty, sets = guilty_keys(result), [frozenset(record.keys or ()) for record in probes]
    groups: dict[tuple[str, tuple[bool, ...]], list[str]] = {}
    for name in dict.fromkeys(key for record in probes for key in record.keys or ()):
        made = tuple(name in each for each in sets)
        groups.setdefault((name if name in guilty else "", made), []).append(name)
    signs = {Answer.GOOD: "✓", Answer.BAD: "✗", Answer.UNTESTABLE: "?"}
    return parts.Table(
        title="What each probe changed",
        columns=columns("Change", *(f"number:{record.number} {signs[record.answer]}" for record in probes)),
        rows=[
            (
                bisect_sentences.keys_text(tuple(names), shown=1, what="changes together"),
                *("●" if each else "" for each in made),
            )
            for (_, made), names in sorted(groups.items(), key=lambda group: not group[0][0])
        ],
        hint="A column is a probe in the order asked.",
    )


def guilty_keys(result: BisectResult) -> Collection[str]:
    """Return the keys, variables or hunks at fault by name."""
    names: set[str] = set()
    for culprit in (result.culprit, result.also):
        if isinstance(culprit, KeysCulprit):
            names |= {change.key for change in culprit.keys}
        elif culprit is not None and culprit.narrowed is not None:
            names |= {*culprit.narrowed.keys, *(hunk.name for hunk in culprit.narrowed.guilty)}
    return names


def _untestable_parts(result: BisectResult) -> Iterator[parts.Part]:
    """Yield the probes that gave no answer, a row for each reason, and where their output is."""
    by_reason: dict[str, list[str]] = {}
    for probe in result.untestable:
        by_reason.setdefault(probe.reason, []).append(bisect_sentences.probe_name(probe))
    rows = []
    for reason, (first, *others) in by_reason.items():
        more = f"and {len(others):,} more, up to {others[-1]}" if len(others) > 1 else "".join(others)
        rows.append((f"{first}\n{more}".rstrip(), reason))
    yield parts.Table(title="Skipped", columns=columns("Untestable", "Why"), rows=rows)
    if logs := list(dict.fromkeys(probe.log for probe in result.untestable if probe.log)):
        yield line("Output:")
        yield from (line(f"  {log}") for log in logs)


def _probe_table(probes: Sequence[ProbeRecord]) -> parts.Table:
    return parts.Table(
        title="Probes",
        name="probes",
        columns=columns(
            *("number:#", "Answer", "For", "What", "size:Requested", "size:Reserved", "number:Took", "Seen")
        ),
        rows=[
            (
                parts.Cell(text=str(probe.number), number=probe.number),
                parts.Cell(text=probe.answer.value, tone=ANSWER_TONES[probe.answer]),
                probe.role,
                shortened(bisect_sentences.probe_name(probe), 160),
                probe.peak.requested_bytes if probe.peak else "",
                probe.peak.reserved_bytes if probe.peak else "",
                parts.Cell(
                    text="cached" if probe.cached else duration_text(max(probe.wall_s, probe.probe_s)),
                    number=max(probe.wall_s, probe.probe_s),
                ),
                shortened(probe.reason, 300),
            )
            for probe in probes
        ],
    )


def _cost_parts(result: BisectResult) -> Iterator[parts.Part]:
    cached = sum(probe.cached for probe in result.probes)
    asked = count(len(result.probes), "probe")
    rows = [("Asked", f"{asked}, {cached} of them from the cache" if cached else asked)]
    if result.cost is not None:
        rows.append(("Begun", f"{count(result.cost.begun, 'run')}, {count(result.cost.slots, 'slot')} at once"))
        rows.append(("Time", duration_text(result.cost.wall_s)))
    rows += [("Good end", result.good), ("Bad end", result.bad)]
    if result.paths:
        rows.append(("Paths", " ".join(result.paths)))
    yield parts.Heading(text="What was searched, and what it took")
    yield parts.Facts(rows=rows)


class LineView(NamedTuple):
    """A line of commits as a page shows it."""

    line: WalkedLine
    asked: tuple[Asked, ...]
    bracket: Bracket
    place_states: Sequence[PlaceState]
    culprit: int | None
    """The place of the commit at fault, if it is on this line."""


def view_of(walked: WalkedLine, result: BisectResult) -> LineView:
    """Return what ``result`` knows of ``walked``."""
    asked = tuple(asked_on(walked, result.probes))
    culprit = walked.position.get(result.culprit.commit) if isinstance(result.culprit, CommitCulprit) else None
    bracket = Bracket(culprit - 1, culprit) if culprit else bracket_of(asked)
    return LineView(walked, asked, bracket, place_states(walked, asked, bracket), culprit)


def place_name(walked: WalkedLine, place: int) -> str:
    """Return the hash and subject of a place, with how many more commits measure the same."""
    found = walked.places[place]
    more = f" (and {count(found.commits - 1, 'commit')} after it that measure the same)" if found.commits > 1 else ""
    return f"{short_hash(found.commit)} {shortened(found.subject, 160)}{more}"


def answer_text(record: ProbeRecord) -> str:
    """Return the answer of one probe with its number."""
    cached = " (cached)" if record.cached else ""
    return f"probe {record.number}: {record.answer.value}, {shortened(record.reason, 160)}{cached}"
