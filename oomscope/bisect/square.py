"""The square of code and configuration, each old or new: which of the two is at fault, or only both together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from oomscope.bisect.measured import Bytes
from oomscope.bisect.search import Answer

Guilty = Literal["code", "config", "combination", "either", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Corner:
    """The code of one commit with the configuration of one."""

    code: str
    """Hash of the commit whose code it is."""
    config: str
    """Hash of the commit whose configuration it has."""
    answer: Answer
    reason: str
    bytes: Bytes | None
    """None where nothing was measured."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "answer": self.answer.value}


@dataclass(frozen=True, kw_only=True)
class Square:
    """Old and new code with old and new configuration."""

    path: str
    """The configuration's, in the repository."""
    old_old: Corner
    """The good end."""
    new_old: Corner
    """New code, old configuration."""
    old_new: Corner
    """Old code, new configuration."""
    new_new: Corner
    """The bad end."""

    @property
    def guilty(self) -> Guilty:
        """What is at fault; unknown where a corner that decides it cannot be tested."""
        return guilty_axis(self.new_old.answer, self.old_new.answer)

    @property
    def interaction(self) -> Bytes | None:
        """What code and configuration bring only together; None where a corner was not measured."""
        corners = (self.old_old.bytes, self.new_old.bytes, self.old_new.bytes, self.new_new.bytes)
        none, code, config, both = corners
        if none is None or code is None or config is None or both is None:
            return None
        return both - none - (code - none) - (config - none)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        corners = {name: getattr(self, name).to_json() for name in ("old_old", "new_old", "old_new", "new_new")}
        interaction = self.interaction.to_json() if self.interaction else None
        return {**asdict(self), **corners, "guilty": self.guilty, "interaction": interaction}


def guilty_axis(code: Answer, config: Answer) -> Guilty:
    """Return what is at fault, of a range whose good end is good and whose bad end is bad.

    Args:
        code: the answer for new code with the old configuration.
        config: the answer for old code with the new configuration.
    """
    if Answer.UNTESTABLE in {code, config}:
        return "unknown"
    if code is Answer.BAD:
        return "either" if config is Answer.BAD else "code"
    return "config" if config is Answer.BAD else "combination"
