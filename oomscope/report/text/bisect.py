"""A search for the terminal: each probe as it comes, then the culprit, the evidence and how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from oomscope.bisect.journal.journal_state import JournalState, SearchStatus
from oomscope.bisect.results.growth import SiteGrowth
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import (
    BisectResult,
    CommitCulprit,
    KeyChange,
    KeysCulprit,
    ProbeEvidence,
    ProbeRecord,
    StepRow,
)
from oomscope.bisect.search.measured import Bytes
from oomscope.report import bisect_sentences, sentences
from oomscope.report.bisect_sentences import remedy
from oomscope.report.rows import folded
from oomscope.report.text.bisect_tables import narrowed_sections, posterior_sections, square_sections, waterfall_parts
from oomscope.report.text.layout import bar, facts, section, table
from oomscope.report.text.probe import fix_table, verdict_parts
from oomscope.units import format_size

ANSWER_STYLES = {"good": "green", "bad": "red", "untestable": "yellow"}
OUTCOME_STYLES = {
    "culprit": "bold red",
    "no_culprit": "bold green",
    "suspects": "bold yellow",
    "ends_invalid": "bold yellow",
    "inconclusive": "bold yellow",
}
GROWTH_SHOWN = 8
SUSPECTS_SHOWN = 30
NAME_WIDTH = 52


def plan_report(plan: SearchPlan) -> RenderableType:
    """Return what lies ahead of a search."""
    at_most = f"at most {sentences.count(plan.probes_at_most, 'probe')}, untestable ones apart"
    if plan.more_if:
        at_most += f"; more if {', or if '.join(plan.more_if)}"
    notes = [Text(f"note: {note}", style="dim") for note in plan.notes]
    return Group(Text(f"{plan.title}; {at_most}", style="dim"), *notes)


@dataclass(frozen=True)
class ProbeLine:
    """One probe's answer as a line; on a terminal that is too narrow, as lines that hang below the name."""

    record: ProbeRecord

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        number, answer, *parts = self._parts()
        line = Text("  ").join((number, answer, *parts))
        if options.no_wrap or line.cell_len <= options.max_width:
            yield line
            return
        for part in parts:
            part.rstrip()
        grid = Table.grid(padding=(0, 2))
        for _ in range(2):
            grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(number, answer, Text("\n").join(parts))
        yield grid

    def _parts(self) -> Iterator[Text]:
        record = self.record
        yield Text(f"{record.number:>3}")
        yield Text(f"{record.answer.value:<10}", style=ANSWER_STYLES[record.answer.value])
        yield Text(f"{bisect_sentences.shortened(bisect_sentences.probe_name(record), NAME_WIDTH):<{NAME_WIDTH}}")
        if record.bytes:
            bound = "≥" if record.is_lower_bound else " "
            live, reserved = (
                format_size(record.bytes.requested_bytes),
                sentences.known_size(record.bytes.reserved_bytes),
            )
            yield Text(f"requested {bound}{live:>10}  reserved {reserved:>10}")
        yield Text(record.reason)
        if record.repeat:
            yield Text(f"(measurement {record.repeat + 1})", style="dim")
        yield Text(f"({bisect_sentences.took_text(record)})", style="dim")


def probe_line(record: ProbeRecord) -> RenderableType:
    """Return one probe's answer as a line."""
    return ProbeLine(record)


def bisect_report(result: BisectResult) -> RenderableType:
    """Return the answer of a search with its evidence."""
    return Group(*_parts(result))


def _parts(result: BisectResult) -> Iterator[RenderableType]:
    yield Text()
    yield Text(bisect_sentences.heading(result), style=OUTCOME_STYLES[result.outcome])
    yield Text(bisect_sentences.message(result))
    if next_step := remedy(result):
        yield Text(f"What to do: {next_step}")
    for note in result.notes:
        yield Text(f"note: {note}")
    yield Text(bisect_sentences.search_text(result), style="dim")
    rows = bisect_sentences.before_and_after(result)
    if isinstance(result.culprit, CommitCulprit):
        rows.insert(0, ("Author", f"{result.culprit.author}, {result.culprit.date}"))
    if heaviest := bisect_sentences.heaviest_step(result):
        rows.append(("Heaviest", heaviest))
    if rows:
        yield facts(rows)
    if result.verdict:
        yield from verdict_parts(result.verdict)
    yield from _sections(result)


