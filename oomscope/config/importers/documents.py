"""Arguments in documents: YAML and JSON mappings, the table that Megatron-LM logs at start, lines ``cfg.model.x = 1``.

A mapping is flattened to dotted names. Anything else is taken for a command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomscope.config.importers.arguments import ENVIRONMENT, Arguments
from oomscope.config.importers.command_line import add_command_line, plain_value
from oomscope.config.problems import InvalidConfigError, Problem
from oomscope.config.yaml_tree import MAX_BYTES, Mapping, Scalar, Tree, read_yaml

_LOGGED = re.compile(r"^(?:\[?\w*\d*\]?:?\s*)?\s*([a-z][a-z0-9_]*) \.{3,} ?(.*)$")
"""``  num_layers ...................... 12``: Megatron-LM training/arguments.py, _print_args."""
_OFF = {
    "add_bias_linear": "disable_bias_linear",
    "create_attention_mask_in_dataloader": "no_create_attention_mask_in_dataloader",
    "gradient_accumulation_fusion": "no_gradient_accumulation_fusion",
}
"""Options that switch something off are logged as what they switch off: ``store_false`` in the same file."""
_ASSIGNED = re.compile(r"^\s*(?:cfg|config)\.([A-Za-z_][\w.]*)\s*=\s*(.+?)\s*(?:#.*)?$")
_ENVIRONMENTS = ("ENV_VARS", "env_vars")
_BINARY = re.compile(r"[\x00-\x07\x0e-\x1a\x1c-\x1f]")
"""Control characters that no log holds: those of terminals, and what ends lines and pages, are others."""
_UNREAD = re.compile(r"^\s*(?:#.*)?$")


def read_arguments(data: bytes | str, source: str) -> Arguments:
    """Return what the text ``data`` gives.

    Args:
        data: the content of a file, or of standard input.
        source: how messages name it.

    Raises:
        InvalidConfigError: it holds nothing, is no text, or too large.
    """
    text = data if isinstance(data, str) else data.decode("utf-8-sig", errors="replace")
    if len(text) > MAX_BYTES:
        raise InvalidConfigError([Problem(f"larger than {MAX_BYTES // 1024} KiB", source, "give the arguments alone")])
    if found := _BINARY.search(text):
        message = f"not text: control character U+{ord(found[0]):04X}"
        remedy = "give arguments as text; a memory snapshot is for oomscope explain"
        raise InvalidConfigError([Problem(message, source, remedy)])
    lines = text.splitlines()
    arguments = Arguments(source)
    if any(_LOGGED.match(line) for line in lines):
        _add_logged(arguments, lines)
    elif any(_ASSIGNED.match(line) for line in lines):
        _add_assigned(arguments, lines)
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
        if match and match[1] in _OFF:
            if match[2] == "False":
                arguments.add(_OFF[match[1]], True, f"{arguments.source}:{number}")
        elif match and match[2] not in {"None", "False", "", "[]"}:
            arguments.add(match[1], plain_value(match[2]), f"{arguments.source}:{number}")


def _add_assigned(arguments: Arguments, lines: list[str]) -> None:
    """Take lines such as ``cfg.model.recompute_granularity = "selective"``."""
    arguments.hints.add("bridge")
    for number, line in enumerate(lines, start=1):
        match = _ASSIGNED.match(line)
        if match:
            value = None if match[2] == "None" else plain_value(match[2])
            arguments.add(match[1], value, f"{arguments.source}:{number}")


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
