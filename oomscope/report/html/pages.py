"""The page of each command: its report, with as many rows and as fine charts as a page has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from markupsafe import Markup

from oomscope.bisect.results.result import BisectResult, CommitCulprit, KeysCulprit
from oomscope.bisect.vcs.forge import Forge
from oomscope.gate.ledger.history import Trend, gravest_first
from oomscope.gate.night.result import GateResult
from oomscope.gate.suite.metrics import METRICS
from oomscope.printable import printable
from oomscope.probe.demand import recorded_peak
from oomscope.probe.result import ProbeResult
from oomscope.probe.tuning.sweep import Sweep
from oomscope.report import parts
from oomscope.report.charts.curves import Series, curves, overlaid, overlaid_chart
from oomscope.report.charts.flame import FlameGraph, flame_chart, flame_data
from oomscope.report.charts.html import embedded, html_chart
from oomscope.report.charts.range import range_chart
from oomscope.report.charts.segments import segment_chart, strip_of
from oomscope.report.charts.segments_over_time import kept_text, state_data
from oomscope.report.charts.sweep import sweep_plot
from oomscope.report.charts.timeline import timeline_chart, timeline_data
from oomscope.report.charts.trend import trend_plot
from oomscope.report.commands import diff, explain, explain_sentences, gate, gate_history
from oomscope.report.commands.bisect import PageDetail, bisect_report, view_of
from oomscope.report.commands.probe import probe_report
from oomscope.report.commands.sweep import sweep_report
from oomscope.report.html.code import excerpts, link
from oomscope.report.html.page import FEWEST, fitting, render
from oomscope.report.sentences import count
from oomscope.report.stacks import Stacks
from oomscope.report.verdict_text import LINE_TABLE
from oomscope.snapshot.accounting.attribution import AT_FAILURE, AT_PEAK
from oomscope.snapshot.accounting.stack_tree import LiveStacks
from oomscope.snapshot.compare.changes import side_by_side
from oomscope.snapshot.compare.diff import DeviceDifference, Difference
from oomscope.snapshot.explain.drawing import Drawing, still
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.explain.rank_set import RankSet
from oomscope.snapshot.explain.states import TINY
from oomscope.snapshot.sites import Site
from oomscope.units import MiB

LINES_SHOWN: Final = 300
"""Lines of code in their table; what is beyond is one row, so that the sum holds."""
STACKS_SHOWN: Final = 60
"""Lines whose largest stack is shown."""
DETAILS_SHOWN: Final = 60
"""Cases of the gate with their evidence."""
NIGHTS_SHOWN: Final = 8000
"""Nights shown in all trends together."""
DEVICES_SHOWN: Final = 8
"""Devices, or ranks, of a difference that have a section of their own: those that grew most."""
BRANCHES_SHOWN: Final = 4
"""Lines that merges brought in and that are drawn."""
EXPLAIN_LARGEST: Final = 6 * MiB
"""Bytes of a page that carries the whole course of a run."""
TIMELINE_ROOM: Final = 600 * 1024
"""Most bytes of data for the timelines of a page, all devices together."""
SEGMENTS_ROOM: Final = 240 * 1024
"""Most bytes of data for the maps of segments without a script."""
STATES_ROOM: Final = 2 * MiB
"""Most bytes of data for the states of these maps at other moments."""
FRAMES_SHOWN: Final = 2048
"""Frames of each tree of a flame graph."""
FLAME_ROOM: Final = 160 * 1024
"""Most bytes of data for the flame graphs."""


def _shown(share: float, most: int) -> int:
    return max(FEWEST, int(share * most))


def probe_page(result: ProbeResult, *, title: str, drawing: Drawing | None = None) -> str:
    """Return the page of one rank's measurement, with its pictures where its snapshot is at hand."""
    at_peak = result.peak.stacks if result.peak else None
    flames = _flame_graph(drawing.live if drawing is not None and at_peak is None else at_peak)

    def page(share: float) -> str:
        figures = _run_figures(result, flames, share)
        if drawing is not None:
            when = AT_PEAK if drawing.failed_event is None else AT_FAILURE
            figures = _device_figures(
                *(drawing, flames, 0, share), table=LINE_TABLE, when=when, available=result.available_bytes
            )
        report = probe_report(result, figures=figures, shown=_shown(share, LINES_SHOWN))
        scripts = ("timeline.js", "segments.js", "flame.js")
        return render(report, *scripts, title=title, share=share, versions=result.versions)

    return fitting(page, EXPLAIN_LARGEST)


