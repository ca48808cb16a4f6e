"""One probe: its eight lines, its full report, and the sentences that say what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from oomscope.probe.ranks import ranks_left_out
from oomscope.probe.result import Peak, PhaseBytes, ProbeResult, RankSummary, SurvivedFailures
from oomscope.report import parts
from oomscope.report.sentences import count, format_seconds, in_module, moment_text, percent, site_text, three_digits
from oomscope.report.stacks import Stacks
from oomscope.report.verdict_text import (
    LESS,
    LINE_TABLE,
    SHOWN,
    advice_text,
    category_table,
    fix_table,
    holders,
    iterations_left,
    line_table,
    tried_title,
    untried_text,
    verdict_line,
    verdict_parts,
)
from oomscope.report.what_to_reduce import BATCH_PHASES, model_exceeds, most_kept, step_remedies, what_to_reduce
from oomscope.snapshot.judge.confirmed import is_tight
from oomscope.units import GiB, format_size
from oomscope.virtual.cards import CARDS

TONES = {"fits": "good", "oom": "bad", "error": "warn"}


def probe_summary(result: ProbeResult, *, title: str = "") -> list[parts.Part]:
    """Return what a probe answers, in at most eight lines, and the notes that limit the answer."""
    card = " ".join(part for part in (result.backend, result.gpu) if part)
    rank = rank_text(result) if result.world_size > 1 else ""
    facts: list[tuple[str, parts.Known]] = []
    if result.verdict and (result.verdict.kind != "headroom" or result.verdict.tags):
        facts.append(("Verdict", replace(verdict_line(result.verdict), label="")))
    facts += _peak_fact(result)
    moment, sites = ("failure", result.oom.sites) if result.oom else ("peak", result.peak.sites if result.peak else ())
    if found := holders(sites):
        facts.append((f"Largest at {moment}", found))
    if text := result_advice(result):
        facts.append(("What to do", parts.Line(strong=text)))
    return [
        parts.line(" · ".join(part for part in (title, rank, card, *_room(result)) if part), "soft"),
        parts.status(status_text(result), TONES[result.outcome]),
        *([parts.Facts(rows=facts)] if facts else []),
        *([rank_table(result.ranks)] if len(result.ranks) > 1 else []),
        *map(parts.note, result.notes),
    ]


def _room(result: ProbeResult) -> Iterator[str]:
    """Yield a limit, what the process may use, much memory outside PyTorch's allocator, and how far it was measured."""
    if not result.available_bytes:
        return
    card = CARDS.get(result.gpu or "") if result.backend == "virtual" else None
    if card and result.limit_bytes and result.limit_bytes < card.total_bytes:
        yield f"limited to {format_size(result.limit_bytes)}"
    yield f"{format_size(result.available_bytes)} for this process"
    if outside := _much_outside(result):
        yield f"{format_size(outside)} outside PyTorch"
    yield _measured_text(result)


def _measured_text(result: ProbeResult) -> str:
    """Return how many iterations were measured; empty where the run did not end well."""
    is_stated = result.iterations and result.outcome == "fits" and result.available_bytes
    return f"{count(result.iterations or 0, 'iteration')} measured" if is_stated else ""


def _much_outside(result: ProbeResult) -> int:
    """Return the bytes outside PyTorch's allocator if they are more than 1 GiB and a tenth of the card, else 0."""
    outside = (result.non_torch_bytes or 0) + (result.other_process_bytes or 0)
    return outside if outside > GiB and outside * 10 >= (result.limit_bytes or 0) else 0


def _peak_fact(result: ProbeResult) -> Iterator[tuple[str, str]]:
    """Yield the peak; after a failure that of the whole run without a limit, where it was run."""
    if demand := demand_text(result):
        yield "Needs", demand
    elif result.peak:
        before = " before the failure" if result.outcome == "oom" else ""
        requested = f"{format_size(result.peak.requested_bytes)} requested{before}"
        held = result.reserved_peak
        reserved = f"; {format_size(held.reserved_bytes)} reserved at most" if held else ""
        yield "Peak", f"{requested} in {peak_place(result.peak)}{reserved}"


