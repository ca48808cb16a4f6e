"""``oomscope bisect good.yaml..bad.yaml``: a minimal set of configuration keys at fault, and the bytes of each."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from oomscope.bisect.axes import Axes
from oomscope.bisect.commits import Repository
from oomscope.bisect.config_keys import ConfigEnd, ConfigKeys
from oomscope.bisect.delta_bisect import DeltaBisect
from oomscope.bisect.journalled import journalled
from oomscope.bisect.prober import Means, Prober
from oomscope.bisect.ranges import FileAt
from oomscope.bisect.request import ConfigRequest
from oomscope.bisect.result import BisectResult
from oomscope.bisect.subjects import ConfigSubject, path_in_repo
from oomscope.probe.machine.checks import check_card


@journalled
def bisect_configs(request: ConfigRequest, **means: Unpack[Means]) -> BisectResult:
    """Find the keys by which ``request.range.bad`` goes wrong where ``request.range.good`` does not.

    Args:
        request: what to search.
        means: see :class:`~oomscope.bisect.prober.Means`.

    Raises:
        ConfigError: a file or an override is wrong.
        GitError: a file that is named by a commit is not there.
        InputError: there is no place for results.
        MachineUnfitError: this machine cannot probe.
    """
    request.places.make()
    good, bad = (_end(file, request) for file in (request.range.good, request.range.bad))
    keys = ConfigKeys(good, bad, request.dialect, request.overrides)
    mixture = Axes(keys, request.layers) if request.layers else keys
    with Prober.of(request, **means) as prober:
        return DeltaBisect(mixture, prober, noise=request.noise).run()


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
    from oomscope.config.dialects.load import load_in
    from oomscope.config.load import read_file

    loaded = load_in(request.dialect, read_file(file), source=str(file), overrides=request.overrides)
    check_card(loaded)
    return ConfigEnd(name=str(file), config=loaded.config, file=str(file))
