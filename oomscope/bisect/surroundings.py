"""``oomscope bisect REV --axis environment``: one commit, and what of its surroundings makes it go wrong."""

from __future__ import annotations

from typing import Unpack

from oomscope.bisect.absent_target import refuse_absent
from oomscope.bisect.axes import Axes, OneCommit
from oomscope.bisect.commits import Repository
from oomscope.bisect.delta_bisect import DeltaBisect
from oomscope.bisect.journalled import journalled
from oomscope.bisect.prober import Means, Prober
from oomscope.bisect.request import SurroundingsRequest
from oomscope.bisect.result import BisectResult
from oomscope.bisect.subjects import Subject, subject_of
from oomscope.probe.process.tempdirs import room

_CLONE = "clone"


@journalled
def bisect_surroundings(request: SurroundingsRequest, **means: Unpack[Means]) -> BisectResult:
    """Find the changes of the environment by which ``request.revision`` goes wrong.

    Args:
        request: what to search.
        means: see :class:`~oomscope.bisect.prober.Means`.

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
        mixture = Axes(OneCommit(subject, commit), request.layers)
        with Prober.of(request, **means) as prober:
            return DeltaBisect(mixture, prober, axis="environment", noise=request.noise).run()
