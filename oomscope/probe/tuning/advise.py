"""The cheapest changes under which a configuration fits a card: each tried by a probe, none that the rules refuse.

Single changes are tried in the documents' order until enough of them fit with room to spare, and then those of the
others that are estimated to cost less than the best of these. What fails over fragments alone, or fits tightly, is
tried with expandable segments too, which cost nothing. Where no single change leaves room, changes of several families
are combined: those whose savings sum up to most, and then, since savings of the same bytes do not add up, the best that
do without one of these. What the combination can spare is taken out again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

from oomscope.errors import ConfigError
from oomscope.probe.machine.checks import check_card
from oomscope.probe.tuning.remedies import Family, Remedy, are_compatible, overrides_of, remedies
from oomscope.probe.tuning.variants import (
    LoadWith,
    Probe,
    Variant,
    idle_finding,
    launched,
    measure_variant,
    objection_text,
    per_sequence,
    side_by_side,
    slowest_step,
)

SCHEMA_VERSION = 3
_RESPLIT = frozenset(f"parallel.{axis}_parallel_size" for axis in ("tensor_model", "pipeline_model", "context", "data"))
"""Keys of another split of the model. Its estimate leaves out that thinner products are slower, and Megatron-Bridge's
memory tuning guide, which measured that, advises against it: such changes come last, whatever the estimate."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change, or several together, and its outcome."""

    names: tuple[str, ...]
    variant: Variant
    slowdown: float | None
    """Estimated time of a step over that of the configuration as it is, minus one; None where it is not known."""
    saved_bytes: int | None
    """Requested bytes saved on the rank that needs most; None where either number is not known."""

    @property
    def splits_anew(self) -> bool:
        """Whether the model is cut into other parts, over the same ranks."""
        return _splits_anew(self.variant.overrides)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A change that the rules do not allow here, or that would do nothing."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What was tried and what fits."""

    now: Variant
    """The configuration as it is."""
    fitting: tuple[Proposal, ...] = ()
    """Proposals that fit: the cheapest first, then those with room, then those with fewer changes; new splits last."""
    insufficient: tuple[Proposal, ...] = ()
    """Proposals that do not fit, in the order in which they were tried."""
    refused: tuple[Refused, ...] = ()
    probes: int = 0
    """Variants that were probed."""
    schema_version: int = SCHEMA_VERSION

    @property
    def solved(self) -> bool:
        """Whether it fits as it is or under some change."""
        return self.now.fits or bool(self.fitting)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``oomscope advise --json``."""
        return asdict(self)


Announce = Callable[[str, Variant], None]
_Sum = tuple[Remedy, ...]


def advise(
    load: LoadWith,
    *,
    probe: Probe = launched,
    jobs: int = 1,
    enough: int | None = 3,
    announce: Announce | None = None,
) -> Advice:
    """Return changes under which the configuration fits its card.

    ``enough`` changes that fit with room to spare end the search, but for cheaper ones; None tries all of them, also
    where it fits as it is, for the whole table of what each saves and costs. Each variant is announced as it comes.

    Raises:
        ConfigError: the configuration itself is refused, or its card or allocator settings are unknown.
    """
    return _Adviser(load, probe, jobs, announce).advice(enough)


@dataclass
class _Adviser:
    load: LoadWith
    probe: Probe
    jobs: int
    announce: Announce | None
    tried: list[Proposal] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    probes: int = 0
    known: frozenset[str] = frozenset()
    """Rules that warn of the present configuration."""
    now: Variant | None = None
    free: Remedy | None = None
    """Change of the allocator's settings, if it does not suffice alone."""

    def advice(self, enough: int | None) -> Advice:
        loaded = self.load(())
        check_card(loaded)
        self.known = frozenset(finding.rule for finding in loaded.findings)
        now = self.now = self._measured(())
        if now.outcome == "oom" or (now.fits and enough is None):
            changes = list(self._allowed(remedies(loaded.config)))
            self._try_single(changes, enough)
            if not now.fits and not self._roomy:
                self._try_together(changes)
        return Advice(
            now=now,
            fitting=tuple(sorted(self._fitting, key=_rank)),
            insufficient=tuple(proposal for proposal in self.tried if not proposal.variant.fits),
            refused=tuple(self.refused),
            probes=self.probes,
        )

    @property
    def _fitting(self) -> list[Proposal]:
        return [proposal for proposal in self.tried if proposal.variant.fits]

    @property
    def _roomy(self) -> list[Proposal]:
        return [proposal for proposal in self.tried if proposal.variant.is_roomy]

    def _allowed(self, changes: Iterable[Remedy]) -> Iterator[Remedy]:
        """Yield the changes that the rules accept and of which they do not warn that they do nothing."""
        for change in changes:
            reason = self._objection(change.overrides)
            if reason is None:
                yield change
            else:
                self.refused.append(Refused(name=change.name, reason=reason))

    def _objection(self, overrides: Sequence[str]) -> str | None:
        try:
            loaded = self.load(overrides)
        except ConfigError as error:
            return objection_text(error)
        new = tuple(finding for finding in loaded.findings if finding.rule not in self.known)
        idle = idle_finding(replace(loaded, findings=new), overrides)
        return idle.message if idle else None

    def _try_single(self, changes: Sequence[Remedy], enough: int | None) -> None:
        """Try what costs nothing first, then in order, until enough leave room; then what may be cheaper than these."""
        free = [change for change in changes if change.family == "allocator"]
        self._try(free, enough)
        self.free = None if self._roomy else next(iter(free), None)
        untried = self._try([change for change in changes if change.family != "allocator"], enough)
        if enough is None or not self._roomy:
            return
        best = min(self._roomy, key=_rank).slowdown
        cheaper: list[tuple[float, int]] = []
        for place, change in enumerate(untried):
            config = self.load(change.overrides).config
            cost = self._slowdown(per_sequence(slowest_step(config), config))
            if cost is not None and best is not None and cost < best and not _splits_anew(change.overrides):
                cheaper.append((cost, place))
        self._try([untried[place] for _cost, place in sorted(cheaper)], len(self._roomy) + 1)

    def _try(self, changes: Sequence[Remedy], enough: int | None) -> list[Remedy]:
        """Try ``changes`` in order until ``enough`` leave room in all, and return those that were not tried."""
        found: dict[int, list[Proposal]] = {}
        roomy = len(self._roomy)
        if enough is not None and roomy >= enough:
            return list(changes)
        trials = [partial(self._trial, change) for change in changes]
        for number, outcomes in side_by_side(trials, self.jobs):
            found[number] = [self._proposal(changed, variant) for changed, variant in outcomes]
            roomy += sum(proposal.variant.is_roomy for proposal in found[number])
            if enough is not None and roomy >= enough:
                break
        self.tried += [proposal for number in sorted(found) for proposal in found[number]]
        return [change for number, change in enumerate(changes) if number not in found]

    def _trial(self, change: Remedy, stop: threading.Event) -> list[tuple[_Sum, Variant]]:
        """Measure ``change``, and where fragmentation may prevent it, with expandable segments too."""
        alone = self._measure(change.overrides, stop)
        both: _Sum = (self.free, change) if self.free is not None else ()
        if (
            not ((alone.fails_over_fragments or alone.is_tight) and both)
            or self._objection(overrides_of(both)) is not None
        ):
            return [((change,), alone)]
        return [((change,), alone), (both, self._measure(overrides_of(both), stop))]

    def _try_together(self, changes: Sequence[Remedy]) -> None:
        """Try combinations of ``changes`` until one leaves room; then take out what the last that fits can spare."""
        sums = self._sums(changes)
        plan = self._first_allowed(sums)
        last: _Sum = ()
        for spared in (None, *(change for change in plan if change.family != "allocator")):
            chosen = self._first_allowed([each for each in sums if spared not in each])
            variant = self._tried(chosen).variant if chosen else None
            if variant is not None and variant.fits:
                last = chosen
                if variant.is_roomy:
                    break
        self._thin_out(last)

    def _thin_out(self, chosen: _Sum) -> None:
        """Take out of a combination that fits what it can spare, the dearest change first."""
        costs = {proposal.variant.overrides: _rank(proposal) for proposal in self.tried}
        for change in sorted(chosen, key=lambda change: costs[change.overrides], reverse=True):
            rest = tuple(other for other in chosen if other is not change)
            if not rest or self._objection(overrides_of(rest)) is not None:
                continue
            before, after = self._tried(chosen).variant, self._tried(rest).variant
            if after.is_roomy or (after.fits and not before.is_roomy):
                chosen = rest

    def _first_allowed(self, sums: Iterable[_Sum]) -> _Sum:
        return next((each for each in sums if self._objection(overrides_of(each)) is None), ())

    def _sums(self, changes: Iterable[Remedy]) -> list[_Sum]:
        """Return the combinations of at most one change a family.

        Those come first whose own savings sum up to most, and of equal ones those of more changes, which leave more
        room. Left out is what increases live bytes.
        """
        tried = ((proposal.variant.overrides, proposal.saved_bytes) for proposal in self.tried)
        saved = {overrides: size for overrides, size in tried if size is not None and size >= 0}
        options: dict[Family, list[Remedy | None]] = {}
        for change in changes:
            if change.overrides in saved:
                options.setdefault(change.family, [None]).append(change)
        chosen = (tuple(change for change in each if change is not None) for each in product(*options.values()))
        sums = [each for each in chosen if each and are_compatible(each)]
        return sorted(sums, key=lambda each: (-sum(saved[change.overrides] for change in each), -len(each)))

    def _tried(self, changes: _Sum) -> Proposal:
        """Return the outcome of ``changes``, remembered where they were tried before."""
        overrides = overrides_of(changes)
        for known in self.tried:
            if known.variant.overrides == overrides:
                return known
        self.tried.append(self._proposal(changes, self._measured(overrides)))
        return self.tried[-1]

    def _measure(self, overrides: Sequence[str], stop: threading.Event) -> Variant:
        return measure_variant(self.load, overrides, self.probe, stop)

    def _measured(self, overrides: Sequence[str]) -> Variant:
        ((_, variant),) = side_by_side([partial(self._measure, overrides)], 1)
        if not overrides:
            self._report_progress("as it is", variant)
        return variant

    def _report_progress(self, name: str, variant: Variant) -> None:
        self.probes += 1
        if self.announce is not None:
            self.announce(name, variant)

    def _slowdown(self, sequence_s: float | None) -> float | None:
        now_s = self.now.sequence_s if self.now else None
        return sequence_s / now_s - 1 if now_s and sequence_s is not None else None

    def _proposal(self, changes: _Sum, variant: Variant) -> Proposal:
        self._report_progress(" + ".join(change.name for change in changes), variant)
        now = self.now.requested_bytes if self.now else None
        is_known = now is not None and variant.requested_bytes is not None
        return Proposal(
            names=tuple(change.name for change in changes),
            variant=variant,
            slowdown=self._slowdown(variant.sequence_s),
            saved_bytes=(now or 0) - (variant.requested_bytes or 0) if is_known else None,
        )


def _splits_anew(overrides: Sequence[str]) -> bool:
    return any(override.partition("=")[0] in _RESPLIT for override in overrides)


def _rank(proposal: Proposal) -> tuple[bool, float, bool, int]:
    return proposal.splits_anew, proposal.slowdown or 0.0, proposal.variant.is_tight, len(proposal.names)
