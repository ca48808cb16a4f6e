"""``oomscope bisect good.yaml..bad.yaml``: a minimal set of configuration keys at fault, and the bytes of each."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from oomscope.bisect.changes.change_set import CombinedChanges
from oomscope.bisect.changes.config_keys import ConfigEnd, ConfigKeys
from oomscope.bisect.changes.delta_bisect import DeltaBisect
from oomscope.bisect.journal.journalled import journalled
from oomscope.bisect.requests import ConfigRequest
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.run.prober import Prober, Services
from oomscope.bisect.targets.subjects import ConfigSubject, path_in_repo
from oomscope.bisect.vcs.ranges import FileAt
from oomscope.bisect.vcs.repository import Repository
from oomscope.probe.machine.checks import check_card


@journalled("configs")
def bisect_configs(request: ConfigRequest, **services: Unpack[Services]) -> BisectResult:
    """Find the keys by which ``request.range.bad`` goes wrong where ``request.range.good`` does not.

    Args:
        request: what to search.
        services: see :class:`~oomscope.bisect.run.prober.Services`.

    Raises:
        ConfigError: a file or an override is wrong.
        GitError: a file that is named by a commit is not there.
        InputError: there is no place for results.
        MachineUnfitError: this machine cannot probe.
    """
    request.places.make()
    good, bad = (_end(file, request) for file in (request.range.good, request.range.bad))
    keys = ConfigKeys(good, bad, request.dialect, request.overrides)
    change_set = CombinedChanges((keys, *request.layers)) if request.layers else keys
    with Prober.of(request, **services) as prober:
        return DeltaBisect(change_set, prober, noise=request.noise).run()


def _end(file: Path | FileAt, request: ConfigRequest) -> ConfigEnd:
    return _on_disk(file, request) if isinstance(file, Path) else _in_commit(file, request)


def _in_commit(file: FileAt, request: ConfigRequest) -> ConfigEnd:
    repository = Repository.open(request.repo)
    request.places.refuse_inside(repository.common)
    subject = ConfigSubject(repository, path_in_repo(file.path), request.overrides, request.dialect)
    commit = repository.resolve(file.commit or file.revision)
    return ConfigEnd(
        name=str(file), config=subject.read(commit), file=subject.written(commit), write=(subject.write(commit),)
    )


def _on_disk(file: Path, request: ConfigRequest) -> ConfigEnd:
    from oomscope.config.importers.load import load_in
    from oomscope.config.load import read_file

    loaded = load_in(request.dialect, read_file(file), source=str(file), overrides=request.overrides)
    check_card(loaded)
    return ConfigEnd(name=str(file), config=loaded.config, file=str(file))
