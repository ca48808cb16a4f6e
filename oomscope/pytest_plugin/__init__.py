"""The pytest plugin: a test says how much GPU memory it may take, as it says what else must hold (docs/python.md).

pytest imports this module in every run, so that it names hooks and fixtures only; what measures is imported by the
tests that ask for it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

    from oomscope.pytest_plugin.probing import Probing

ENDED = pytest.StashKey[list[pytest.Item]]()
"""The tests that have ended since one was last measured."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings of the ini file."""
    parser.addini("oomscope_backend", "where tests are measured: cuda, virtual or auto", None, "auto")
    parser.addini("oomscope_gpu", "the virtual card, such as h100-80gb", None, "")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Choose the card before a ``conftest.py`` imports torch."""
    from oomscope.pytest_plugin.card import choose_card

    choose_card(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers; choose the card if this plugin came too late for the hook above."""
    from oomscope.pytest_plugin.card import choose_card
    from oomscope.pytest_plugin.limits import KINDS

    for kind in KINDS:
        config.addinivalue_line("markers", kind.registration)
    choose_card(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse, before any test runs, a marker that cannot be read.

    A worker of xdist cannot end the run with one line: there the test itself fails with it.

    Raises:
        pytest.UsageError: a marker of a selected test.
    """
    from oomscope.errors import UsageError
    from oomscope.pytest_plugin.limits import limits_of

    if hasattr(config, "workerinput"):
        return
    try:
        for item in items:
            limits_of(item)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def gpu_device() -> torch.device:
    """The device whose memory is measured while a test runs: cuda:0."""
    try:
        import torch
    except (ImportError, OSError) as error:
        from oomscope.pytest_plugin.card import WITHOUT_GPU

        pytest.fail(f"torch cannot be imported ({error}); {WITHOUT_GPU}", pytrace=False)
    return torch.device("cuda", 0)


@pytest.fixture
def probe(request: pytest.FixtureRequest) -> Probing:
    """Measures a configuration, preset, harness, entry or command as ``oomscope probe`` does; returns the result."""
    from oomscope.pytest_plugin.probing import probing_of

    return probing_of(request.node)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run the test, and note that it has ended: pytest keeps the instance of its class, with what that holds."""
    try:
        return (yield)
    finally:
        item.config.stash.setdefault(ENDED, []).append(item)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Record what the fixtures of the test make, where it uses the device; pytest has seen to markers that skip it."""
    if _has_device(item):
        from oomscope.pytest_plugin import body

        body.begin(item)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Stop recording a test whose body did not run."""
    if _has_device(item):
        from oomscope.pytest_plugin import body

        body.end(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the test; where it passes, hold what was measured against its limits."""
    from oomscope.pytest_plugin.limits import judge, limits_of, one_failure

    with one_failure("the limits of the test cannot be read"):
        limits = limits_of(item)
    if not limits and not _has_device(item):
        return (yield)
    from oomscope.pytest_plugin import body, probing

    if _has_device(item):
        body.check_device(item.config)
    with body.measured(item, wanted=bool(limits)):
        outcome = yield
    judge(limits, [*body.results(item), *probing.results(item)], body.alive_before(item))
    return outcome


def _has_device(item: pytest.Item) -> bool:
    """Whether the test uses this plugin's ``gpu_device``, and not another of its name, be it through that one."""
    name = gpu_device.__name__
    info = getattr(item, "_fixtureinfo", None)
    definitions = list(info.name2fixturedefs.get(name, ())) if info is not None else []
    while len(definitions) > 1 and name in definitions[-1].argnames:
        definitions.pop()
    return bool(definitions) and definitions[-1].func.__module__ == __name__
