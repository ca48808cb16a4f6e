"""``oomscope config``: show a configuration as it will be measured, check it, import one, or print the schema."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.cli.options.common import json_option, settings_overrides, world_size_option
from oomscope.cli.options.completion import complete_key, complete_preset
from oomscope.cli.options.source import DIALECTS, config_source, source_options
from oomscope.cli.options.types import FILE, MOST
from oomscope.cli.terminal.output import print_json, refuse_existing, remark, say, write_file
from oomscope.errors import ConfigError, ExitCode, UsageError

if TYPE_CHECKING:
    from oomscope.config.importers.arguments import Arguments
    from oomscope.config.importers.importer import Imported, Remark
    from oomscope.config.rules.rule import Finding


SCHEMA_VERSION = 1

arguments = click.argument("words", nargs=-1, metavar="[CFG.yaml] [KEY=VALUE]...", shell_complete=complete_key)


@click.group(invoke_without_command=True)
@click.pass_context
def config(ctx: click.Context) -> ExitCode:
    """Show, check, import or describe configurations."""
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())
    return ExitCode.USAGE


@config.command(short_help="Print the whole configuration, defaults included.")
@arguments
@source_options
@world_size_option
@json_option
def show(words: tuple[str, ...], preset: str | None, dialect: str | None, as_json: bool, **settings: Any) -> ExitCode:
    """Print the whole configuration: what the file or preset sets, overrides, and every default."""
    from oomscope.probe.machine.checks import check_card

    loaded = config_source(words, preset, settings_overrides(settings), dialect).load()
    check_card(loaded)
    document = loaded.config.model_dump(mode="json")
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "source": loaded.source, "config": document})
        return ExitCode.OK
    import yaml

    for line in (*loaded.remarks, *map(str, loaded.warnings)):
        remark(f"warning: {line}")
    say(yaml.safe_dump(document, sort_keys=False).rstrip())
    return ExitCode.OK


@config.command(short_help="Check a configuration against the rules.")
@arguments
@source_options
@world_size_option
@json_option
def check(words: tuple[str, ...], preset: str | None, dialect: str | None, as_json: bool, **settings: Any) -> ExitCode:
    """Check a configuration against the rules of Megatron-Core and what is modelled here."""
    from oomscope.probe.machine.checks import check_card

    loaded = config_source(words, preset, settings_overrides(settings), dialect).load(enforce=False)
    check_card(loaded)
    broken = [finding for finding in loaded.findings if finding.is_fatal]
    if as_json:
        findings = [_finding_document(finding, loaded.where(finding.keys)) for finding in loaded.findings]
        print_json({"schema_version": SCHEMA_VERSION, "source": loaded.source, "findings": findings})
    else:
        for line in loaded.remarks:
            remark(f"warning: {line}")
        for finding in loaded.findings:
            where = loaded.where(finding.keys)
            say(f"{where}: {finding.kind} {finding.rule}: {finding.message}; {finding.remedy}")
        say(f"{loaded.source}: {_summary(len(broken), len(loaded.findings) - len(broken))}")
    return ExitCode.USAGE if broken else ExitCode.OK


@config.command(short_help="Print the JSON Schema of configuration files.")
@json_option
def schema(as_json: bool) -> ExitCode:
    """Print the JSON Schema of configuration files, for editors (it is JSON with and without --json)."""
    from oomscope.config.keys import json_schema

    document: dict[str, Any] = json_schema()
    print_json({"schema_version": SCHEMA_VERSION, "schema": document} if as_json else document)
    return ExitCode.OK


def _finding_document(finding: Finding, where: str) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "where": where,
        "keys": list(finding.keys),
        "message": finding.message,
        "remedy": finding.remedy,
        "source": finding.source,
    }


def _summary(errors: int, warnings: int) -> str:
    if errors:
        return f"cannot be measured: {errors} broken, {warnings} warned of"
    return f"can be measured, {warnings} warned of" if warnings else "can be measured"


_COMMAND_LINE = "command line"


@config.command("import", short_help="Import Megatron-LM, Megatron Bridge or NeMo arguments.")
@click.argument("words", nargs=-1, metavar="FILE|-|-- COMMAND...")
@click.option("--dialect", type=click.Choice(DIALECTS), help="Whose names they are (default: found out).")
@click.option("--world-size", type=click.IntRange(1, MOST), metavar="N", help="GPUs of the job, where FILE is silent.")
@click.option("--preset", metavar="NAME", shell_complete=complete_preset, help="Lay the result upon a preset.")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write the configuration there (default: to stdout).")
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
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
    command; - is standard input; what follows -- is a command line.

    \b
    oomscope config import args.yaml -o cfg.yaml
    oomscope config import -- torchrun --nproc-per-node 8 pretrain_gpt.py ...
    oomscope config import --dialect nemo megatron_gpt_config.yaml
    """
    from oomscope.config.importers.importer import import_arguments, is_own
    from oomscope.config.importers.load import configuration_file, remark_on_the_rest, remarks_on

    refuse_existing(output, force=force, option="--output")
    arguments = given_arguments(words)
    if world_size is not None:
        arguments.world_size = world_size
    if dialect is None and arguments.source != _COMMAND_LINE and is_own(arguments):
        raise ConfigError(
            "reads as a configuration of oomscope's own, which needs no import",
            where=arguments.source,
            remedy="give it to oomscope probe, or say whose names it has with --dialect",
        )
    imported = import_arguments(arguments, dialect)
    _refuse_strangers(imported)
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


