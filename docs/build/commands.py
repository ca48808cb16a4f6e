"""The reference pages of commands and exit codes, written from the code so that they cannot disagree with it.

``make docs`` writes both; a test compares them with what is checked in.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click

from oomscope import errors
from oomscope.cli.bisect.command import SUBCOMMAND, SearchGroup
from oomscope.cli.main import cli
from oomscope.errors import GRAVITY, ExitCode

_COMMANDS = """\
# Commands

Results go to standard output, progress and remarks to standard error. Every command takes `--json` and then prints one
document with a `schema_version`; an error is a document too: `{"schema_version", "error": {"kind", "exit_code",
"message", "where", "remedy"}}`. What the exit codes mean is on the page [exit codes](exit-codes.md).

A run's peak is `peak.requested_bytes` and `peak.reserved_bytes` in every document, each as torch's statistic of that
name: the two may be different moments. What else stood at the peak of requested bytes is `at_peak`, or ends in
`_at_peak_bytes`. Where one of the two is known alone, as for a setting that was replayed, it is `peak_reserved_bytes`.

`--json --summary` prints a [summary](summary.md) below 2 KB where a command has it.

This page is written by `make docs`.

```console
oomscope completion bash > oomscope-completion.bash
oomscope --version
```

`oomscope completion bash|zsh|fish` prints a script by which TAB completes commands, options, cards, presets,
configuration keys, branches and tags; `oomscope completion --help` says how each shell loads it. `oomscope --version`
prints the versions of oomscope and torch, and the available backends: a bug report begins with it and with what
[doctor](troubleshooting.md#check-the-machine-oomscope-doctor) prints.
"""

_EXIT_CODES = """\
# Exit codes

| code | name | meaning | what to do |
|---|---|---|---|
"""

_REMEDIES = {
    ExitCode.OK: "",
    ExitCode.REGRESSION: "[find](gate.md#which-commit-was-it) the commit, or [accept](gate.md#the-baseline) the case",
    ExitCode.USAGE: "the line names file, place and remedy; `COMMAND --help`",
    ExitCode.OOM: "read the [verdict](verdict.md), then run `oomscope advise`",
    ExitCode.NO_BASELINE: "`oomscope gate update SUITE.yaml`, and commit the baseline",
    ExitCode.MACHINE_UNFIT: "`oomscope doctor`",
    ExitCode.TARGET_FAILED: "read the log that the report names",
    ExitCode.INCONCLUSIVE: "read the reason in the report ([bisect](bisect.md))",
    ExitCode.NOTHING_MEASURED: "give the suite at least one case",
    ExitCode.IMPROVED: "`oomscope gate update SUITE.yaml`",
    ExitCode.INTERNAL: "report it with the file that the line names",
    ExitCode.OUTPUT_LOST: "free space, or write elsewhere",
    ExitCode.INTERRUPTED: "`oomscope bisect resume` continues a search; `sweep` has printed what it measured",
    ExitCode.BROKEN_PIPE: "nothing is wrong",
}

_GRAVITY = """
If several apply, the gravest is returned, in this order: {order}.

`oomscope probe --git-bisect` returns the codes of `git bisect run` instead: 0 it fits (good), 1 out of memory (bad),
125 the commit cannot be tested, and 128 plus the code above for an error that says nothing about the commit. Such an
error ends the bisection.

A command that is ended by a signal returns 128 plus the signal's number: 143 for SIGTERM, 129 for SIGHUP.

## Whose fault

| at fault | such as | probe | `--git-bisect` | bisect |
|---|---|---|---|---|
| the command line | a word that is no option, two files in one place, an unknown `--gpu` | 2 | 130 | 2 |
| the environment | an ill-formed `PYTORCH_ALLOC_CONF` | 2 | 130 | 2 |
| the entry or the command | a program that is not there, an expression without its one group | 2 | 130 | 2 |
| the harness | no Python, a folder | 2 | 130 | 2 |
| the harness, seen only when it runs | no `setup`, or one that does not take `ctx` alone | 2 | 130 | 7, results kept |
| the configuration file | an unknown key, a broken rule, a wrong `device.gpu` | 2 | 125 | untestable commit |
| the code under test | does not import, raises, crashes, hangs, lacks the entry, fails | 6 | 125 | untestable commit |
| the machine | no GPU, foreign memory, no room for temporary files | 5 | 133 | 5 |

A harness lies outside the repository, so what is wrong with it is wrong at every commit. An `ImportError` while it is
loaded is the checkout's: the harness names today's modules, and an old commit may lack them.

This page is written by `make docs`.
"""


def commands_page() -> str:
    """Return docs/cli.md."""
    return "\n".join([_COMMANDS, *(section for context in contexts() for section in _sections(context))])


def contexts(context: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the context of every command, as it is when somebody asks for its help."""
    context = context or cli.make_context("oomscope", [], terminal_width=100, resilient_parsing=True)
    yield context
    if isinstance(context.command, click.Group):
        if isinstance(context.command, SearchGroup):
            context.meta[SUBCOMMAND] = ()
        for name in context.command.list_commands(context):
            child = context.command.get_command(context, name)
            if child is not None:
                yield from contexts(click.Context(child, info_name=name, parent=context))


def exit_codes_page() -> str:
    """Return docs/exit-codes.md."""
    meanings = _member_docstrings(ExitCode.__name__)
    rows = "".join(
        f"| {code.value} | {code.name} | {meanings[code.name].replace('``', '`')} | {_REMEDIES[code]} |\n"
        for code in ExitCode
    )
    order = ", ".join(str(code.value) for code in GRAVITY)
    return _EXIT_CODES + rows + _GRAVITY.format(order=order)


def _sections(context: click.Context) -> Iterator[str]:
    """Yield the heading and the help of a command."""
    yield f"## {context.command_path}\n"
    yield f"```\n{context.command.get_help(context)}\n```\n"


def _member_docstrings(class_name: str) -> dict[str, str]:
    """Return the docstring under each member of an enumeration in ``oomscope.errors``."""
    tree = ast.parse(inspect.getsource(errors))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    docstrings = {}
    for member, text in pairwise(body):
        if isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name) and isinstance(text, ast.Expr):
            docstrings[member.targets[0].id] = " ".join(str(ast.literal_eval(text.value)).split())
    return docstrings


def write_pages(directory: Path) -> list[Path]:
    """Write both pages into ``directory`` and return their paths."""
    pages = {"cli.md": commands_page(), "exit-codes.md": exit_codes_page()}
    paths = [directory / name for name in pages]
    for path, text in zip(paths, pages.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


if __name__ == "__main__":
    for written in write_pages(Path(sys.argv[1])):
        sys.stdout.write(f"Wrote {written}\n")
