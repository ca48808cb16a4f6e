"""Arguments with their places, from command lines, YAML and JSON, Megatron-LM's log, and lines ``cfg.model.x = 1``.

A mapping is flattened to dotted names; what is no document is taken for a command line. The launcher says how many
ranks there are: torchrun's or srun's options, or ``WORLD_SIZE``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any

from oomscope.config.problems import InvalidConfigError, Problem
from oomscope.config.yaml_tree import MAX_BYTES, Mapping, Scalar, Tree, read_yaml

ENVIRONMENT = "ENV:"
"""Leads the names of environment variables."""


@dataclass(frozen=True)
class Argument:
    """A name and its value."""

    name: str
    """Path of plain names: ``num_layers``, ``model.num_layers``, ``ENV:CUBLAS_WORKSPACE_CONFIG``."""
    value: Any
    where: str
    """Place such as ``args.yaml:12 (--num-layers)``, or the words of a command line."""


@dataclass
class Arguments:
    """All that was given."""

    source: str
    """Name of the source in messages."""
    items: list[Argument] = field(default_factory=list)
    world_size: int | None = None
    """Ranks that the launcher starts; None where it does not say."""
    hints: set[str] = field(default_factory=set)
    """Dialects that the notation suggests."""

    def add(self, name: str, value: Any, where: str) -> None:
        """Add an argument."""
        self.items.append(Argument(name, value, where))

    def value_of(self, name: str) -> Any:
        """Return the last value given to ``name``, or None."""
        return next((item.value for item in reversed(self.items) if item.name == name), None)


_ASSIGNMENT = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)\Z", re.DOTALL)
_OVERRIDE = re.compile(r"[+~]{0,2}([a-z_]\w*(?:\.\w+)*)=(.*)\Z", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z]")
_VARIABLE = re.compile(r"\$\{?\w")
_PER_NODE = ("nproc_per_node", "ntasks_per_node", "gpus_per_node")
_NODES = ("nnodes", "nodes", "N")
_TASKS = ("ntasks", "n")


def add_command_line(arguments: Arguments, command: str | Sequence[str]) -> None:
    """Add what a command line gives.

    Raises:
        InvalidConfigError: a quote is left open, or a shell variable stands where its value should.
    """
    words = _split(command, arguments.source) if isinstance(command, str) else list(command)
    for word in words:
        if _VARIABLE.search(word) and not word.startswith(("--save", "--load")):
            message = f"{word} is a shell variable, whose value is unknown here"
            remedy = "give the command with its values filled in, as `bash -x` prints it"
            raise InvalidConfigError([Problem(message, arguments.source, remedy)])
    script = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    head, rest = ([], words) if script is None else (words[:script], words[script + 1 :])
    while script is None and rest and not _OPTION.match(rest[0]) and not _OVERRIDE.match(rest[0]):
        head, rest = [*head, rest[0]], rest[1:]
    rest = list(takewhile(lambda word: word != ";", rest))
    for word in head:
        if match := _ASSIGNMENT.match(word):
            arguments.add(ENVIRONMENT + match[1], match[2], match[1])
    arguments.world_size = _world_size(_options(head), arguments)
    _add_words(arguments, rest)


def _split(text: str, source: str) -> list[str]:
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=";")
    lexer.whitespace_split = True
    try:
        return list(lexer)
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
    arguments.add(_plain_name(option), value, " ".join([option, *values]))


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


_LOGGED = re.compile(r"^(?:\[?\w*\d*\]?:?\s*)?\s*([a-z][a-z0-9_]*) \.{3,} ?(.*)$")
"""``  num_layers ...................... 12``: Megatron-LM training/arguments.py, _print_args."""
_ON_UNLESS_TOLD = {
    "add_bias_linear",
    "apply_rope_fusion",
    "bias_gelu_fusion",
    "bias_swiglu_fusion",
    "create_attention_mask_in_dataloader",
    "fp8_wgrad",
    "gradient_accumulation_fusion",
    "masked_softmax_fusion",
    "muon_split_qkv",
    "overlap_p2p_comm",
    "pad_vocab_size",
    "torch_fsdp2_reshard_after_forward",
}
"""Settings that an option switches off; logs name the setting, not the option (``store_false`` in the same file)."""
_FUNCTION = re.compile(r"def (\w+)")
_OUTSIDE = re.compile(r"[A-Za-z_@]")
"""Start of a line outside of functions; the end of a list of parameters begins with a parenthesis."""
_CALLED = re.compile(r"\s+(?:\w+\s*=\s*|return\s+)?(\w+)\(")
"""A line that calls a function, or keeps or returns its result."""
_ASSIGNED = re.compile(r"^\s*(?:cfg|config)\.([A-Za-z_][\w.]*)\s*=\s*(.+?)\s*(?:#.*)?$")
_ENVIRONMENTS = ("ENV_VARS", "env_vars")
_BINARY = re.compile(r"[\x00-\x07\x0e-\x1a\x1c-\x1f]")
"""Control characters that no log holds: those of terminals, and what ends lines and pages, are others."""
_UNREAD = re.compile(r"^\s*(?:#.*)?$")


def read_arguments(data: bytes | str, source: str, function: str | None = None) -> Arguments:
    """Return what the text ``data`` gives, of recipes what their ``function`` sets.

    Raises:
        InvalidConfigError: it holds nothing, several functions or not that one, is no text, or too large.
    """
    text = data if isinstance(data, str) else data.decode("utf-8-sig", errors="replace")
    if len(text) > MAX_BYTES:
        raise InvalidConfigError([Problem(f"larger than {MAX_BYTES // 1024} KiB", source, "give the arguments alone")])
    if found := _BINARY.search(text):
        message = f"not text: control character U+{ord(found[0]):04X}"
        remedy = "give arguments as text; a memory snapshot is for oomscope explain"
        raise InvalidConfigError([Problem(message, source, remedy)])
    lines = text.splitlines()
    if function and not any(line.startswith(f"def {function}(") for line in lines):
        raise InvalidConfigError([Problem(f"holds no function {function}", source, "name one that it holds")])
    arguments = Arguments(source)
    if any(_LOGGED.match(line) for line in lines):
        _add_logged(arguments, lines)
    elif any(_ASSIGNED.match(line) for line in lines):
        _add_assigned(arguments, lines, function)
    elif not _add_document(arguments, text):
        add_command_line(arguments, text)
    if not arguments.items:
        raise InvalidConfigError([Problem("holds no arguments", source, "give --name value pairs, or a YAML mapping")])
    return arguments


def _add_logged(arguments: Arguments, lines: list[str]) -> None:
    """Take the table; arguments that are None or False there were mostly not given, and say nothing."""
    arguments.hints.add("megatron")
    for number, line in enumerate(lines, start=1):
        match = _LOGGED.match(line)
        off = {"None", "", "[]"} if match and match[1] in _ON_UNLESS_TOLD else {"None", "", "[]", "False"}
        if match and match[2] not in off:
            arguments.add(match[1], plain_value(match[2]), f"{arguments.source}:{number}")


def _add_assigned(arguments: Arguments, lines: list[str], wanted: str | None) -> None:
    """Take lines such as ``cfg.model.num_layers = 2``: those of one function, of those it calls, and of none."""
    arguments.hints.add("bridge")
    functions: dict[str | None, list[Argument | str]] = {
        None: [],
        **{begun[1]: [] for line in lines if (begun := _FUNCTION.match(line))},
    }
    """Settings of each function, and the functions that it calls."""
    within: str | None = None
    for number, line in enumerate(lines, start=1):
        if begun := _FUNCTION.match(line):
            within = begun[1]
            continue
        within = None if _OUTSIDE.match(line) else within
        if match := _ASSIGNED.match(line):
            value = None if match[2] == "None" else plain_value(match[2])
            functions[within].append(Argument(match[1], value, f"{arguments.source}:{number}"))
        elif within and (called := _CALLED.match(line)) and called[1] in functions:
            functions[within].append(called[1])

    def all_of(name: str | None, visited: set[str | None]) -> Iterator[Argument]:
        visited.add(name)
        for each in functions[name]:
            if isinstance(each, Argument):
                yield each
            elif each not in visited:
                yield from all_of(each, visited)

    choice = [name for name in functions if name and any(all_of(name, set()))]
    if wanted is None and len(choice) > 1:
        message = f"several functions set values: {', '.join(choice)}"
        remedy = f"choose one, as in {arguments.source}:{choice[-1]}; for bisect and the gate import it to a file"
        raise InvalidConfigError([Problem(message, arguments.source, remedy)])
    arguments.items += all_of(None, set())
    for name in [wanted] if wanted else choice:
        arguments.items += all_of(name, set())


def _add_document(arguments: Arguments, text: str) -> bool:
    """Take a YAML or JSON mapping; return whether the text is one."""
    try:
        tree, _ = read_yaml(text, arguments.source)
    except InvalidConfigError:
        if _looks_like_mapping(text):
            raise
        return False
    if not isinstance(tree, Mapping):
        return False
    for path, line, leaf in _leaves(tree, ()):
        place = f"{arguments.source}:{line}"
        if path[-1].startswith(ENVIRONMENT) or (len(path) > 1 and path[-2] in _ENVIRONMENTS):
            name = path[-1].removeprefix(ENVIRONMENT)
            arguments.add(ENVIRONMENT + name, leaf.text if isinstance(leaf, Scalar) else leaf.value, place)
            continue
        if path[-1].startswith("--"):
            arguments.hints.add("megatron")
            value = plain_value(leaf.text) if isinstance(leaf, Scalar) else leaf.value
            arguments.add(_plain_name(path[-1]), value, f"{place} ({path[-1]})")
        elif path[-1] == "_target_":
            arguments.hints.add("bridge")
        else:
            arguments.add(".".join(path), leaf.value, place)
    return True


def _looks_like_mapping(text: str) -> bool:
    first = next((line for line in text.splitlines() if not _UNREAD.match(line)), "")
    return bool(re.match(r"\s*(?:[\[{]|\"?[\w.-]+\"?:(?:\s|$))", first))


def _plain_name(option: str) -> str:
    """Return ``--num-layers`` as ``num_layers``."""
    return option.lstrip("-").replace("-", "_")


def _leaves(tree: Mapping, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int, Tree]]:
    """Yield path, line and value of every leaf; a mapping that names an object (``_target_``) is one, unless a section.

    Sections of a configuration are objects, too, but hold more than the object's name and how it is called.
    """
    for key, (line, value) in tree.entries.items():
        inner = (*path, key)
        if isinstance(value, Mapping) and value.entries and not _is_name(value):
            yield from _leaves(value, inner)
        else:
            yield inner, line, value


def _is_name(tree: Mapping) -> bool:
    return "_target_" in tree.entries and tree.entries.keys() <= {"_target_", "_call_", "_args_", "_partial_", "_name_"}
