"""What every search that lays out commits does first: opens the repository, then makes ready what is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from oomscope.bisect.requests import CommitRequest, EnvironmentRequest
from oomscope.bisect.run.prober import Prober, Services
from oomscope.bisect.targets.absent_target import refuse_absent
from oomscope.bisect.targets.subjects import Subject, subject_of
from oomscope.bisect.vcs.commits import Commit
from oomscope.bisect.vcs.repository import Repository
from oomscope.probe.process.tempdirs import tempdir

_CLONE = "clone"


def open_repository(request: CommitRequest | EnvironmentRequest) -> Repository:
    """Return the repository of ``request``, once it is known that results can be kept outside it.

    Raises:
        GitError: there is none.
        UsageError: results would be kept in git's own directory.
        InputError: there is no place for them.
    """
    repository = Repository.open(request.repo)
    request.places.refuse_inside(repository.common)
    request.places.make()
    return repository


@contextmanager
def prepared(
    request: CommitRequest | EnvironmentRequest, repository: Repository, ends: Sequence[Commit], services: Services
) -> Iterator[tuple[Subject, Prober]]:
    """Yield what is measured of each commit, checked at ``ends``, and who measures it; clones are gone afterwards.

    Raises:
        UsageError: the path of the configuration or the harness cannot be, or no end has it.
        ConfigError: an override is wrong for an end that is measured without it.
    """
    with tempdir(request.places.checkouts.absolute(), "bisect") as place:
        subject: Subject = subject_of(request.subject, repository, place / _CLONE)
        subject = request.preparation.of(subject, repository)
        for end in ends:
            subject.check(end)
        refuse_absent(request.subject, request.preparation, repository, ends)
        with Prober.of(request, **services) as prober:
            yield subject, prober
