"""Live progress of a search: its range, how far it is, and the probes that run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from oomscope.bisect.results.reporter import RunningProbe, SearchPlan
from oomscope.bisect.results.result import ProbeRecord
from oomscope.bisect.results.sections import WalkedLine
from oomscope.printable import printable
from oomscope.report.commands.search_status import (
    Asked,
    Bracket,
    PlaceState,
    asked_on,
    bracket_of,
    place_states,
    probes_left,
    seconds_left,
)
from oomscope.report.sentences import count, short_hash, stage_text
from oomscope.report.text.ticker import rounded_text

WIDEST: Final = 100
"""Columns at most: a wider strip is no easier to read."""
RUNNING: Final = "running"
_ORDER: Final = (RUNNING, PlaceState.BAD, PlaceState.GOOD, PlaceState.UNTESTABLE, PlaceState.OPEN)
"""States in order of precedence, for a column that stands for several commits."""
_SIGNS: Final = {
    RUNNING: ("▸", ">", "bold"),
    PlaceState.BAD: ("✗", "x", "red"),
    PlaceState.GOOD: ("✓", "+", "green"),
    PlaceState.UNTESTABLE: ("?", "?", "yellow"),
    PlaceState.OPEN: ("━", "=", "yellow"),
    PlaceState.BEFORE: ("·", ".", "dim green"),
    PlaceState.AFTER: ("·", ".", "dim red"),
}
"""Sign, sign in ASCII, and style: colour alone never distinguishes signs."""

Cell = PlaceState | str


class Strip:
    """A rich renderable as wide as it is given room: the commits of a line, with those that are being probed."""

    def __init__(self, line: WalkedLine, asked: Sequence[Asked], bracket: Bracket, running: Collection[int]) -> None:
        self.line = line
        self.asked = asked
        self.bracket = bracket
        self.running = running

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST)
        text = Text(no_wrap=True)
        for cell in self.cells(width):
            sign, plain, style = _SIGNS[cell]
            text.append(plain if options.ascii_only else sign, style=style)
        yield text

    def cells(self, width: int) -> list[Cell]:
        """Return what each of ``width`` columns shows."""
        states: list[Cell] = list(place_states(self.line, self.asked, self.bracket))
        for place in self.running:
            states[place] = RUNNING
        count = len(states)
        if count < width:
            cells: list[Cell] = [self._beside(column * count // width) for column in range(width)]
            for place, state in enumerate(states):
                cells[(2 * place + 1) * width // (2 * count)] = state
            return cells
        edges = [column * count // width for column in range(width + 1)]
        return [_shown(states[first:end]) for first, end in pairwise(edges)]

    def _beside(self, place: int) -> PlaceState:
        """Return what fills the further columns of ``place``, beside its sign."""
        if self.bracket.good is not None and place <= self.bracket.good:
            return PlaceState.BEFORE
        return PlaceState.AFTER if self.bracket.bad is not None and place >= self.bracket.bad else PlaceState.OPEN


def _shown(states: Sequence[Cell]) -> Cell:
    return next((state for state in _ORDER if state in states), states[0])


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What is known of a search at one moment."""

    plan: SearchPlan | None = None
    """The plan that was announced last."""
    records: tuple[ProbeRecord, ...] = ()
    """The probes so far."""
    planned_at: int = 0
    """Number of probes before the plan."""
    asked: str = ""
    """The commit or keys that the search waits for."""
    running: tuple[RunningProbe, ...] = ()
    since: tuple[tuple[int, float], ...] = ()
    """Start of each running slot, in seconds of any clock."""


def live_view(watched: Watched, now: float) -> RenderableType:
    """Return the lines for a terminal; each is cut off where the terminal ends."""
    return Group(*_lines(watched, now))


def _lines(watched: Watched, now: float) -> Iterator[RenderableType]:
    plan = watched.plan
    asked: tuple[Asked, ...] = ()
    bracket = Bracket()
    if plan is not None and plan.line is not None and len(plan.line.places) > 1:
        asked = tuple(asked_on(plan.line, watched.records))
        bracket = bracket_of(asked)
        yield Strip(plan.line, asked, bracket, _places_running(plan.line, watched.running))
        if suspects := suspects_text(plan.line, bracket):
            yield _line(suspects)
    yield _line(progress_text(watched, asked, bracket, now))
    for work in watched.running:
        yield _line(work_text(work, watched, now), style="" if work.is_asked else "dim")
    if not watched.running and watched.asked:
        yield _line(f"probe {len(watched.records) + 1}: {watched.asked}")


def suspects_text(line: WalkedLine, bracket: Bracket) -> str | None:
    """Return between which commits the culprit is; None before both ends are known."""
    if bracket.good is None or bracket.bad is None:
        return None
    good, bad = (short_hash(line.places[place].commit) for place in (bracket.good, bracket.bad))
    if bracket.bad - bracket.good == 1:
        return f"at fault is {bad}: the commit before it that is measured, {good}, is good"
    among = count(bracket.bad - bracket.good, "commit")
    return f"at fault is one of {among}: after {good} (good), up to {bad} (bad)"


def progress_text(watched: Watched, asked: tuple[Asked, ...], bracket: Bracket, now: float) -> str:
    """Return how many probes are done and how many may follow, with a bound on the time where there is one."""
    done = f"{count(len(watched.records), 'probe')} done"
    if watched.plan is None:
        return done
    left = probes_left(watched.plan, watched.records[watched.planned_at :], asked, bracket)
    if left is None:
        return f"{done}, continuing with what is left to find" if watched.records else done
    text = f"{done}, at most {left:,} more"
    slots = {work.slot for work in watched.running if work.is_asked}
    began = [begun for slot, begun in watched.since if slot in slots]
    seconds = seconds_left(left, watched.records, now - min(began) if began else 0.0)
    return text if seconds is None else f"{text}, about {rounded_text(seconds)} for all of them"


def work_text(work: RunningProbe, watched: Watched, now: float) -> str:
    """Return what runs in a slot, how far it is and for how long, and last what may be cut off: what it measures."""
    label = work.label or (watched.asked if work.is_asked else "")
    what = f"probe {len(watched.records) + 1}" if work.is_asked else "ahead"
    began = dict(watched.since).get(work.slot)
    parts = [
        what,
        stage_text(work.progress) if work.progress else "",
        f"{now - began:.0f} s" if began is not None else "",
    ]
    return f"{work.slot + 1}  {', '.join(part for part in parts if part)}: {label}"


def _places_running(line: WalkedLine, running: tuple[RunningProbe, ...]) -> list[int]:
    """Return the places that are being probed; a label begins with the commit's short hash."""
    names = {short_hash(name): place for name, place in line.position.items() if name}
    found = (names.get(work.label.partition(" ")[0]) for work in running)
    return [place for place in found if place is not None]


def _line(text: str, style: str = "dim") -> Text:
    return Text(printable(text), style=style, no_wrap=True, overflow="crop")
