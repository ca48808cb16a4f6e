"""``oomscope config``: show a configuration as it will be measured, check it, import one, or print the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oomscope.cli.config_import import import_command
from oomscope.cli.options import json_option, settings_overrides, world_size_option
from oomscope.cli.output import print_json, remark, say
from oomscope.cli.source import config_source, source_options
from oomscope.errors import ExitCode

if TYPE_CHECKING:
    from oomscope.config.rule import Finding

SCHEMA_VERSION = 1

arguments = click.argument("words", nargs=-1, metavar="[CFG.yaml] [KEY=VALUE]...")


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
    from oomscope.config.json_schema import json_schema

    document: dict[str, Any] = json_schema()
    print_json({"schema_version": SCHEMA_VERSION, "schema": document} if as_json else document)
    return ExitCode.OK


config.add_command(import_command, "import")


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
