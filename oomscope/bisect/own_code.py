"""Each commit's own code as what is measured: how a target is pointed at one checkout after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.bisect.identity import Content
from oomscope.probe.job import CheckoutTarget, HarnessTarget
from oomscope.probe.targets.recipes import check_target

if TYPE_CHECKING:
    from oomscope.config.schema import Config


@dataclass(frozen=True, kw_only=True)
class OwnCode(ABC):
    """Code that is laid out commit by commit."""

    settings: Config
    """Its sections allocator, device and probe say how to measure."""
    overrides: tuple[str, ...] = ()
    """The same as ``section.key=value``, for the commands that repeat a probe."""

    @abstractmethod
    def target_at(self, repo: str) -> CheckoutTarget:
        """Return what is measured of the checkout ``repo``."""

    def check(self) -> None:
        """Refuse what can drive no commit at all.

        Raises:
            HarnessError: it is no harness, entry or command.
        """
        check_target(self.target_at(""))

    def content(self, tree: str) -> Content:
        """Return what the target is made of in a checkout of ``tree``."""
        return Content(tree=tree)


@dataclass(frozen=True, kw_only=True)
class HarnessFile(OwnCode):
    """Code that is driven by a harness outside the repository."""

    path: Path

    def target_at(self, repo: str) -> HarnessTarget:
        """Return the harness with the checkout ``repo``."""
        return HarnessTarget(harness=str(self.path.absolute()), repo=repo)

    def content(self, tree: str) -> Content:
        """Return the tree, and the harness with what it imports beside it."""
        return Content.of(tree, self.path)


@dataclass(frozen=True, kw_only=True)
class InCheckout(OwnCode):
    """Code that is reached from within: by an entry, or by a command."""

    target: CheckoutTarget
    """Which checkout it names does not matter."""

    def target_at(self, repo: str) -> CheckoutTarget:
        """Return the same target in the checkout ``repo``."""
        return self.target.at(repo)


def own_code_of(target: CheckoutTarget, settings: Config, overrides: tuple[str, ...]) -> OwnCode:
    """Return ``target``, whichever checkout it names, as what is measured of each commit."""
    if isinstance(target, HarnessTarget):
        return HarnessFile(path=Path(target.harness), settings=settings, overrides=overrides)
    return InCheckout(target=target, settings=settings, overrides=overrides)