def given_arguments(words: tuple[str, ...]) -> Arguments:
    """Return the arguments that the words name or are.

    Raises:
        UsageError: there are none.
        ConfigError: they cannot be read.
    """
    from oomscope.config.importers.arguments import Arguments, add_command_line, read_arguments
    from oomscope.config.load import read_file
    from oomscope.config.yaml_tree import MAX_BYTES

    if not words:
        raise UsageError("nothing to import", remedy="name a file, - for standard input, or a command line behind --")
    if words == ("-",):
        return read_arguments(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
    if len(words) == 1 and not words[0].startswith("-") and " " not in words[0]:
        return read_arguments(read_file(Path(words[0])), words[0])
    arguments = Arguments(_COMMAND_LINE)
    add_command_line(arguments, words[0] if len(words) == 1 else words)
    return arguments


def _refuse_strangers(imported: Imported) -> None:
    """Refuse arguments of which none is known.

    Raises:
        ConfigError: there are some, and not one of them means anything.
    """
    known = imported.settings or imported.not_modelled or imported.without_memory
    if imported.not_understood and not known:
        raise ConfigError(
            f"none of its arguments is one of {imported.dialect}'s",
            where=imported.source,
            remedy="name whose they are with --dialect; a configuration of oomscope's own needs no import",
        )


def _broken_rules(text: str) -> list[str]:
    """Return what the rules say of the result; a part of a configuration is not checked."""
    from oomscope.config.load import load_text

    try:
        loaded = load_text(text, source="the result", enforce=False)
    except ConfigError as error:
        return [f"the result is not a whole configuration: {error}"]
    return [f"{finding.kind} {finding.rule}: {finding.message}; {finding.remedy}" for finding in loaded.findings]


def _document(imported: Imported, text: str) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "source": imported.source,
        "dialect": imported.dialect,
        "config": imported.nested(),
        "origins": {key: setting.where for key, setting in imported.settings.items()},
        "not_modelled": [_remark(remark) for remark in imported.not_modelled],
        "not_understood": [_remark(remark) for remark in imported.not_understood],
        "without_memory": [_remark(remark) for remark in imported.without_memory],
        "assumed": list(imported.assumed),
        "text": text,
    }


def _remark(remark: Remark) -> dict[str, Any]:
    document = {"name": remark.name, "value": remark.value, "where": remark.where}
    return {**document, "reason": remark.reason} if remark.reason else document
