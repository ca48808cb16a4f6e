"""The cheapest changes under which a configuration fits a card: each tried by a probe, none that the rules refuse.

Single changes are tried in the documents' order until enough of them fit, and then those of the others that are
estimated to cost less than the best of these. What fails over fragments alone is tried with expandable segments too,
which cost nothing. Where no single change fits, the best of each family are laid one upon the other until the sum fits,
and what the sum can do without is taken out again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from oomscope.errors import ConfigError
from oomscope.probe.machine.checks import check_card
from oomscope.probe.tuning.combined_remedies import laid_upon, overrides_together, title
from oomscope.probe.tuning.remedies import Family, Remedy, remedies
from oomscope.probe.tuning.variants import (
    LoadWith,
    Probe,
    Variant,
    estimated_sequence,
    idle_finding,
    launched,
    measure_variant,
    objection_text,
    side_by_side,
)

SCHEMA_VERSION = 2
_RESPLIT = frozenset(f"parallel.{axis}_parallel_size" for axis in ("tensor_model", "pipeline_model", "context", "data"))
"""Keys of another split of the model. Its estimate leaves out that thinner products are slower, and Megatron-Bridge's
memory tuning guide, which measured that, advises against it: such changes come last, whatever the estimate."""


def splits_anew(overrides: Sequence[str]) -> bool:
    """Return whether ``overrides`` cut the model into other parts, over the same ranks."""
    return any(override.partition("=")[0] in _RESPLIT for override in overrides)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change, or several together, and what came of it."""

    names: tuple[str, ...]
    families: tuple[Family, ...]
    variant: Variant
    slowdown: float | None
    """Estimated time of a step over that of the configuration as it is, minus one; None where it is not known."""
    saved_bytes: int | None
    """Requested bytes less than now, of the rank that needs most; None where either is not known."""

    @property
    def splits_anew(self) -> bool:
        """Whether the model is cut into other parts, over the same ranks."""
        return splits_anew(self.variant.overrides)


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
    """Cheapest first, then those that split the model anew."""
    insufficient: tuple[Proposal, ...] = ()
    """What was tried in vain, in the order in which it was tried."""
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
_Trial = Callable[[threading.Event], list[tuple[_Sum, Variant]]]


def advise(
    load: LoadWith,
    *,
    probe: Probe = launched,
    jobs: int = 1,
    enough: int | None = 3,
    announce: Announce | None = None,
) -> Advice:
    """Return changes under which the configuration fits its card.

    Args:
        load: gives the configuration, with overrides on top.
        probe: measures one rank.
        jobs: probes at once.
        enough: how many changes that fit end the search, but for cheaper ones; None tries all of them, also where it
            fits as it is, for the whole table of what each saves and costs.
        announce: told of each variant as it comes.

    Raises:
        ConfigError: the configuration itself is refused, or its card or allocator settings are unknown.
    """
    return _Adviser(load, probe, jobs, announce or (lambda _name, _variant: None)).advice(enough)


