"""``oomscope bisect REV --axis environment``: one commit, and what of its surroundings makes it go wrong."""

from __future__ import annotations

from typing import Unpack

from oomscope.bisect.changes.change_set import CombinedChanges, OneCommit
from oomscope.bisect.changes.delta_bisect import DeltaBisect
from oomscope.bisect.journal.journalled import journalled
from oomscope.bisect.requests import EnvironmentRequest
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.run.prober import Services
from oomscope.bisect.search_setup import open_repository, prepared


@journalled("surroundings")
def bisect_environment(request: EnvironmentRequest, **services: Unpack[Services]) -> BisectResult:
    """Find the changes of the environment by which ``request.revision`` goes wrong.

    Args:
        request: what to search.
        services: see :class:`~oomscope.bisect.run.prober.Services`.

    Raises:
        GitError: the repository or the revision cannot be used.
        UsageError: the configuration's path or the harness cannot be, or the place lies in git's own directory.
        ConfigError: an override is wrong.
        InputError: there is no place for clones and results.
        MachineUnfitError: this machine cannot probe.
    """
    repository = open_repository(request)
    commit = repository.resolve(request.revision)
    with prepared(request, repository, (commit,), services) as (subject, prober):
        changes = CombinedChanges((OneCommit(subject, commit), *request.layers))
        return DeltaBisect(changes, prober, axis="environment", noise=request.noise).run()
