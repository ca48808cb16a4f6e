"""``oomscope bisect good.yaml..bad.yaml``: a minimal set of configuration keys at fault, and the bytes of each."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from oomscope.bisect.config_keys import ConfigEnd, ConfigKeys
from oomscope.bisect.delta_bisect import DeltaBisect
from oomscope.bisect.prober import Means, Prober
from oomscope.bisect.request import ConfigRequest
from oomscope.bisect.result import BisectResult
from oomscope.probe.card import check_card


def bisect_configs(request: ConfigRequest, **means: Unpack[Means]) -> BisectResult:
    """Find the keys by which ``request.range.bad`` goes wrong where ``request.range.good`` does not.

    Args:
        request: what to search.
        means: see :class:`~oomscope.bisect.prober.Means`.

    Raises:
        ConfigError: a file or an override is wrong.
        InputError: there is no place for results.
        MachineUnfitError: this machine cannot probe.
    """
    request.places.make()
    good, bad = (_end(file, request) for file in (request.range.good, request.range.bad))
    keys = ConfigKeys(good, bad, request.dialect, request.overrides)
    return DeltaBisect(keys, Prober.of(request, **means)).run()


def _end(file: Path, request: ConfigRequest) -> ConfigEnd:
    from oomscope.config.dialects.load import load_in
    from oomscope.config.load import read_file

    loaded = load_in(request.dialect, read_file(file), source=str(file), overrides=request.overrides)
    check_card(loaded)
    return ConfigEnd(name=str(file), config=loaded.config, file=str(file))