@dataclass
class _Adviser:
    load: LoadWith
    probe: Probe
    jobs: int
    announce: Announce
    tried: list[Proposal] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    probes: int = 0
    _known: frozenset[str] = frozenset()
    """Rules of which the configuration as it is is warned."""
    _now: Variant | None = None
    _free: Remedy | None = None
    """The allocator's change, where it does not suffice alone."""

    def advice(self, enough: int | None) -> Advice:
        loaded = self.load(())
        check_card(loaded)
        self._known = frozenset(finding.rule for finding in loaded.findings)
        self._now = now = self._measured((), "as it is")
        if now.outcome == "oom" or (now.fits and enough is None):
            self._try_single(list(self._allowed(remedies(loaded.config))), enough)
            if not now.fits and not self._fitting:
                self._try_together()
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
        new = tuple(finding for finding in loaded.findings if finding.rule not in self._known)
        idle = idle_finding(replace(loaded, findings=new), overrides)
        return idle.message if idle else None

    def _try_single(self, changes: Sequence[Remedy], enough: int | None) -> None:
        """Try what costs nothing first, then in order, until enough fit; then what may be cheaper than the best."""
        free = [change for change in changes if change.family == "allocator"]
        others = [change for change in changes if change.family != "allocator"]
        self._try(free, enough)
        self._free = None if self._fitting else next(iter(free), None)
        untried = self._try(others, enough)
        if enough is not None and self._fitting:
            self._try_cheaper(untried)

    def _try(self, changes: Sequence[Remedy], enough: int | None) -> list[Remedy]:
        """Try ``changes`` in order until ``enough`` fit in all, and return those that were not tried."""
        if enough is not None and len(self._fitting) >= enough:
            return list(changes)
        found: dict[int, list[Proposal]] = {}
        fitting = len(self._fitting)
        for number, outcomes in side_by_side([self._trial(change) for change in changes], self.jobs):
            found[number] = [self._told(changed, variant) for changed, variant in outcomes]
            fitting += sum(proposal.variant.fits for proposal in found[number])
            if enough is not None and fitting >= enough:
                break
        self.tried += [proposal for number in sorted(found) for proposal in found[number]]
        return [change for number, change in enumerate(changes) if number not in found]

    def _try_cheaper(self, changes: Sequence[Remedy]) -> None:
        """Try those of ``changes`` that are estimated below the best that fits, cheapest first, until one fits too."""
        best = min(self._fitting, key=_rank).slowdown
        cheaper: list[tuple[float, int]] = []
        for place, change in enumerate(changes):
            cost = self._slowdown(estimated_sequence(self.load(change.overrides).config))
            if cost is not None and best is not None and cost < best and not splits_anew(change.overrides):
                cheaper.append((cost, place))
        self._try([changes[place] for _cost, place in sorted(cheaper)], len(self._fitting) + 1)

    def _trial(self, change: Remedy) -> _Trial:
        """Return what measures ``change``, and where fragments alone stand in its way, with expandable segments too."""

        def trial(stop: threading.Event) -> list[tuple[_Sum, Variant]]:
            variant = self._measure(change.overrides, stop)
            if not variant.fails_over_fragments or self._free is None:
                return [((change,), variant)]
            both = (self._free, change)
            if self._objection(overrides_together(both)) is not None:
                return [((change,), variant)]
            return [((change,), variant), (both, self._measure(overrides_together(both), stop))]

        return trial

    def _try_together(self) -> None:
        """Lay the best change of each family upon those before, until the sum fits; then take out what it can spare."""
        chosen: _Sum = ()
        least: int | None = None
        for change in self._best_of_families():
            together = laid_upon(chosen, change)
            if self._objection(overrides_together(together)) is not None:
                continue
            proposal = self._tried(together)
            live = proposal.variant.requested_bytes
            if chosen and least is not None and live is not None and live > least:
                continue
            chosen, least = together, live
            if proposal.variant.fits:
                self._spare(chosen)
                return

    def _best_of_families(self) -> list[Remedy]:
        """Return of each family the change that leaves least alive, in the documents' order."""
        best: dict[Family, Proposal] = {}
        for proposal in self.tried:
            family = proposal.families[0]
            known = best.get(family)
            if len(proposal.names) == 1 and (known is None or (proposal.saved_bytes or 0) > (known.saved_bytes or 0)):
                best[family] = proposal
        return [
            Remedy(family=family, name=proposal.names[0], overrides=proposal.variant.overrides)
            for family, proposal in best.items()
            if family == "allocator" or (proposal.saved_bytes or 0) > 0
        ]

    def _spare(self, changes: _Sum) -> None:
        """Take out, dearest family first, each change without which the rest fits too."""
        kept = changes
        for change in reversed(changes):
            rest = tuple(other for other in kept if other is not change)
            if self._objection(overrides_together(rest)) is None and self._tried(rest).variant.fits:
                kept = rest

    def _tried(self, changes: _Sum) -> Proposal:
        """Return what comes of ``changes``: from memory, where that was tried before."""
        overrides = overrides_together(changes)
        for known in self.tried:
            if known.variant.overrides == overrides:
                return known
        proposal = self._proposal(changes, self._measured(overrides, title(changes)))
        self.tried.append(proposal)
        return proposal

    def _measure(self, overrides: Sequence[str], stop: threading.Event) -> Variant:
        first = self._now.rank if self._now else None
        return measure_variant(self.load, overrides, self.probe, stop, first_rank=first)

    def _measured(self, overrides: Sequence[str], name: str) -> Variant:
        ((_, variant),) = side_by_side([lambda stop: self._measure(overrides, stop)], 1)
        self._tell(name, variant)
        return variant

    def _told(self, changes: _Sum, variant: Variant) -> Proposal:
        self._tell(title(changes), variant)
        return self._proposal(changes, variant)

    def _tell(self, name: str, variant: Variant) -> None:
        self.probes += 1
        self.announce(name, variant)

    def _slowdown(self, sequence_s: float | None) -> float | None:
        now_s = self._now.sequence_s if self._now else None
        return sequence_s / now_s - 1 if now_s and sequence_s is not None else None

    def _proposal(self, changes: _Sum, variant: Variant) -> Proposal:
        now = self._now
        saved = None
        if now is not None and now.requested_bytes is not None and variant.requested_bytes is not None:
            saved = now.requested_bytes - variant.requested_bytes
        return Proposal(
            names=tuple(change.name for change in changes),
            families=tuple(change.family for change in changes),
            variant=variant,
            slowdown=self._slowdown(variant.sequence_s),
            saved_bytes=saved,
        )


def _rank(proposal: Proposal) -> tuple[bool, float]:
    return proposal.splits_anew, proposal.slowdown or 0.0
