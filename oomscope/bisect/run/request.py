"""What all searches have in common in their requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from oomscope.bisect.results.noise import Noise
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.run.places import JournalUse, Places
from oomscope.bisect.run.slurm import ClusterSettings


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """What all searches have in common."""

    bad: Bad = field(default_factory=Bad)
    deadline_s: float | None = None
    """Seconds after which the search ends with what it knows; None for no end."""
    use_cache: bool = True
    """Take results of earlier searches; those of this one are kept in any case."""
    places: Places = field(default_factory=Places.default)
    jobs: int = 1
    """Probes side by side: what is likely to be asked next is begun early. It changes no answer."""
    cluster: ClusterSettings | None = None
    """Where probes are run as jobs; None for this machine."""
    journal: JournalUse = field(default_factory=JournalUse)
    """Begin a journal, or go on with one."""
    noise: Noise | None = None
    """What to do about answers that may be wrong; None for what the backend calls for."""
