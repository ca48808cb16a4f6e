"""What ``oomscope probe --git-bisect`` returns to ``git bisect run``.

git-bisect(1): 0 is good, 1 to 127 except 125 is bad, 125 cannot be tested, and 128 or more ends the bisection.
A usage error must not pass for a bad commit, hence everything that is no answer about this commit is 128 or more.
"""

from __future__ import annotations

from oomscope.errors import ExitCode
from oomscope.probe.result import ErrorKind, ProbeResult

GOOD = 0
BAD = 1
UNTESTABLE = 125
STOP = 128

_UNTESTABLE_FAILURES: frozenset[ErrorKind | None] = frozenset(
    {"import", "setup", "step", "untestable", "nothing", "crash", "timeout", "exit"}
)


def git_bisect_code(result: ProbeResult) -> int:
    """Return the exit status for ``git bisect run``.

    Fits is good and out of memory is bad. A commit whose code fails cannot be tested. A probe that was killed
    from outside, a machine that cannot do it and a harness that cannot be one say nothing about the commit and end the
    bisection.
    """
    if result.outcome == "fits":
        return GOOD
    if result.outcome == "oom":
        return BAD
    kind = result.failure.kind if result.failure else None
    if kind in _UNTESTABLE_FAILURES:
        return UNTESTABLE
    codes = {"usage": ExitCode.USAGE, "internal": ExitCode.INTERNAL}
    return git_bisect_code_of(codes.get(kind or "", ExitCode.MACHINE_UNFIT))


def git_bisect_code_of(code: ExitCode) -> int:
    """Return the exit status for an error of oomscope's own, such as a wrong option: one that ends the bisection."""
    return code if code >= STOP else STOP + code