def _run_figures(result: ProbeResult, flames: FlameGraph | None, share: float) -> Iterator[parts.Figure]:
    if result.timeline:
        series = Series(label="requested", values=result.timeline, style="second")
        chart = curves([series], title="Requested bytes over the run", available=result.available_bytes)
        yield parts.Figure(title="Requested memory over the run", markup=chart)
    yield from _flame_figure(flames, "flame", table=LINE_TABLE, share=share)


def explain_page(found: Explanation | RankSet, drawings: Sequence[Drawing]) -> str:
    """Return the page of a snapshot, or of a folder's ranks and the worst of them; a drawing for each device shown."""
    pictures = dict(zip((device.index for device in found.worst.devices), drawings, strict=True))
    flames = {index: _flame_graph(drawing.live) for index, drawing in pictures.items()}
    title = PurePath(found.directory if isinstance(found, RankSet) else found.file).name

    def page(share: float) -> str:
        own = share / max(1, len(drawings))

        def detail(device: DeviceExplanation) -> explain.PageDetail:
            drawing = pictures[device.index]
            figures = _device_figures(
                *(drawing, flames[device.index], device.index, own),
                table=explain.table_name(device),
                when=explain_sentences.when_text(device),
                available=device.available_bytes,
            )
            return explain.PageDetail(figures, Stacks(drawing.live, _shown(own, STACKS_SHOWN)))

        report = explain.explain_report(
            found,
            top=_shown(own, LINES_SHOWN),
            shown=_shown(share, 20),
            detail=detail,
        )
        return render(report, "timeline.js", "segments.js", "flame.js", title=title, share=share)

    return fitting(page, EXPLAIN_LARGEST)