def probe_report(
    result: ProbeResult, *, title: str = "", figures: Iterable[parts.Figure] = (), shown: int = SHOWN
) -> Iterator[parts.Part]:
    """Yield everything that a probe measured of one rank, with ``shown`` lines of code."""
    told = (title, rank_text(result), device_text(result), _measured_text(result))
    yield parts.line(" · ".join(part for part in told if part), "soft")
    yield parts.status(status_text(result), TONES[result.outcome])
    if text := failure_advice(result):
        yield parts.advice(text)
    if result.verdict:
        yield from verdict_parts(result.verdict, has_card=result.available_bytes is not None, less=less_text(result))
    yield from measurement_parts(result, figures, shown, name=LINE_TABLE)
    if len(result.ranks) > 1:
        yield rank_table(result.ranks)
    yield from map(parts.note, result.notes)


def measurement_parts(
    result: ProbeResult, figures: Iterable[parts.Figure] = (), shown: int = SHOWN, *, name: str = ""
) -> Iterator[parts.Part]:
    """Yield the peak, by category, line and phase, and the settings tried; ``name``: of the table of lines."""
    if result.peak:
        yield parts.BLANK
        yield parts.Facts(rows=list(_facts(result, result.peak)))
        yield from figures
        at_peak = "Requested at the peak" if result.outcome == "fits" else "Requested at the peak before the failure"
        yield category_table(result.peak.categories, f"{at_peak}, by category")
        stacks = Stacks(result.peak.stacks)
        yield line_table(f"{at_peak}, by line", result.peak.sites, shown, name=name, stacks=stacks)
    yield phase_table(result.phases)
    if result.verdict:
        yield fix_table(result.verdict, tried_title(result.verdict), has_margin=result.available_bytes is not None)
        if untried := untried_text(result.verdict):
            yield parts.line(untried, "soft")


def _facts(result: ProbeResult, peak: Peak) -> Iterator[tuple[str, parts.Known]]:
    yield "Peak", f"{format_size(peak.requested_bytes)} requested in {peak_place(peak)}"
    if reserved := reserved_text(result):
        yield "Reserved", reserved
    if demand := demand_text(result):
        yield "Demand", demand
    if retries := retries_text(result):
        yield "Retries", retries
    if result.allocator_conf is not None or result.backend != "command":
        yield "Allocator", allocator_text(result)
    if result.pinned_bytes:
        yield "Host", f"{format_size(result.pinned_bytes)} pinned"
    if flops := flops_text(result):
        yield "Work", flops
    if cost := cost_text(result):
        yield "Cost", cost
    if result.timeline:
        yield "Timeline", parts.Curve(values=result.timeline)
    if result.truncated:
        yield "Recorded", parts.Line(text="the ring of events wrapped: the beginning is missing", tone="warn")


def phase_table(phases: Iterable[PhaseBytes]) -> parts.Table:
    """Return of each phase the iteration in which it needed most requested bytes, in the order of the run.

    Reserved bytes are the most of any iteration, which may be another: the cache grows while requested bytes repeat.
    """
    highest: dict[str, PhaseBytes] = {}
    for row in phases:
        known = highest.setdefault(row.phase, row)
        reserved = max(known.reserved_bytes, row.reserved_bytes)
        live = row if row.requested_bytes > known.requested_bytes else known
        highest[row.phase] = replace(live, reserved_bytes=reserved)
    top = max((row.requested_bytes for row in highest.values()), default=0)
    return parts.Table(
        title="Peak of each phase: most requested, where it says, and most reserved in any iteration",
        columns=parts.columns("Phase", "size:Requested", "size:Reserved", "bar:"),
        rows=[
            (
                moment_text(row.iteration, row.phase),
                row.requested_bytes,
                row.reserved_bytes,
                parts.bar(row.requested_bytes, top),
            )
            for row in highest.values()
        ],
    )


