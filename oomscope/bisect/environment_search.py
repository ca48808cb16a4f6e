"""``oomscope bisect REV --axis environment``: one commit, and what of its surroundings makes it go wrong."""

from __future__ import annotations

from typing import Unpack

from oomscope.bisect.changes.change_set import CombinedChanges, OneCommit
from oomscope.bisect.changes.delta_bisect import DeltaBisect
from oomscope.bisect.journal.journalled import journalled
from oomscope.bisect.requests import EnvironmentRequest
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.run.prober import Prober, Services
from oomscope.bisect.targets.absent_target import refuse_absent
from oomscope.bisect.targets.subjects import Subject, subject_of
from oomscope.bisect.vcs.repository import Repository
from oomscope.probe.process.tempdirs import room

_CLONE = "clone"


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
    repository = Repository.open(request.repo)
    request.places.refuse_inside(repository.common)
    request.places.make()
    commit = repository.resolve(request.revision)
    with room(request.places.checkouts.absolute(), "bisect") as place:
        subject: Subject = subject_of(request.subject, repository, place / _CLONE)
        subject = request.preparation.of(subject, repository)
        subject.check(commit)
        refuse_absent(request.subject, request.preparation, repository, (commit,))
        mixture = CombinedChanges((OneCommit(subject, commit), *request.layers))
        with Prober.of(request, **services) as prober:
            return DeltaBisect(mixture, prober, axis="environment", noise=request.noise).run()