def _device_figures(
    drawing: Drawing,
    flames: FlameGraph | None,
    index: int,
    share: float,
    *,
    table: str,
    when: str,
    available: int | None,
) -> Iterator[parts.Figure]:
    """Yield the timeline, the map of segments at the moment ``when``, and the flame graph, with a ``share`` of all
    detail.

    ``table`` is the id of the table in which a code line is looked up.
    """
    if len(drawing.bins) > 1:
        name, bins, room = f"timeline-{index}", drawing.bins, int(share * TIMELINE_ROOM)
        chart = timeline_chart(drawing, name, table=table, available=available)
        data = embedded(timeline_data(drawing, bins))
        while len(data) > room and len(bins) > 1:
            times = max(2, 1 << ((len(data) // max(1, room)).bit_length() - 1))  # half the bins take half the bytes
            bins = bins.coarser(times)
            data = embedded(timeline_data(drawing, bins))
        yield parts.Figure(title="Requested memory by category", markup=chart, data=data, name=name)
    if drawing.plan and drawing.plan.segments:
        name, tiny, least = f"segments-{index}", TINY, TINY * drawing.plan.reserved_bytes
        strip, states = strip_of(drawing.plan), drawing.states or still(drawing.plan)
        data = embedded(state_data(states, strip))
        while len(data) > share * STATES_ROOM and len(states.blocks):
            least *= 2
            states = states.without_blocks_below(int(least))
            data = embedded(state_data(states, strip))
        kept = kept_text(states, drawing.bins.total) if len(states.event) > 1 else ""
        chart = segment_chart(strip, name, table=table, when=when, kept=kept)
        while len(chart) > share * SEGMENTS_ROOM and tiny < 1:
            tiny *= 2
            chart = segment_chart(strip_of(drawing.plan, tiny), name, table=table, when=when, kept=kept)
        yield parts.Figure(title=f"Segments {when}, to scale", markup=chart, data=data, name=name)
    yield from _flame_figure(flames, f"flame-{index}", table=table, share=share)


def _flame_graph(live: LiveStacks | None, *, is_difference: bool = False) -> FlameGraph | None:
    """Return as much of the flame graph of ``live`` as a page may show; None where nothing is live."""
    if live is None or not live.rows:
        return None
    return FlameGraph.of(live, is_difference=is_difference).pruned(FRAMES_SHOWN)


def _flame_figure(graph: FlameGraph | None, name: str, *, share: float, table: str = "") -> Iterator[parts.Figure]:
    """Yield the figure of ``graph``, if there is any, with a ``share`` of all detail."""
    if graph is None:
        return
    shown, frames = graph, _shown(share, FRAMES_SHOWN)
    while True:
        shown = shown.pruned(frames)
        chart, data = flame_chart(shown, name, table=table), embedded(flame_data(shown))
        if len(chart) + len(data) <= share * FLAME_ROOM or frames < FEWEST:
            break
        frames //= 2
    title = "Live bytes by stack, as a difference" if graph.is_difference else "Live bytes by stack"
    yield parts.Figure(title=title, markup=chart, data=data, name=name)


def diff_page(difference: Difference) -> str:
    """Return the page of a difference."""
    title = f"{PurePath(difference.before_file).name} against {PurePath(difference.after_file).name}"
    flames = [_flame_graph(device.stacks, is_difference=True) for device in difference.devices[:DEVICES_SHOWN]]

    def page(share: float) -> str:
        found = _diff_parts(difference, flames, share)
        return render(found, "curves.js", "flame.js", title=title, share=share)

    return fitting(page)


def _diff_parts(difference: Difference, flames: Sequence[FlameGraph | None], share: float) -> Iterator[parts.Part]:
    yield from diff.heading_parts(difference)
    devices, shown = difference.devices[:DEVICES_SHOWN], _shown(share, 500)
    for number, device in enumerate(devices):
        if len(difference.devices) > 1:
            yield parts.Heading(text=diff.device_name(device).capitalize())
        tables: list[diff.By] = ["category", "line", "size"]
        if len(device.modules) > 1:
            tables.insert(2, "module")
        flame = _flame_figure(flames[number], f"flame-{number}", share=share / len(devices))
        figures = (*_overlay_figure(device, f"curves-{number}"), *flame)
        stacks = Stacks(device.stacks, _shown(share, STACKS_SHOWN) // len(devices))
        yield from diff.device_parts(difference, device, tables, shown, figures=figures, stacks=stacks)
    if (more := len(difference.devices) - DEVICES_SHOWN) > 0:
        yield parts.line(f"{more} further ones, which grew less, have no section.", "soft")
    yield from map(parts.note, diff.not_compared(difference))


def _overlay_figure(device: DeviceDifference, name: str) -> Iterator[parts.Figure]:
    found = device.timeline
    if found.before or found.after:
        series = (
            Series(label="A", values=found.before, style="first"),
            Series(label="B", values=found.after, style="second"),
        )
        over = "the iterations" if found.aligned_by == "iteration" else "the events"
        yield overlaid_chart(
            f"Requested memory over {over}",
            series,
            title="Requested bytes of A and B",
            name=name,
            stretches=found.stretches,
        )


def bisect_page(result: BisectResult, *, title: str, forge: Forge | None = None) -> str:
    """Return the page of a search, with links to ``forge`` if there is one."""
    versions = result.first_bad.result.versions if result.first_bad else {}
    live = _stacks_of_both(result)
    flames = _flame_graph(live, is_difference=True)

    def page(share: float) -> str:
        detail = PageDetail(
            change=tuple(_change_figures(result.culprit, forge)),
            figures=tuple(_search_figures(result, flames, share)),
            lines=_shown(share, LINES_SHOWN),
            stacks=Stacks(live, _shown(share, STACKS_SHOWN)),
            address=_addresses(result.culprit, forge),
        )
        return render(
            *(bisect_report(result, detail), "curves.js", "flame.js"), title=title, share=share, versions=versions
        )

    return fitting(page)


def _addresses(culprit: CommitCulprit | KeysCulprit | None, forge: Forge | None) -> Callable[[Site], str]:
    """Return a function that links a line, of files that are known to be the commit's."""
    if forge is None or not isinstance(culprit, CommitCulprit):
        return lambda _: ""
    paths, commit = {each.path for each in (*culprit.hunks, *culprit.around)}, culprit.commit
    return lambda site: forge.line(commit, site.file, site.line) if site.file in paths else ""


def _change_figures(culprit: CommitCulprit | KeysCulprit | None, forge: Forge | None) -> Iterator[parts.Figure]:
    """Yield the message and the changes of the commit at fault, then the code around lines that grew elsewhere."""
    if not isinstance(culprit, CommitCulprit):
        return
    body = Markup('<pre class="message">{}</pre>').format(printable(culprit.message)) if culprit.message else Markup("")
    if forge is not None:
        body += Markup("<p>{}</p>").format(link(forge.commit(culprit.commit), f"{culprit.commit[:10]} on {forge.host}"))
    if body or culprit.hunks:
        yield parts.Figure(
            title="The commit at fault",
            markup=body + excerpts(culprit.hunks, culprit.sites, forge, culprit.commit),
            hint=f"{count(culprit.left_out, 'hunk or file', 'hunks or files')} left out." if culprit.left_out else "",
        )
    if culprit.around:
        yield parts.Figure(
            title="Lines that grew and that the commit did not write",
            markup=excerpts(culprit.around, culprit.sites, forge, culprit.commit),
        )


def _search_figures(result: BisectResult, flames: FlameGraph | None, share: float) -> Iterator[parts.Figure]:
    """Yield the line from end to end and those that merges brought in, then both runs over each other."""
    for walked in result.lines[: 1 + BRANCHES_SHOWN]:
        view = view_of(walked, result)
        if view.asked and len(walked.places) > 1:
            title = "The range" if walked.merge is None else f"What {walked.merge[:10]} merged"
            yield parts.Figure(
                title=title,
                markup=range_chart(view),
                hint="Commits that change what is measured, to scale. Each row below is a probe in the order asked; "
                "its band is the range that was still open.",
            )
    good, bad = result.last_good, result.first_bad
    if good and bad and (figure := overlaid(good.result, bad.result)):
        yield figure
    yield from _flame_figure(flames, "flame", share=share, table=LINE_TABLE)


def _stacks_of_both(result: BisectResult) -> LiveStacks | None:
    """Return the peaks of the last good and the first bad run by stack; None where one of them is unknown."""
    good, bad = result.last_good, result.first_bad
    before, after = (recorded_peak(each.result) if each else None for each in (good, bad))
    if before is None or after is None or before.stacks is None or after.stacks is None:
        return None
    return side_by_side(before.stacks.at(AT_PEAK), after.stacks.at(AT_PEAK), ("last good", "first bad"))


def sweep_page(sweep: Sweep, *, title: str) -> str:
    """Return the page of a sweep."""
    plot = sweep_plot(sweep)
    figures = (
        []
        if plot is None
        else [
            parts.Figure(
                title="Bytes against time",
                markup=html_chart(plot),
                hint="Each point is a combination. Of those on the line, what needs less memory takes longer; their "
                "numbers stand under Best.",
            )
        ]
    )
    return render(sweep_report(sweep, figures=figures), title=title)


def night_page(night: GateResult) -> str:
    """Return the page of a night of the gate."""
    versions = next((case.probe.versions for case in night.cases if case.probe is not None), {})

    def page(share: float) -> str:
        found = gate.night_parts(night, details=_shown(share, DETAILS_SHOWN), lines=_shown(share, 30))
        return render(found, title="Nightly memory gate", share=share, versions=versions)

    return fitting(page)


def history_page(trends: Sequence[Trend], *, metric: str) -> str:
    """Return the page of ``metric`` of all ``trends``; where there is no room, each keeps its youngest nights."""
    ordered = gravest_first(trends)
    longest = max((len(trend.entries) for trend in trends), default=0)

    def page(share: float) -> str:
        shown = ordered[: _shown(share, 2000)]
        nights = _shown(share, min(longest, NIGHTS_SHOWN // max(1, len(shown))))

        def figures(trend: Trend) -> Iterator[parts.Figure]:
            yield parts.Figure(title="", markup=html_chart(trend_plot(trend, trend.entries[-nights:])))

        found: list[parts.Part] = [
            parts.line(f"{gate_history.heading(trends)}: {METRICS[metric].meaning}", "soft"),
            *gate_history.trend_parts(shown, figures, nights),
        ]
        if more := len(trends) - len(shown):
            found.append(parts.line(f"{more} further cases are left out: name the cases to be shown.", "soft"))
        return render(found, title=f"{metric}, night by night", share=share)

    return fitting(page)