def rank_table(ranks: Iterable[RankSummary]) -> parts.Table:
    """Return every rank that was probed."""
    return parts.Table(
        title="All ranks",
        columns=parts.columns("number:Rank", "Outcome", "size:Requested", "size:Reserved", "size:Margin", ""),
        rows=[
            (
                str(row.rank),
                parts.Cell(text=row.outcome, tone=TONES[row.outcome]),
                *((row.peak.requested_bytes, row.peak.reserved_bytes) if row.peak else (None, None)),
                row.margin_bytes,
                row.message,
            )
            for row in ranks
        ],
    )


def device_text(result: ProbeResult) -> str:
    """Return which card was measured: ``virtual h100-80gb, 79.11 GiB in all, 78.11 GiB for this process``."""
    card = " ".join(part for part in (result.backend, result.gpu) if part)
    sizes = (
        (result.limit_bytes, "in all"),
        (result.non_torch_bytes, "outside torch"),
        (result.other_process_bytes or None, "held by other processes"),
        (result.available_bytes, "for this process"),
    )
    return ", ".join([card, *(f"{format_size(size)} {what}" for size, what in sizes if size is not None)])


def rank_text(result: ProbeResult) -> str:
    """Return ``rank 0 of 32``."""
    return f"rank {result.rank} of {result.world_size}"


def status_text(result: ProbeResult) -> str:
    """Return the answer in one line: it fits and with what margin, where it failed, or why nothing was measured."""
    if result.outcome == "fits":
        if result.margin_bytes is None or result.available_bytes is None:
            return _without_card(result)
        if result.verdict and (more := iterations_left(result.verdict)) is not None:
            margin = f"{format_size(result.margin_bytes)} to spare"
            return f"FITS SO FAR, {margin}, but a leak fills that in about {count(more, 'more iteration')}"
        if result.survived:
            return _after_failures(result.survived, result.available_bytes)
        left = percent(result.margin_bytes, result.available_bytes)
        return f"FITS, {format_size(result.margin_bytes)} to spare ({left} of what the process may use)"
    if result.outcome == "oom" and result.oom:
        oom = result.oom
        what = "OUT OF HOST MEMORY" if result.verdict and result.verdict.kind == "host" else "OUT OF MEMORY"
        asked = f" asking for {format_size(oom.requested_bytes)}" if oom.requested_bytes is not None else ""
        where = f", at {site_text(oom.site)}" if oom.site else ""
        return f"{what}{asked} in {moment_text(oom.iteration, oom.phase, oom.microbatch)}{where}"
    if result.failure:
        return f"NOT MEASURED ({result.failure.kind}): {result.failure.reason}"
    return result.outcome.upper()


def _after_failures(survived: SurvivedFailures, available_bytes: int) -> str:
    """Return the answer for a run that fits though allocations failed: what they were part of counts no more."""
    failed = f"{count(survived.count, 'failed allocation')} that the program survived"
    if survived.reserved_bytes is None:
        return f"FITS, with {failed}"
    return f"FITS, after {failed}; since the last one {format_size(available_bytes - survived.reserved_bytes)} to spare"


def _without_card(result: ProbeResult) -> str:
    if result.backend != "command":
        return "FITS: it allocated nothing on the device"
    if result.peak is None:
        return "RAN THROUGH: the command ended with status 0"
    return f"MEASURED: {format_size(result.peak.requested_bytes)} requested at most; the card is not known"


def result_advice(result: ProbeResult) -> str | None:
    """Return what to do after a probe; None where a failure has no known remedy."""
    if result.outcome == "error":
        return failure_advice(result)
    has_card = result.available_bytes is not None
    advice = advice_text(result.verdict, has_card=has_card, less=less_text(result)) if result.verdict else None
    if result.outcome != "fits" or not has_card or result.margin_bytes is None:
        crowded = _much_outside(result) if result.outcome == "oom" else 0
        freed = (
            f"free some of the {format_size(crowded)} outside PyTorch (libraries, other processes)" if crowded else ""
        )
        return "; ".join(filter(None, (advice, freed))) or None
    unstepped = "if the optimizer that did not step does so later, give more --iterations" if result.unstepped else ""
    parts = (advice, _room_advice(result), ranks_left_out(result), unstepped)
    return "; ".join(filter(None, parts)) or "Nothing: the run fits."


