"""Arguments on a command line: environment, launcher, script, and ``--name value`` or ``section.key=value`` words.

The launcher says how many ranks there are: torchrun's or srun's options, or ``WORLD_SIZE``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from oomscope.config.importers.arguments import ENVIRONMENT, Arguments
from oomscope.config.problems import InvalidConfigError, Problem
from oomscope.config.yaml_tree import read_yaml

_ASSIGNMENT = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)\Z", re.DOTALL)
_OVERRIDE = re.compile(r"[+~]{0,2}([a-z_]\w*(?:\.\w+)*)=(.*)\Z", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z]")
_VARIABLE = re.compile(r"\$\{?\w")
_PER_NODE = ("nproc_per_node", "ntasks_per_node", "gpus_per_node")
_NODES = ("nnodes", "nodes", "N")
_TASKS = ("ntasks", "n")


def add_command_line(arguments: Arguments, command: str | Sequence[str]) -> None:
    """Add what a command line gives.

    Args:
        arguments: where to.
        command: a shell's text, or the words of a command.

    Raises:
        InvalidConfigError: a quote is left open, or a shell variable stands where its value should.
    """
    words = _split(command, arguments.source) if isinstance(command, str) else list(command)
    for word in words:
        if _VARIABLE.search(word) and not word.startswith(("--save", "--load")):
            message = f"{word} is a variable of the shell, whose value is not known here"
            remedy = "give the command with its values filled in, as `bash -x` prints it"
            raise InvalidConfigError([Problem(message, arguments.source, remedy)])
    script = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    head, rest = ([], words) if script is None else (words[:script], words[script + 1 :])
    while script is None and rest and not _OPTION.match(rest[0]) and not _OVERRIDE.match(rest[0]):
        head, rest = [*head, rest[0]], rest[1:]
    for word in head:
        if match := _ASSIGNMENT.match(word):
            arguments.add(ENVIRONMENT + match[1], match[2], match[1])
    arguments.world_size = _world_size(_options(head), arguments)
    _add_words(arguments, rest)


def _split(text: str, source: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        message = f"cannot be read as a command line: {str(error).lower()}"
        raise InvalidConfigError([Problem(message, source, "close the quote")]) from None


def _add_words(arguments: Arguments, words: Sequence[str]) -> None:
    name: str | None = None
    values: list[str] = []
    for word in [*words, "--"]:
        starts = word.startswith("--")
        override = _OVERRIDE.match(word)
        if name is not None and (starts or override):
            _add(arguments, name, values)
            name = None
        if override:
            arguments.hints.add("hydra")
            arguments.add(override[1], plain_value(override[2]), word)
        elif starts and word != "--":
            name, equals, value = word.partition("=")
            values = [value] if equals else []
        elif name is not None:
            values.append(word)
        elif word != "--":
            arguments.add(word, None, word)


def _add(arguments: Arguments, option: str, values: list[str]) -> None:
    arguments.hints.add("megatron")
    plain = [plain_value(value) for value in values]
    value: Any = True if not plain else plain[0] if len(plain) == 1 else plain
    arguments.add(option.lstrip("-").replace("-", "_"), value, " ".join([option, *values]))


def plain_value(text: str) -> Any:
    """Return a word as YAML would read it: numbers, truth values, null, lists; and text as it is."""
    try:
        tree, problems = read_yaml(text, "")
    except InvalidConfigError:
        return text
    return text if problems or isinstance(tree.value, dict) else tree.value


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the options of a launcher, with one value each."""
    options: dict[str, str] = {}
    for word, following in pairwise([*words, ""]):
        if not _OPTION.match(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        options[name.replace("-", "_")] = value if equals else following
    return options


def _world_size(options: dict[str, str], arguments: Arguments) -> int | None:
    tasks = _number(options, _TASKS)
    per_node, nodes = _number(options, _PER_NODE), _number(options, _NODES)
    given = arguments.value_of(f"{ENVIRONMENT}WORLD_SIZE")
    if tasks:
        return tasks
    if per_node:
        return per_node * (nodes or 1)
    return int(given) if given is not None and str(given).isdigit() else None


def _number(options: dict[str, str], names: Sequence[str]) -> int | None:
    """Return the number of the first of ``names``; ``1:4``, an elastic range, means its upper end."""
    value = next((options[name] for name in names if name in options), "").rpartition(":")[2]
    return int(value) if value.isdigit() else None
