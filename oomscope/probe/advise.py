"""The cheapest changes under which a configuration fits a card: each tried by a probe, none that the rules refuse.

Single changes are tried in the documents' order until enough of them fit. Where none does, the best of each family
are laid one upon the other until the sum fits, and what the sum can do without is taken out again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from oomscope.errors import ConfigError
from oomscope.probe.remedies import Family, Remedy, remedies
from oomscope.probe.variants import LoadWith, Probe, Variant, launched, measure_variant, objection_text, side_by_side

SCHEMA_VERSION = 1
_STILL_HELP = frozenset({"O8", "O14"})
"""Warnings that a change does less than it could, or costs more; other warnings of its keys say that it is idle."""
_RESPLIT = frozenset(f"parallel.{axis}_parallel_size" for axis in ("tensor_model", "pipeline_model", "context", "data"))
"""Keys of another split of the model. Its estimate leaves out that thinner products are slower, and Megatron-Bridge's
memory tuning guide, which measured that, advises against it: such changes come last, whatever the estimate."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change, or several together, and what came of it."""

    names: tuple[str, ...]
    families: tuple[Family, ...]
    variant: Variant
    slowdown: float | None
    """Estimated time of a step over that of the configuration as it is, minus one; None where it is not known."""
    saved_bytes: int | None
    """Live bytes less than now, of the rank that needs most; None where either is not known."""

    @property
    def splits_anew(self) -> bool:
        """Whether the model is cut into other parts, over the same ranks."""
        return any(override.partition("=")[0] in _RESPLIT for override in self.variant.overrides)


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
        enough: how many single changes that fit end the search; None tries all of them, also where it fits as it is,
            for the whole table of what each saves and costs.
        announce: told of each variant as it comes.

    Raises:
        ConfigError: the configuration itself is refused.
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
    _now: Variant | None = None

    def advice(self, enough: int | None) -> Advice:
        loaded = self.load(())
        now = self._measured("as it is", ())
        self._now = now
        if now.outcome == "oom" or (now.fits and enough is None):
            self._try_single(list(self._allowed(remedies(loaded.config), {f.rule for f in loaded.findings})), enough)
            if not now.fits and not any(proposal.variant.fits for proposal in self.tried):
                self._try_together()
        fitting = [proposal for proposal in self.tried if proposal.variant.fits]
        return Advice(
            now=now,
            fitting=tuple(sorted(fitting, key=lambda proposal: (proposal.splits_anew, proposal.slowdown or 0.0))),
            insufficient=tuple(proposal for proposal in self.tried if not proposal.variant.fits),
            refused=tuple(self.refused),
            probes=self.probes,
        )

    def _allowed(self, changes: Iterable[Remedy], known: set[str]) -> Iterable[Remedy]:
        """Yield the changes that the rules accept and of which they do not warn that they do nothing."""
        for change in changes:
            reason = self._objection(change.overrides, known)
            if reason is None:
                yield change
            else:
                self.refused.append(Refused(name=change.name, reason=reason))

    def _objection(self, overrides: Sequence[str], known: set[str]) -> str | None:
        try:
            loaded = self.load(overrides)
        except ConfigError as error:
            return objection_text(error)
        keys = {override.partition("=")[0] for override in overrides}
        idle = [row for row in loaded.findings if row.rule not in known | _STILL_HELP and row.keys[0] in keys]
        return idle[0].message if idle else None

    def _try_single(self, changes: Sequence[Remedy], enough: int | None) -> None:
        calls = [self._call(change.overrides) for change in changes]
        found: dict[int, Proposal] = {}
        for number, variant in side_by_side(calls, self.jobs):
            change = changes[number]
            self._tell(change.name, variant)
            found[number] = self._proposal([change], variant)
            if enough is not None and sum(proposal.variant.fits for proposal in found.values()) >= enough:
                break
        self.tried += [found[number] for number in sorted(found)]

    def _try_together(self) -> None:
        """Lay the best change of each family upon those before, until the sum fits; then take out what it can spare."""
        chosen: list[Remedy] = []
        for change in self._best_of_families():
            together = [*chosen, change]
            if not self._is_loadable(together):
                continue
            if not chosen:
                chosen = together
                continue
            variant = self._measured(_title(together), _overrides(together))
            self.tried.append(self._proposal(together, variant))
            chosen = together
            if variant.fits:
                self._spare(chosen)
                return

    def _is_loadable(self, changes: Sequence[Remedy]) -> bool:
        try:
            self.load(_overrides(changes))
        except ConfigError:
            return False
        return True

    def _best_of_families(self) -> list[Remedy]:
        """Return of each family the change that leaves least alive, in the documents' order."""
        best: dict[Family, Proposal] = {}
        for proposal in self.tried:
            family = proposal.families[0]
            known = best.get(family)
            if known is None or (proposal.saved_bytes or 0) > (known.saved_bytes or 0):
                best[family] = proposal
        return [
            Remedy(family=family, name=proposal.names[0], overrides=proposal.variant.overrides)
            for family, proposal in best.items()
            if family == "allocator" or (proposal.saved_bytes or 0) > 0
        ]

    def _spare(self, changes: list[Remedy]) -> None:
        """Take out, dearest family first, each change without which the rest fits too; what failed before fails."""
        kept, known = list(changes), {proposal.variant.overrides for proposal in self.tried}
        for change in reversed(changes):
            rest = [other for other in kept if other is not change]
            if _overrides(rest) in known or not self._is_loadable(rest):
                continue
            variant = self._measured(_title(rest), _overrides(rest))
            self.tried.append(self._proposal(rest, variant))
            if variant.fits:
                kept = rest

    def _call(self, overrides: Sequence[str]) -> Callable[[threading.Event], Variant]:
        first = self._now.rank if self._now else None
        return lambda stop: measure_variant(self.load, overrides, self.probe, stop, first_rank=first)

    def _measured(self, name: str, overrides: Sequence[str]) -> Variant:
        ((_, variant),) = side_by_side([self._call(overrides)], 1)
        self._tell(name, variant)
        return variant

    def _tell(self, name: str, variant: Variant) -> None:
        self.probes += 1
        self.announce(name, variant)

    def _proposal(self, changes: Sequence[Remedy], variant: Variant) -> Proposal:
        now = self._now
        slowdown = saved = None
        if now is not None and now.sequence_s and variant.sequence_s is not None:
            slowdown = variant.sequence_s / now.sequence_s - 1
        if now is not None and now.live_bytes is not None and variant.live_bytes is not None:
            saved = now.live_bytes - variant.live_bytes
        return Proposal(
            names=tuple(change.name for change in changes),
            families=tuple(change.family for change in changes),
            variant=variant,
            slowdown=slowdown,
            saved_bytes=saved,
        )


def _title(changes: Sequence[Remedy]) -> str:
    return " + ".join(change.name for change in changes)


def _overrides(changes: Sequence[Remedy]) -> tuple[str, ...]:
    """Return all overrides; of those for one key the last counts."""
    keys: dict[str, str] = {}
    for change in changes:
        for override in change.overrides:
            keys[override.partition("=")[0]] = override
    return tuple(keys.values())