def less_text(result: ProbeResult) -> str | None:
    """Return which memory to reduce; None where something leaks, which needs more in each further iteration.

    None also where the run failed before it had made all that an iteration leaves.
    """
    if result.verdict is None or result.verdict.leak is not None or result.available_bytes is None:
        return None
    is_configured, oom, whole = result.pipeline_stages is not None, result.oom, result.demand_peak
    if whole is not None:
        is_trained = whole.iteration >= 1 or whole.phase in {"backward", "optimizer"}
        at_peak = what_to_reduce(
            whole.categories,
            result.available_bytes,
            is_trained=is_trained,
            is_configured=is_configured,
            step=step_remedies(whole.phase, whole.stacks),
            kept=most_kept(whole.stacks),
        )
        return _with_step(result, whole, at_peak)
    if oom is None or oom.iteration < 1:
        return None
    stacks = result.peak.stacks if result.peak else None
    return what_to_reduce(
        result.verdict.categories,
        result.available_bytes,
        request_bytes=result.verdict.requested_bytes or 0,
        grows_with_batch=oom.phase in BATCH_PHASES,
        is_configured=is_configured,
        step=step_remedies(oom.phase, stacks),
        kept=most_kept(stacks),
    )


def _with_step(result: ProbeResult, whole: Peak, at_peak: str | None) -> str | None:
    """Return what to reduce ``at_peak`` of the ``whole`` run and in its optimizer's step, when all gradients are made.

    Sharding and offloading, advised for a configuration, help at both.
    """
    step, is_configured, available = result.demand_step, result.pipeline_stages is not None, result.available_bytes or 0
    if step is None or whole.phase == "optimizer":
        return at_peak
    remedies = step_remedies("optimizer", step.temporaries)
    kept = most_kept(whole.stacks)
    in_step = what_to_reduce(step.categories, available, is_configured=is_configured, step=remedies, kept=kept)
    if model_exceeds(step.categories, available):
        return in_step
    if at_peak is None or in_step is None or is_configured or model_exceeds(whole.categories, available):
        return at_peak
    is_same = in_step.partition(" of ")[2] == at_peak.partition(" of ")[2]
    return at_peak if is_same else f"{at_peak}; and in the optimizer's step {in_step}"


def _room_advice(result: ProbeResult) -> str | None:
    margin = result.margin_bytes or 0
    if result.survived:  # the cache was emptied, and the card full, when they failed
        if result.survived.reserved_bytes is None:
            return None
        margin = (result.available_bytes or 0) - result.survived.reserved_bytes
    elif result.num_alloc_retries:
        return f"{retries_text(result)}: {LESS}, or try expandable_segments:True"
    if is_tight(margin, result.available_bytes or 0):
        return f"{format_size(margin)} to spare is tight; {LESS} for a reliable run"
    return None


_NO_SUCH_CARD = ("invalid device ordinal", "But your machine only has: [")
"""Messages of CUDA and Lightning for a card that does not exist."""


def failure_advice(result: ProbeResult) -> str | None:
    """Return what to do about a module or a card that is not there; None where that is not what failed."""
    failure = result.failure
    text = failure.message + failure.detail if failure else ""
    if result.backend == "virtual" and any(words in text for words in _NO_SUCH_CARD):
        return (
            "the program uses more GPUs than it saw: give one process N of them with --devices N; play one of N ranks "
            "with --world-size N; or start them with torchrun"
        )
    torch_advice = "start it with a Python that has torch: activate its environment, or name that python in the command"
    if failure and failure.unrecorded == "without_torch":
        return torch_advice
    if failure and failure.unrecorded == "failed_before_torch":
        return f"correct the error that it printed last; if torch is missing, {torch_advice}"
    if failure is None or failure.kind not in {"import", "setup"} or "No module named" not in failure.message:
        return None
    return "name the checkout that holds it with --repo, or install the package where oomscope is"


