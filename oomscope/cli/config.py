"""``oomscope config``: show a configuration as it will be measured, check it, import one, or print the schema."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.cli.completion import complete_key
from oomscope.cli.options import FILE, force_option, json_option, settings_overrides, world_size_option
from oomscope.cli.sources import DIALECTS, config_source, file_and_function, preset_option, source_options
from oomscope.cli.terminal.output import print_json, refuse_existing, remark, say, write_file
from oomscope.errors import ConfigError, ExitCode, UsageError

if TYPE_CHECKING:
    from oomscope.config.importers.command_lines import Arguments
    from oomscope.config.importers.importer import Imported
    from oomscope.config.load import LoadedConfig


SCHEMA_VERSION = 1

words_argument = click.argument("words", nargs=-1, metavar="[CFG.yaml] [KEY=VALUE]...", shell_complete=complete_key)


@click.group(invoke_without_command=True)
@click.pass_context
def config(ctx: click.Context) -> ExitCode:
    """Show, check, import or describe configurations."""
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())
    return ExitCode.USAGE


def _loaded(
    words: tuple[str, ...], preset: str | None, dialect: str | None, settings: dict[str, Any], *, enforce: bool
) -> LoadedConfig:
    from oomscope.probe.machine.checks import check_card

    loaded = config_source(words, preset, settings_overrides(settings), dialect).load(enforce=enforce)
    check_card(loaded)
    return loaded


@config.command(short_help="Print the whole configuration, defaults included.")
@words_argument
@source_options
@world_size_option
@json_option
def show(words: tuple[str, ...], preset: str | None, dialect: str | None, as_json: bool, **settings: Any) -> ExitCode:
    """Print the whole configuration: what the file or preset sets, overrides, and every default."""
    import yaml

    loaded = _loaded(words, preset, dialect, settings, enforce=True)
    document = loaded.config.model_dump(mode="json")
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "source": loaded.source, "config": document})
        return ExitCode.OK
    for line in (*loaded.remarks, *map(str, loaded.warnings)):
        remark(f"warning: {line}")
    say(yaml.safe_dump(document, sort_keys=False).rstrip())
    return ExitCode.OK


@config.command(short_help="Check a configuration against the rules.")
@words_argument
@source_options
@world_size_option
@json_option
def check(words: tuple[str, ...], preset: str | None, dialect: str | None, as_json: bool, **settings: Any) -> ExitCode:
    """Check a configuration against the rules of Megatron-Core and what is modelled here."""
    loaded = _loaded(words, preset, dialect, settings, enforce=False)
    broken = sum(finding.is_fatal for finding in loaded.findings)
    warned = f"{len(loaded.findings) - broken} warned of"
    if as_json:
        findings = [
            {
                "rule": finding.rule,
                "severity": finding.severity,
                "where": loaded.where(finding.keys),
                "keys": list(finding.keys),
                "message": finding.message,
                "remedy": finding.remedy,
                "source": finding.source,
            }
            for finding in loaded.findings
        ]
        print_json({"schema_version": SCHEMA_VERSION, "source": loaded.source, "findings": findings})
    else:
        for line in loaded.remarks:
            remark(f"warning: {line}")
        for finding in loaded.findings:
            where = loaded.where(finding.keys)
            say(f"{where}: {finding.kind} {finding.rule}: {finding.message}; {finding.remedy}")
        can_be = f"cannot be measured: {broken} broken" if broken else "can be measured"
        say(f"{loaded.source}: {can_be}{f', {warned}' if loaded.findings else ''}")
    return ExitCode.USAGE if broken else ExitCode.OK


@config.command(short_help="Print the JSON Schema of configuration files.")
@json_option
def schema(as_json: bool) -> ExitCode:
    """Print the JSON Schema of configuration files, for editors (it is JSON with and without --json)."""
    from oomscope.config.key_lookup import json_schema

    document: dict[str, Any] = json_schema()
    print_json({"schema_version": SCHEMA_VERSION, "schema": document} if as_json else document)
    return ExitCode.OK


_COMMAND_LINE = "command line"


@config.command("import", short_help="Import Megatron-LM, Megatron Bridge or NeMo arguments.")
@click.argument("words", nargs=-1, metavar="FILE|-|-- COMMAND...")
@click.option("--dialect", type=click.Choice(DIALECTS), help="Whose names they are (default: detected).")
@world_size_option
@preset_option
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write the configuration there (default: to stdout).")
@force_option
@json_option
def import_command(
    *,
    words: tuple[str, ...],
    dialect: str | None,
    world_size: int | None,
    preset: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> ExitCode:
    """Print what somebody else's arguments mean here, and name each that is not understood or not modelled.

    FILE is a YAML or JSON document of arguments, a dump of a configuration, a log that lists its arguments, or a shell
    command; - is standard input; what follows -- is a command line. Of several functions in a Python file FILE:FUNCTION
    names one. --preset lays the result upon a preset.

    \b
    oomscope config import args.yaml -o cfg.yaml
    oomscope config import -- torchrun --nproc-per-node 8 pretrain_gpt.py ...
    oomscope config import --dialect nemo megatron_gpt_config.yaml
    """
    from oomscope.config.importers.importer import import_arguments, is_own
    from oomscope.config.importers.load import configuration_file, remark_on_the_rest, remarks_on

    refuse_existing(output, force=force, option="--output")
    arguments = _arguments(words)
    arguments.world_size = world_size or arguments.world_size
    if dialect is None and arguments.source != _COMMAND_LINE and is_own(arguments):
        raise ConfigError(
            "is a configuration of oomscope, which needs no import",
            where=arguments.source,
            remedy="give it to oomscope probe, or name the dialect with --dialect",
        )
    imported = import_arguments(arguments, dialect, on_preset=preset is not None)
    if imported.not_understood and not (imported.settings or imported.not_modelled or imported.without_memory):
        raise ConfigError(
            f"none of its arguments is one of {imported.dialect}'s",
            where=imported.source,
            remedy="name the dialect with --dialect; a configuration of oomscope needs no import",
        )
    text = configuration_file(imported, preset=preset)
    if as_json:
        print_json(_document(imported, text))
    else:
        for line in (*remarks_on(imported), remark_on_the_rest(imported), *_broken_rules(text)):
            if line:
                remark(line)
        if output is None:
            say(text.rstrip())
    if output is not None:
        write_file(output, text)
    return ExitCode.OK


def _arguments(words: tuple[str, ...]) -> Arguments:
    """Return the arguments that the words name or are."""
    from oomscope.config.importers.command_lines import Arguments, add_command_line, read_arguments
    from oomscope.config.load import read_file
    from oomscope.config.yaml_tree import MAX_BYTES

    if not words:
        raise UsageError("nothing to import", remedy="name a file, - for standard input, or a command line behind --")
    if words == ("-",):
        return read_arguments(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
    if len(words) == 1 and not words[0].startswith("-") and " " not in words[0]:
        file, function = file_and_function(words[0])
        return read_arguments(read_file(file), str(file), function)
    arguments = Arguments(_COMMAND_LINE)
    add_command_line(arguments, words[0] if len(words) == 1 else words)
    return arguments


def _broken_rules(text: str) -> list[str]:
    """Return the findings of the rules on the result; a part of a configuration is not checked."""
    from oomscope.config.load import load_text

    try:
        loaded = load_text(text, source="the result", enforce=False)
    except ConfigError as error:
        return [f"the result is not a complete configuration: {error}"]
    return [f"{finding.kind} {finding.rule}: {finding.message}; {finding.remedy}" for finding in loaded.findings]


def _document(imported: Imported, text: str) -> dict[str, Any]:
    lists = ("not_modelled", "not_understood", "without_memory")
    rows = {name: [asdict(row) for row in getattr(imported, name)] for name in lists}
    return {
        "schema_version": SCHEMA_VERSION,
        "source": imported.source,
        "dialect": imported.dialect,
        "config": imported.nested(),
        "origins": {key: setting.where for key, setting in imported.settings.items()},
        **rows,
        "assumed": list(imported.assumed),
        "text": text,
    }
