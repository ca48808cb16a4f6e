"""The sentences that terminal and HTML reports share: pure functions from results to text for people.

Under which name a torch reads the allocator's settings: before 2.10 the new name is ignored without a word. The old
name is read by every version, and alone where both are set (``docs/troubleshooting.md``).
"""

from __future__ import annotations

from typing import Final

from oomscope.allocator.settings import parse_version
from oomscope.probe.job import Progress
from oomscope.probe.result import WITHOUT_TORCH, Peak, ProbeResult, Site
from oomscope.snapshot.explain.explanation import DeviceExplanation
from oomscope.snapshot.judge.confirmed import is_tight
from oomscope.snapshot.read.rank_files import Unread
from oomscope.snapshot.verdict_types import FixTried, How, Verdict
from oomscope.units import format_size


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 probe``, ``2 probes``, ``2 searches``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def stage_text(progress: Progress) -> str:
    """Return ``step 1 of 2``."""
    return f"{progress.stage} {progress.done} of {progress.total}" if progress.total else progress.stage


def percent(part: int, whole: int) -> str:
    """Return ``part`` of ``whole`` as ``12.3 %``; a dash where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def known_size(size: int | None, *, signed: bool = False) -> str:
    """Return ``size`` for a table; a dash where it is not known."""
    return "-" if size is None else format_size(size, signed=signed)


def site_text(site: Site | None) -> str:
    """Return ``…/model/mlp.py:88 forward``; of a place without a file, such as an operator, its name."""
    if site is None:
        return "an unknown line"
    return site.brief


def category_text(category: str) -> str:
    """Return a category as words."""
    return category.replace("_", " ")


def one_line(text: str) -> str:
    """Return ``text``, such as the name of a file, without what would break a line or a column."""
    return text.replace("\n", "\\n").replace("\t", "\\t")


def unread_text(unread: Unread) -> str:
    """Return which snapshot file could not be read, and why."""
    return f"{one_line(unread.file)} cannot be read ({unread.reason})"


def moment_text(iteration: int, phase: str, microbatch: int = -1) -> str:
    """Return ``backward of iteration 1, microbatch 3``, leaving out what is unknown."""
    named = "another part" if phase == "other" else phase
    text = named or ("an unknown phase" if iteration < 0 else "")
    if iteration >= 0:
        text += f"{' of ' if text else ''}iteration {iteration}"
    return f"{text}, microbatch {microbatch}" if microbatch >= 0 else text


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
        left = percent(result.margin_bytes, result.available_bytes)
        return f"FITS, {format_size(result.margin_bytes)} to spare ({left} of what the process may use)"
    if result.outcome == "oom" and result.oom:
        oom = result.oom
        what = "OUT OF HOST MEMORY" if result.verdict and result.verdict.kind == "host" else "OUT OF MEMORY"
        asked = f" asking for {format_size(oom.requested_bytes)}" if oom.requested_bytes is not None else ""
        where = f", at {site_text(oom.site)}" if oom.site else ""
        return f"{what}{asked} in {moment_text(oom.iteration, oom.phase, oom.microbatch)}{where}"
    if result.failure:
        return f"NOT MEASURED ({result.failure.kind}): {result.failure.message}"
    return result.outcome.upper()


def result_advice(result: ProbeResult) -> str | None:
    """Return what to do after a probe; None where a failure has no known remedy."""
    if result.outcome == "error":
        return missing_module_advice(result)
    has_card = result.available_bytes is not None
    advice = advice_text(result.verdict, has_card=has_card) if result.verdict else None
    if result.outcome != "fits" or not has_card or result.margin_bytes is None:
        return advice
    return "; ".join(filter(None, (advice, _room_advice(result)))) or "Nothing: the run fits."


def _room_advice(result: ProbeResult) -> str | None:
    """Return what to do about a run that went through with little room."""
    if result.num_alloc_retries:
        return f"{retries_text(result)}: {LESS}, or try expandable_segments:True"
    if is_tight(result.margin_bytes or 0, result.available_bytes or 0):
        return f"{format_size(result.margin_bytes or 0)} to spare is tight; {LESS} for a reliable run"
    return None


def missing_module_advice(result: ProbeResult) -> str | None:
    """Return what to do about a module that is not there; None where that is not what failed."""
    failure = result.failure
    if failure and failure.message.startswith(WITHOUT_TORCH):
        return "start it with a Python that has torch: activate its environment, or name that python in the command"
    if failure is None or failure.kind not in {"import", "setup"} or "No module named" not in failure.message:
        return None
    return "name the checkout that holds it with --repo, or install the package where oomscope is"


def _without_card(result: ProbeResult) -> str:
    """Return the answer of a run that went through, where nothing is known of what it had left."""
    if result.backend != "command":
        return "FITS: it allocated nothing on the device"
    if result.peak is None:
        return "RAN THROUGH: the command ended with status 0"
    return f"MEASURED: {format_size(result.peak.requested_bytes)} requested at most; the card is not known"


def date_text(date: str) -> str:
    """Return an ISO 8601 date and time for people: ``2025-01-06 19:24 UTC``, another zone as ``+05:30``."""
    day, separator, rest = date.partition("T")
    if not separator:
        return date
    zone = rest.removeprefix(rest[:8])
    return f"{day} {rest[:5]} {'UTC' if zone in {'+00:00', 'Z'} else zone}".rstrip()


def peak_place(peak: Peak) -> str:
    """Return when and where the peak of requested memory stood, with the module where known."""
    text = moment_text(peak.iteration, peak.phase, peak.microbatch)
    if peak.site is None:
        return text
    module = f" in {peak.site.module}" if peak.site.module else ""
    return f"{text}, at {site_text(peak.site)}{module}"


def demand_text(result: ProbeResult) -> str | None:
    """Return the peak of the same run on a card without a limit, where it was run."""
    if not result.demand_bytes:
        return None
    place = f" in {peak_place(result.demand_peak)}" if result.demand_peak else ""
    lacking = result.demand_bytes - (result.available_bytes or result.demand_bytes)
    more = f", {format_size(lacking)} more than this process may use" if lacking > 0 else ""
    return f"{format_size(result.demand_bytes)} requested{place}{more}, in the same run without a limit"


def reserved_text(result: ProbeResult) -> str | None:
    """Return the most that the allocator held, when, and how much of it nothing live explains at that same moment."""
    held, peak = result.reserved_peak, result.peak
    if held is None or peak is None:
        return None
    when = "at the peak of requested bytes"
    if held.event != peak.event:
        moment = moment_text(held.iteration, held.phase, held.microbatch)
        when = f"in {moment}, with {format_size(held.requested_bytes)} requested"
    overhead = held.reserved_bytes - held.requested_bytes
    share = percent(overhead, held.reserved_bytes)
    return f"{format_size(held.reserved_bytes)} at most, {when}: {format_size(overhead)} ({share}) of it is overhead"


def retries_text(result: ProbeResult) -> str | None:
    """Return how often the allocator emptied its cache, and what it would hold otherwise, where that is known."""
    if not result.num_alloc_retries:
        return None
    text = f"the allocator emptied its cache {count(result.num_alloc_retries, 'time')}"
    if result.outcome != "fits" or result.demand_peak is None or result.demand_peak.reserved_bytes is None:
        return text
    return f"{text}; without a limit it would hold {format_size(result.demand_peak.reserved_bytes)}"


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


def format_seconds(seconds: float) -> str:
    """Return ``1.23 s``, ``45.6 ms``, ``1,234 s``."""
    return f"{_three_digits(seconds)} s" if seconds >= 1 else f"{_three_digits(1000 * seconds)} ms"


def slowdown_text(share: float | None) -> str:
    """Return ``+3.2 %``; a dash where it is not known."""
    return "-" if share is None else f"{100 * share:+.1f} %"


def format_flops(flops: int) -> str:
    """Return ``1.23 PFLOP``."""
    amount = float(flops)
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"):
        if amount < 1000:
            return f"{_three_digits(amount)} {unit}"
        amount /= 1000
    return f"{_three_digits(amount)} PFLOP"


def _three_digits(number: float) -> str:
    """Return three significant digits, and every digit before the point: ``1.23``, ``45.6``, ``1,234``."""
    return f"{number:,.0f}" if abs(number) >= 999.5 else f"{number:.3g}"


def kind_text(verdict: Verdict) -> str:
    """Return the verdict's kind with its tags, ``fragmentation, uncured (leak)``, or the tags where nothing failed."""
    if verdict.kind == "headroom" and verdict.tags:
        return "; ".join(verdict.tags)
    text = verdict.kind + (", uncured" if verdict.uncured else "")
    return f"{text} ({'; '.join(verdict.tags)})" if verdict.tags else text