def peak_place(peak: Peak) -> str:
    """Return when and where the peak of requested memory stood, with the module where known."""
    text = moment_text(peak.iteration, peak.phase, peak.microbatch)
    if peak.site is None:
        return text
    return f"{text}, at {site_text(peak.site)}{in_module(peak.site.module)}"


def demand_text(result: ProbeResult) -> str | None:
    """Return the peak of the same run on a card without a limit, where it was run."""
    if not result.demand_bytes:
        return None
    place = f", in {peak_place(result.demand_peak)}" if result.demand_peak else ""
    lacking = result.demand_bytes - (result.available_bytes or result.demand_bytes)
    is_in_verdict = result.verdict is not None and result.verdict.kind == "capacity"
    more = f", {format_size(lacking)} more than this process may use" if lacking > 0 and not is_in_verdict else ""
    return f"{format_size(result.demand_bytes)} requested by a second run, without a limit{more}{place}"


def reserved_text(result: ProbeResult) -> str | None:
    """Return the most that the allocator held, when, and how much of it nothing live explains at that same moment."""
    held, peak = result.reserved_peak, result.peak
    if held is None or peak is None:
        return None
    when = "at the peak of requested bytes"
    if held.event != peak.event:
        moment = moment_text(held.iteration, held.phase, held.microbatch)
        when = f"in {moment}, with {format_size(held.requested_bytes)} requested"
    most, overhead = format_size(held.reserved_bytes), format_size(held.overhead_bytes)
    share = percent(held.overhead_bytes, held.reserved_then_bytes)
    if held.reserved_then_bytes < held.reserved_bytes:
        return f"{most} at most; {overhead} ({share}) of the {format_size(held.reserved_then_bytes)} {when} is overhead"
    return f"{most} at most, {when}: {overhead} ({share}) of it is overhead"


def retries_text(result: ProbeResult) -> str | None:
    """Return how often the allocator emptied its cache, and what it would hold otherwise, where that is known."""
    if not result.num_alloc_retries:
        return None
    text = f"the allocator emptied its cache {count(result.num_alloc_retries, 'time')}"
    whole = result.demand_peak
    if result.outcome != "fits" or result.survived or whole is None or whole.reserved_bytes is None:
        return text  # without the failure, a program that tries what fits runs differently
    return f"{text}; without a limit it would hold {format_size(whole.reserved_bytes)}"


def allocator_text(result: ProbeResult) -> str:
    """Return the allocator settings that were in force, wherever they came from."""
    return f"PYTORCH_ALLOC_CONF={result.allocator_conf}" if result.allocator_conf else "default settings"


def flops_text(result: ProbeResult) -> str | None:
    """Return the floating-point work of an iteration and the share that recomputation adds."""
    model = result.flops.get("model", 0)
    if not model:
        return None
    recompute = result.flops.get("recompute", 0)
    text = f"{format_flops(model)} an iteration on this rank"
    text += f", plus {format_flops(recompute)} ({percent(recompute, model)}) recomputed" if recompute else ""
    if result.step_time_s:
        text += f"; {result.step_time_s:.3f} s a step"
    if result.tflops_per_s:
        text += f", {result.tflops_per_s:.1f} TFLOP/s"
    return text


def cost_text(result: ProbeResult) -> str | None:
    """Return the estimate of a step, and what of it recomputation, offloading and communication are."""
    cost = result.cost
    if not cost:
        return None
    text = f"about {format_seconds(cost['seconds'])} a step (estimated)"
    named = (
        ("recompute_s", "recomputed"),
        ("activation_offload_s", "waiting for offloaded activations"),
        ("optimizer_offload_s", "in the host's optimizer"),
        ("collectives_s", "in collectives"),
        ("bubble_s", "waiting for other stages"),
    )
    parts = [f"{format_seconds(cost[key])} {name}" for key, name in named if cost[key] > 0]
    return f"{text}, of which {', '.join(parts)}" if parts else text


def format_flops(flops: int) -> str:
    """Return ``1.23 PFLOP``."""
    amount = float(flops)
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"):
        if amount < 1000:
            return f"{three_digits(amount)} {unit}"
        amount /= 1000
    return f"{three_digits(amount)} PFLOP"
