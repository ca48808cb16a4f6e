"""A search over commits in the language of ``git bisect log``, which ``git bisect replay`` reads.

git keeps one bad commit and any number of good ones, which must be its ancestors. So only what narrowed the search is a
command; what was measured besides (steps, hunks, the corners of a square) is a comment. Where answers were weighed, a
commit is called what the search believes of it, once, and answers that do not agree with that are comments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from oomscope.bisect.account import Account
from oomscope.bisect.believed import believed, is_weighed
from oomscope.bisect.journal import Answered, Question
from oomscope.bisect.result import Role
from oomscope.bisect.search import Answer
from oomscope.errors import UsageError
from oomscope.printable import printable

_NARROWING: frozenset[Role] = frozenset({"good end", "good end sought", "bad end", "search", "merged branch"})
_COMMANDS = {Answer.GOOD: "good", Answer.BAD: "bad", Answer.UNTESTABLE: "skip"}


def git_bisect_log(account: Account) -> str:
    """Return the answers of ``account`` that stand, as git writes them.

    Raises:
        UsageError: the search was not over commits.
    """
    if account.begun.kind != "commits":
        raise UsageError(
            f"search {account.begun.search} was not over commits alone",
            remedy="see oomscope bisect log: git bisect knows no keys, no variables and no corners",
        )
    return "\n".join(_lines(account)) + "\n"


def _lines(account: Account) -> Iterator[str]:
    begun = account.begun
    yield f"# oomscope bisect, search {begun.search}: {_line(begun.title)}, bad is {_line(begun.bad)}"
    first_parent = " '--first-parent'" if begun.request.get("first_parent") else ""
    yield f"git bisect start{first_parent}"
    commands = _commands(account)
    for answer in account.answers:
        yield from _answer_lines(answer)
        if command := commands.get(answer.question):
            yield f"git bisect {command} {answer.record.commit}"
    if account.closing is not None and account.closing.first_bad:
        commit, _, subject = account.closing.first_bad.partition(" ")
        yield f"# first bad commit: [{commit}] {_line(subject)}"


def _answer_lines(answer: Answered) -> Iterator[str]:
    record = answer.record
    if record.commit is None:
        return
    command = _COMMANDS[record.answer]
    comment = command if record.role in _NARROWING else f"{record.role}, {command}"
    yield f"# {comment}: [{record.commit}] {_line(record.subject)} ({_line(record.reason)})"


def _commands(account: Account) -> dict[Question, str]:
    """Return the commands, by the answers that they follow."""
    narrowing = [each for each in account.answers if each.record.commit and each.record.role in _NARROWING]
    if is_weighed(narrowing):
        narrowing = list(_speaking(narrowing, believed(account)))
    return {each.question: _COMMANDS[each.record.answer] for each in narrowing}


def _speaking(answers: Sequence[Answered], known: Mapping[str, Answer]) -> Iterator[Answered]:
    """Yield one answer for each commit that something is known of, and of bad ones those that come nearer.

    git takes a commit for what it was called last, and the last bad one for the nearest.
    """
    nearness = {name: place for place, name in enumerate(known)}
    called: set[str] = set()
    nearest = -1
    for answer in answers:
        name, said = str(answer.record.commit), answer.record.answer
        if name in called or said is not known.get(name, Answer.UNTESTABLE):
            continue
        if said is Answer.BAD and nearness[name] < nearest:
            continue
        nearest = nearness[name] if said is Answer.BAD else nearest
        called.add(name)
        yield answer


def _line(text: str) -> str:
    """Return ``text`` as a part of one line, which git could take for a command if it were not."""
    return " ".join(printable(text).split())