HOW_TEXTS: Final[dict[How, str]] = {"replayed": "replay", "run": "run"}


def fix_outcome(fix: FixTried) -> str:
    """Return how the replay or the run under one setting came out."""
    if fix.how == "run":
        return _run_outcome(fix)
    return "passes" if fix.survives else failed_when(fix.failed_event)


def _run_outcome(fix: FixTried) -> str:
    if fix.survives:
        return "ran to the end, tight" if fix.is_tight else "ran to the end"
    return f"failed in {fix.failed_in}" if fix.failed_in else "failed"


def untried_text(verdict: Verdict) -> str | None:
    """Return which settings were not run although they were candidates; None where all were."""
    listed = ", ".join(verdict.untried)
    return f"not run, beyond the limits of number and time: {listed}" if listed else None


def tried_title(verdict: Verdict) -> str:
    """Return what stands over the table of settings."""
    if verdict.confirmed:
        return "Allocator settings tried, by running the whole program again or by replaying its allocations"
    return "Allocator settings tried on the same allocations"


def failed_when(event: int | None) -> str:
    """Return at which event a replay failed; those before the first are blocks older than the recording."""
    if event is None:
        return "fails"
    return "fails before the recording began" if event < 0 else f"fails at event {event:,}"


LESS: Final = "reduce live memory"