def _sections(result: BisectResult) -> Iterator[RenderableType]:
    yield from square_sections(result)
    if result.culprit:
        yield from _culprit_sections(result.culprit)
    yield from posterior_sections(result)
    if result.suspects:
        yield section("One of these is at fault", suspect_table(result))
    if result.sites:
        table_ = growth_table(result.sites, unchanged=bisect_sentences.unchanged_bytes(result))
        yield section("Lines whose requested bytes differ; they sum to the change", table_)
    yield from _step_sections(result)
    if result.untestable:
        yield section("Skipped", untestable_table(result.untestable))
        if logs := bisect_sentences.logs_of(result):
            yield paths("Output:", logs)
    if result.verdict and result.verdict.tried:
        yield section("Allocator settings tried on the first bad run", fix_table(result.verdict.tried))
    for title, evidence in (("last good", result.last_good), ("first bad", result.first_bad)):
        if evidence and evidence.commands:
            yield Text(f"\nTo repeat the {title} probe", style="bold")
            if threshold := bisect_sentences.threshold_text(result):
                yield Text(f"  {threshold}", style="dim")
            yield commands(evidence)


def _culprit_sections(culprit: CommitCulprit | KeysCulprit) -> Iterator[RenderableType]:
    if culprit.keys:
        yield section(bisect_sentences.keys_title(culprit.keys), key_table(culprit.keys))
    if isinstance(culprit, CommitCulprit) and culprit.narrowed:
        yield from narrowed_sections(culprit.narrowed)


def _step_sections(result: BisectResult) -> Iterator[RenderableType]:
    if result.waterfall:
        yield from waterfall_parts(result, result.waterfall)
    elif result.steps:
        yield section(
            "Steps seen on the way; they sum to the difference of the ends",
            step_table(folded(result.steps, bisect_sentences.guilty_commit(result))),
        )


def untestable_table(probes: Sequence[ProbeRecord]) -> Table:
    """Return the probes that gave no answer, a row for each reason."""
    by_reason: dict[str, list[str]] = {}
    for probe in probes:
        by_reason.setdefault(probe.reason, []).append(bisect_sentences.probe_name(probe))
    rows = table("Untestable", "Why")
    for reason, names in by_reason.items():
        first, *others = names
        more = (
            f"\nand {len(others):,} more, up to {others[-1]}"
            if len(others) > 1
            else "".join(f"\n{name}" for name in others)
        )
        rows.add_row(f"{first}{more}", reason)
    return rows


def suspect_table(result: BisectResult, shown: int = SUSPECTS_SHOWN) -> Table:
    """Return the commits or keys that could not be told apart; of many the first and how many more."""
    names = ("Commit", "Subject") if result.suspects[0].commit is not None else ("Key", "Good → bad")
    suspects = table(*names, "Why it could not be told apart")
    for suspect in result.suspects[:shown]:
        suspects.add_row(bisect_sentences.suspect_name(suspect), suspect.subject, suspect.reason)
    if more := result.suspects[shown:]:
        suspects.add_row("", f"and {len(more)} more, up to {bisect_sentences.suspect_name(more[-1])}", "")
    return suspects


def growth_table(rows: Sequence[SiteGrowth], shown: int = GROWTH_SHOWN, *, unchanged: int = 0) -> Table:
    """Return the lines that changed most, the rest as one row, those that did not change, and the sum of all."""
    grown = table(">Change", ">Before", ">After", "Category", "Line")
    ordered = sorted(rows, key=lambda row: -abs(row.delta_bytes))
    cut = shown if len(ordered) > shown + 1 else len(ordered)
    for row in ordered[:cut]:
        category = row.category.replace("_", " ") if row.site else ""
        grown.add_row(*_sizes([row]), category, bisect_sentences.growth_text(row))
    if rest := ordered[cut:]:
        grown.add_row(*_sizes(rest), "", sentences.count(len(rest), "further line"))
    if unchanged:
        grown.add_row(*_sizes([], unchanged), "", "lines that did not change")
    grown.add_section()
    grown.add_row(*_sizes(rows, unchanged), "", "all requested bytes" if unchanged else "all")
    return grown


