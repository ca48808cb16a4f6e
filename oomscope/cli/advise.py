"""``oomscope advise``: the cheapest changes under which a configuration fits its card, each of them probed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oomscope.cli.completion import complete_key
from oomscope.cli.options import (
    fresh_option,
    jobs_option,
    json_option,
    progress_options,
    settings_overrides,
    variant_options,
)
from oomscope.cli.sources import config_source, kept_probe, load_with, refuse_world_size, source_options
from oomscope.cli.terminal.output import print_json, print_report, remark
from oomscope.cli.terminal.progress import shown_progress
from oomscope.errors import ExitCode

if TYPE_CHECKING:
    from oomscope.probe.tuning.advise import Advice


@click.command(short_help="Find the cheapest changes under which it fits.")
@click.argument("words", nargs=-1, metavar="[CFG.yaml] [KEY=VALUE]...", shell_complete=complete_key)
@source_options
@click.option(
    "--enough",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Stop after N changes that fit.",
)
@click.option(
    "--all", "is_whole", is_flag=True, help="Try every change, even if it already fits: what each saves and costs."
)
@jobs_option
@fresh_option
@variant_options
@progress_options
@json_option
def advise(
    *,
    words: tuple[str, ...],
    preset: str | None,
    dialect: str | None,
    enough: int,
    is_whole: bool,
    jobs: int,
    fresh: bool,
    verbosity: str | None,
    as_json: bool,
    **settings: Any,
) -> ExitCode:
    """Try changes in the order of Megatron's guides, and print those that fit, cheapest first.

    One rank of every pipeline stage is probed, unless --rank is given. Changes that the rules refuse are not tried.

    \b
    oomscope advise cfg.yaml --limit 80GiB
    oomscope advise --preset llama3-8b --gpu a100-40gb --jobs 4
    oomscope advise --preset llama3-8b --all --jobs 4
    oomscope advise --from megatron args.yaml --world-size 64 --gpu h100-80gb
    """
    refuse_world_size(settings["world_size"], dialect)
    from oomscope.probe.machine.backends import refuse_without_card
    from oomscope.probe.tuning import advise as adviser

    source = config_source(words, preset, settings_overrides(settings), dialect)
    load = load_with(source)
    loaded = load(())  # what is wrong with the configuration itself is said before anything is measured
    for line in loaded.remarks:
        remark(line)

    refuse_without_card(loaded.config.probe.backend)
    number = None if is_whole else enough
    with shown_progress(source.title, verbosity, is_all=False) as ticker:
        ticker.stage("try changes")

        def announce(name: str, variant: Any) -> None:
            from oomscope.report.commands.sweep import variant_text

            ticker.line(f"{name}: {variant_text(variant)}")

        probe = kept_probe(fresh=fresh, ticker=ticker if jobs == 1 and ticker.is_watched else None)
        advice = adviser.advise(load, probe=probe, jobs=jobs, enough=number, announce=announce)
    if as_json:
        print_json(advice.to_json())
    else:
        from oomscope.report.commands.advise import advice_report

        print_report(advice_report(advice, title=source.title))
    return _exit_code(advice)


def _exit_code(advice: Advice) -> ExitCode:
    if advice.solved:
        return ExitCode.OK
    return ExitCode.OOM if advice.now.outcome == "oom" else ExitCode.TARGET_FAILED
