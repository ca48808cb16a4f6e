"""Where a search stands: whether it runs, was cut off or has ended, and how far it came."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from oomscope.bisect.account import Account

State = Literal["running", "interrupted", "ended"]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One search."""

    search: int
    state: State
    """``interrupted``: it has no answer and nobody works on it."""
    title: str
    """Its ends as they were written."""
    bad: str
    place: str
    began_at: str
    probes: int
    """Answers that stand."""
    probes_at_most: int | None
    """As announced; untestable ones come on top."""
    outcome: str | None = None
    """That of a search that ended."""
    message: str = ""
    """The answer, or what ended it without one."""

    @classmethod
    def of(cls, account: Account, *, is_running: bool) -> Standing:
        """Return where the search of ``account`` stands."""
        closing, begun = account.closing, account.begun
        ended = closing is not None and closing.outcome != "stopped"
        return cls(
            search=begun.search,
            state="running" if is_running else "ended" if ended else "interrupted",
            title=begun.title,
            bad=begun.bad,
            place=begun.place,
            began_at=account.began_at,
            probes=len(account.answers),
            probes_at_most=account.probes_at_most,
            outcome=closing.outcome if closing is not None and ended else None,
            message=closing.message if closing is not None else "",
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)