def _sizes(rows: Sequence[SiteGrowth], unchanged: int = 0) -> tuple[str, str, str]:
    before = sum(row.before_bytes for row in rows) + unchanged
    after = sum(row.after_bytes for row in rows) + unchanged
    return format_size(after - before, signed=True), format_size(before), format_size(after)


def step_table(steps: Sequence[StepRow]) -> Table:
    """Return the steps from good to bad as a waterfall, and their sum."""
    waterfall = table(">Requested change", ">Reserved change", "?", "Came with")
    weights = [_weight(step.delta) for step in steps]
    top = max(map(abs, weights), default=0)
    for step, size in zip(steps, weights, strict=True):
        sign = "-" if size < 0 else "+" if size else ""
        waterfall.add_row(*_deltas([step]), f"{sign}{bar(abs(size), top, 16)}", bisect_sentences.step_text(step))
    waterfall.add_section()
    waterfall.add_row(*_deltas(steps), "", "from good to bad")
    return waterfall


def _weight(delta: Bytes) -> int:
    """Return the reserved bytes; the requested ones where those are not known."""
    return delta.requested_bytes if delta.reserved_bytes is None else delta.reserved_bytes


def _deltas(steps: Sequence[StepRow]) -> tuple[str, str]:
    total = sum((step.delta for step in steps), start=Bytes())
    return format_size(total.requested_bytes, signed=True), sentences.known_size(total.reserved_bytes, signed=True)


def key_table(keys: Sequence[KeyChange]) -> Table:
    """Return the keys with both values and the bytes that each brings by itself."""
    changes = table("Key", "Good", "Bad", "By itself")
    for change in keys:
        changes.add_row(change.key, str(change.good), str(change.bad), bisect_sentences.delta_text(change.delta))
    return changes


def commands(evidence: ProbeEvidence) -> Text:
    """Return the commands that repeat a probe, each on a line of its own however long."""
    return _uncut([f"  {command}" for command in evidence.commands])


def paths(title: str, files: Sequence[str]) -> Text:
    """Return files under a title, each on a line of its own however long."""
    return _uncut([title, *(f"  {file}" for file in files)])


def _uncut(lines: Sequence[str]) -> Text:
    return Text("\n".join(lines), no_wrap=True, overflow="ignore")


def log_report(account: JournalState, standing: SearchStatus, path: str) -> RenderableType:
    """Return where a search stands, and its answers."""
    return Group(*_log_parts(account, standing, path))


def _log_parts(account: JournalState, standing: SearchStatus, path: str) -> Iterator[RenderableType]:
    begun = account.begun
    rows = [
        ("Search", f"{begun.search}, {standing.state}"),
        ("Ends", f"{begun.title}, bad is {begun.bad}"),
        ("In", begun.place),
        ("Begun", account.began_at),
        ("Command", shlex.join(("oomscope", "bisect", *begun.words)) if begun.words else "a program's"),
        ("Probes", _probes(standing)),
        ("Journal", path),
    ]
    yield facts([(name, Text(value)) for name, value in rows])
    yield Text()
    for answer in account.answers:
        yield probe_line(answer.record)
    for problem in account.problems:
        yield Text(f"note: {problem}", style="yellow")
    if standing.message:
        yield Text()
        yield Text(standing.message)


def _probes(standing: SearchStatus) -> str:
    announced = standing.probes_at_most
    # Steps, merges and untestable commits come on top of what was announced; then it bounds nothing any more.
    most = "" if announced is None or standing.probes > announced else f" of at most {announced}"
    return f"{standing.probes}{most}"