def advice_text(verdict: Verdict, *, has_card: bool = True, variable: str = "PYTORCH_ALLOC_CONF") -> str | None:
    """Return what to do: about what grows, then about the failure as far as something was tried.

    Args:
        verdict: why it failed.
        has_card: whether the card is known; else nothing is said of how much room is left.
        variable: where the torch that failed reads its allocator's settings.
    """
    advice = (_leak_advice(verdict, has_card=has_card), _failure_advice(verdict, variable))
    return "; ".join(text for text in advice if text) or None


def _failure_advice(verdict: Verdict, variable: str) -> str | None:
    if "foreign" in verdict.tags:
        return "end the other processes on the card or use another card: alone on it the same allocations pass"
    if "fraction" in verdict.tags:
        return (
            f"raise torch.cuda.set_per_process_memory_fraction (or per_process_memory_fraction in {variable}), "
            "which refused the request although the device had enough free"
        )
    if verdict.kind == "fragmentation":
        return _fragmentation_advice(verdict, variable)
    if verdict.kind == "capacity":
        return "peak demand exceeds the card; reduce live memory (recompute, offload, parallelism)"
    return None


def _fragmentation_advice(verdict: Verdict, variable: str) -> str:
    if verdict.cured_by:
        return f"set {variable}={_cure_advice(verdict)}"
    remedy = _private_pools_advice(verdict)
    if verdict.uncured and verdict.put_off_by:
        return f"{remedy or LESS}: {verdict.put_off_by.name} only delays the failure"
    if "later: capacity" in verdict.tags and verdict.gets_past:
        return f"{verdict.gets_past.name} avoids this failure, but peak demand exceeds the card later; {LESS}"
    if verdict.uncured:
        return f"no allocator setting tried serves these allocations; {remedy or LESS}"
    if "undecided" in verdict.tags:
        return "record from the start of the process: the layout of older blocks decides whether a setting helps"
    return f"the replay does not reproduce this failure, so no setting is shown to help; {remedy or LESS}"


def _cure_advice(verdict: Verdict) -> str:
    """Return the preferred setting, how far it is known to serve, and what to do where it leaves little."""
    cure, row = verdict.cured_by[0], verdict.preferred
    if not verdict.confirmed or row is None:
        return f"{cure}: the same allocations pass under it, to the end of the recording"
    room = f"{cure}: the whole program ran under it, with {format_size(row.margin_bytes)} to spare"
    if not row.is_tight:
        return room
    return f"{room}, which is tight; {LESS} for a reliable run"


def _private_pools_advice(verdict: Verdict) -> str | None:
    """Return the remedy where most of what is free lies in private pools; None elsewhere.

    Source: PyTorch docs/source/notes/cuda.rst, "Graph memory management" and "Sharing memory across captures".
    """
    largest = max(verdict.gaps, key=lambda gap: gap.bytes, default=None)
    if largest is None or largest.reason != "private_pool":
        return None
    return (
        "capture fewer CUDA graphs or use fewer MemPools, whose free blocks serve no other pool; graphs that are "
        "replayed in the order of their capture, one at a time, can share one (torch.cuda.graph(g, pool=handle) with "
        "one handle = torch.cuda.graph_pool_handle())"
    )


def _leak_advice(verdict: Verdict, *, has_card: bool) -> str | None:
    """Return the remedy for a leak (PyTorch docs/source/notes/faq.rst), and how long it can wait."""
    leak = verdict.leak
    if leak is None:
        return None
    size = format_size(leak.bytes_per_iteration)
    culprit = f"what {site_text(leak.site)} allocates" if leak.site else "something"
    text = (
        f"{culprit} stays alive, {size} more after each iteration: a tensor that is kept holds onto its graph, so keep "
        "loss.item() or .detach() of it, and look for lists, caches and hooks that outlive the step"
    )
    if has_card and (left := iterations_left(verdict)) is not None:
        text += f"; at this rate there is room for about {count(left, 'more iteration')}"
    return text


def iterations_left(verdict: Verdict) -> int | None:
    """Return after how many more iterations a leak fills the card; None where nothing leaks, or the run failed."""
    if verdict.leak is None or verdict.kind != "headroom":
        return None
    return max(0, verdict.available_bytes - verdict.reserved_bytes) // verdict.leak.bytes_per_iteration


NEW: Final = "PYTORCH_ALLOC_CONF"
OLD: Final = "PYTORCH_CUDA_ALLOC_CONF"
_NEW_SINCE: Final = (2, 10)
_FOUND_BEFORE_2_12: Final = "2.11"
"""Stands for every torch up to 2.11, wherever rules were found by what repeats the recording best."""


def conf_variable(device: DeviceExplanation) -> str:
    """Return the name that the torch of a recording reads, whichever of those that it may be it was."""
    is_old = device.version_source == "found" and device.torch_version == _FOUND_BEFORE_2_12
    return OLD if is_old or parse_version(device.torch_version) < _NEW_SINCE else NEW


def duration_text(seconds: float) -> str:
    """Return ``4.2 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
