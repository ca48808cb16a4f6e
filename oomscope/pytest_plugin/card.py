"""The virtual card of a pytest run: loaded before torch is imported, and shared with the processes that tests start."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oomscope.virtual import CardSettings

BACKENDS = ("auto", "virtual", "cuda")
WITHOUT_GPU = "run these tests with -o oomscope_backend=virtual, which needs no GPU"
LEDGER = pytest.StashKey[str]()
"""The file through which the processes of the run share the virtual card."""


def choose_card(config: pytest.Config) -> None:
    """Refuse an unknown backend or card, and load the virtual card where that is the backend.

    Raises:
        pytest.UsageError: the ini file names a backend or a card that there is not, or the virtual card cannot be
            loaded.
    """
    backend, gpu = config.getini("oomscope_backend"), config.getini("oomscope_gpu")
    if backend not in BACKENDS:
        raise pytest.UsageError(f"oomscope_backend = {backend}: no such backend; give one of {', '.join(BACKENDS)}")
    if (not gpu and backend != "virtual") or LEDGER in config.stash:
        return
    from oomscope import virtual
    from oomscope.errors import MachineUnfitError, UsageError
    from oomscope.probe.targets.program.receipt import VARIABLE as PROGRAM
    from oomscope.virtual.cards import DEFAULT_CARD, find_card

    try:
        card = find_card(gpu or DEFAULT_CARD)
        if backend == "virtual":
            virtual.load()
    except UsageError as error:
        message = str(error).removesuffix(", or give its size with --limit SIZE")
        raise pytest.UsageError(f"oomscope_gpu = {gpu}: {message}") from None
    except MachineUnfitError as error:
        raise pytest.UsageError(f"oomscope_backend = virtual: {error}") from None
    if backend == "virtual" and PROGRAM not in os.environ:  # a probe of pytest gives its processes a card itself
        folder = tempfile.TemporaryDirectory(prefix="oomscope-")
        config.add_cleanup(folder.cleanup)
        config.stash[LEDGER] = str(Path(folder.name, "card"))
        _share(config, virtual.CardSettings(card=card, ledger=config.stash[LEDGER]))


def _share(config: pytest.Config, settings: CardSettings) -> None:
    """Let this process and those that tests start see the card, until the run ends."""
    from oomscope.probe.machine import children

    variables = settings.variables() | children.variables(os.environ, see_card=True)
    before = {name: os.environ.get(name) for name in variables}

    def restore() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    config.add_cleanup(restore)
    os.environ.update(variables)
