from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.config.load import LoadedConfig, load_preset
from oomscope.probe.job import ProbeJob
from oomscope.probe.result import ProbeResult
from oomscope.probe.tuning import advise as advise_module
from oomscope.probe.tuning.advise import Advice, Proposal, advise
from oomscope.probe.tuning.remedies import Remedy, are_compatible, overrides_of, remedies
from oomscope.probe.tuning.variants import measure_variant
from oomscope.units import MiB
from tests.unit.probe.played import measured

NO_OTHERS = ("device.non_torch_bytes=0",)
FINE = "offload.fine_grained_activation_offloading=true"
FAMILIES = ("allocator", "attention mask", "selective recompute", "offload", "full recompute", "parallelism")


class Played:
    """Remembers what was probed."""

    def __init__(self) -> None:
        self.jobs: list[ProbeJob] = []

    def __call__(self, job: ProbeJob, stop: threading.Event) -> ProbeResult:
        self.jobs.append(job)
        return measured(job)


def sized(job: ProbeJob, mib: int, fragments: int = 0) -> ProbeResult:
    """Return what comes of a job that needs ``mib`` MiB, and ``fragments`` MiB more without expandable segments."""
    need, available = mib * MiB, job.limit_bytes or 0
    held = need if "expandable_segments:True" in job.allocator_conf else need + fragments * MiB
    fits, result = held <= available, measured(job)
    kind = "headroom" if fits else "capacity" if need > available else "fragmentation"
    return replace(
        result,
        outcome="fits" if fits else "oom",
        peak=replace(result.peak, requested_bytes=need, reserved_bytes=min(held, available)),
        verdict=replace(result.verdict, kind=kind),
        demand_bytes=None if fits else need,
    )


def advice_for(*own: str, enough: int | None = 3, probe: Played | None = None) -> Advice:
    def load(overrides) -> LoadedConfig:
        return load_preset("gpt-tiny", (*NO_OTHERS, *own, *overrides))

    return advise(load, probe=probe or Played(), enough=enough)


def test_what_fits_needs_no_advice() -> None:
    probe = Played()
    advice = advice_for("device.limit=2GiB", probe=probe)
    assert advice.now.fits
    assert advice.solved
    assert (advice.fitting, advice.insufficient, len(probe.jobs)) == ((), (), 1)


def test_savings_are_those_of_the_rank_that_needs_most_which_another_may_be_under_a_change() -> None:
    def played(job: ProbeJob, stop: threading.Event) -> ProbeResult:
        recomputed = job.target.config["recompute"]["recompute_granularity"] == "full"
        return sized(job, {0: 462 - 42 * recomputed, 1: 683 - 121 * recomputed}[job.rank])

    def load(overrides) -> LoadedConfig:
        own = ("parallel.pipeline_model_parallel_size=2", "probe.rank=worst", *NO_OTHERS, "device.limit=400MiB")
        return load_preset("gpt-tiny", (*own, *overrides))

    advice = advise(load, probe=played)
    assert (advice.now.rank, advice.now.requested_bytes, advice.now.margin_bytes) == (1, 683 * MiB, -283 * MiB)
    saved = {proposal.names: proposal.saved_bytes for proposal in advice.insufficient}
    assert saved[("recompute all layers",)] == 121 * MiB
    assert saved[("expandable segments",)] == 0


def test_fragmentation_is_first_answered_by_expandable_segments() -> None:
    advice = advice_for("data.micro_batch_size=1", "device.limit=850MiB", enough=1)
    assert advice.now.verdict == "fragmentation"
    (proposal,) = advice.fitting
    assert proposal.variant.overrides == ("allocator.conf=expandable_segments:True",)
    assert advice.probes == 2


def test_proposals_are_sorted_by_cost_and_each_was_probed() -> None:
    probe = Played()
    advice = advice_for("device.limit=1200MiB", enough=20, probe=probe)
    assert not advice.now.fits
    costs = [proposal.slowdown for proposal in advice.fitting if not proposal.splits_anew]
    assert costs == sorted(costs)
    assert len(advice.fitting) >= 2
    assert len(probe.jobs) == advice.probes == 1 + len(advice.fitting) + len(advice.insufficient)
    for proposal in advice.fitting:
        assert proposal.variant.fits
        assert proposal.saved_bytes >= 0


def test_all_changes_are_tried_where_it_fits_as_it_is() -> None:
    advice = advice_for("device.limit=2GiB", enough=None)
    assert advice.now.fits
    assert len(advice.fitting) > 3
    names = [name for proposal in advice.fitting for name in proposal.names]
    assert "recompute all layers" in names
    assert any(name.endswith("on the host") for name in names)
    assert all(proposal.slowdown is not None or not proposal.variant.fits for proposal in advice.fitting)
    assert all(len(proposal.names) == 1 for proposal in (*advice.fitting, *advice.insufficient))


def test_the_cheapest_change_that_fits_comes_first_though_the_documents_name_it_late() -> None:
    def cheapest(enough: int | None) -> tuple[str, ...]:
        return advice_for("device.limit=1200MiB", enough=enough).fitting[0].names

    assert cheapest(1) == cheapest(2) == cheapest(None)


def test_what_fails_over_fragments_alone_is_tried_with_expandable_segments() -> None:
    advice = advice_for("device.limit=1100MiB", enough=None)
    alone = {each.names for each in advice.insufficient if each.variant.fails_over_fragments}
    mended = {each.names[1:] for each in advice.fitting if each.names[0] == "expandable segments"}
    assert ("activations of 2 of 4 layers on the host",) in alone
    assert alone == mended


@pytest.mark.parametrize("own", [(), ("model.attention_backend=unfused", "recompute.recompute_granularity=selective")])
def test_every_name_in_a_sum_is_in_effect(own: tuple[str, ...]) -> None:
    size = ("device.non_torch_bytes=0", "device.limit=150MiB")
    own = ("data.micro_batch_size=1", "parallel.data_parallel_size=4", *size, *own)
    changes = {change.name: change for change in remedies(load_preset("gpt-tiny", own).config)}
    advice = advice_for(*own)
    sums = [each for each in (*advice.fitting, *advice.insufficient) if len(each.names) > 1]
    assert sums
    for proposal in sums:
        for name in proposal.names:
            assert set(changes[name].overrides) <= set(proposal.variant.overrides), proposal.names
        loaded = load_preset("gpt-tiny", (*own, *proposal.variant.overrides))
        assert "R28" not in {finding.rule for finding in loaded.findings}


def test_changes_are_laid_together_where_none_suffices_alone() -> None:
    advice = advice_for("data.micro_batch_size=1", "parallel.data_parallel_size=3", "device.limit=200MiB")
    assert advice.fitting
    assert all(len(proposal.names) > 1 for proposal in advice.fitting)
    assert min(len(proposal.names) for proposal in advice.fitting) == 3  # allocator, full, distributed optimizer
    single = [proposal for proposal in advice.insufficient if len(proposal.names) == 1]
    assert not any(proposal.variant.fits for proposal in single)
    tried = [proposal.variant.overrides for proposal in (*advice.fitting, *advice.insufficient)]
    assert len(set(tried)) == len(tried)


def test_another_split_comes_last_whatever_it_seems_to_cost() -> None:
    class SplitsFit(Played):
        def __call__(self, job: ProbeJob, stop: threading.Event) -> ProbeResult:
            parallel = job.target.config["parallel"]
            is_split = max(parallel["tensor_model_parallel_size"], parallel["context_parallel_size"]) > 1
            return super().__call__(replace(job, limit_bytes=None) if is_split else job, stop)

    own = ("device.limit=1200MiB", "device.gpu=h100-80gb", "parallel.data_parallel_size=4")
    fitting = advice_for(*own, enough=20, probe=SplitsFit()).fitting
    order = [proposal.splits_anew for proposal in fitting]
    assert order == sorted(order)
    assert {True, False} == set(order)
    costs = [proposal.slowdown for proposal in fitting]
    assert costs != sorted(costs)


def test_states_go_to_the_host_of_one_replica_too() -> None:
    advice = advice_for("device.limit=1200MiB", enough=20)
    assert not [refused for refused in advice.refused if "states on the host" in refused.name]
    assert any("states on the host" in proposal.names[0] for proposal in (*advice.fitting, *advice.insufficient))


def test_states_of_other_optimizers_than_adam_stay() -> None:
    offers = remedies(load_preset("gpt-tiny", ("optimizer.optimizer=sgd",)).config)
    assert not [each for each in offers if "states on the host" in each.name]


@pytest.mark.parametrize(
    ("own", "kinds"),
    [
        ((), "distributed precision-aware "),
        (("optimizer.use_distributed_optimizer=true",), "precision-aware "),
        (("optimizer.use_distributed_optimizer=true", "optimizer.use_precision_aware_optimizer=true"), ""),
        (("precision.bf16=false",), ""),
    ],
)
def test_states_go_to_the_host_as_megatron_s_launcher_takes_them(own: tuple[str, ...], kinds: str) -> None:
    offers = [each for each in remedies(load_preset("gpt-tiny", own).config) if "states on the host" in each.name]
    assert len(offers) == 2
    assert not [
        each for each in remedies(load_preset("gpt-tiny", ("optimizer.optimizer=sgd",)).config) if each in offers
    ]
    for each in offers:
        assert each.name.partition(", with the ")[2] == (f"{kinds}optimizer" if kinds else "")
        switches = [f"optimizer.use_{kind.replace('-', '_')}_optimizer=true" for kind in kinds.split()]
        assert list(each.overrides[2:]) == switches
        assert load_preset("gpt-tiny", (*own, *each.overrides)), "the rules take it"


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("block recompute.recompute_num_layers=1", ["block 2", "block 3", "uniform 1"]),
        ("block recompute.recompute_num_layers=4", []),
        ("uniform recompute.recompute_num_layers=1", ["uniform 2"]),
        ("uniform recompute.recompute_num_layers=4", ["uniform 1", "uniform 2"]),
    ],
)
def test_whole_layers_that_are_recomputed_already_can_be_more_or_in_other_groups(now: str, expected: list[str]) -> None:
    method = f"recompute.recompute_granularity=full recompute.recompute_method={now}".split()
    config = load_preset("gpt-tiny", ("model.num_layers=4", *method)).config
    changes = [change for change in remedies(config) if change.family == "full recompute"]
    settings = [dict(override.split("=", 1) for override in change.overrides) for change in changes]
    keys = ("recompute.recompute_method", "recompute.recompute_num_layers")
    assert [" ".join(setting[key] for key in keys) for setting in settings] == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("optimizer.optimizer_cpu_offload=true optimizer.optimizer_offload_fraction=0", ["0.5", "1"]),
        ("optimizer.optimizer_cpu_offload=true optimizer.optimizer_offload_fraction=0.25", ["0.5", "1"]),
        ("optimizer.optimizer_cpu_offload=true optimizer.optimizer_offload_fraction=0.5", ["1"]),
        ("optimizer.optimizer_cpu_offload=true optimizer.optimizer_offload_fraction=1", []),
        ("offload.cpu_offloading=true offload.cpu_offloading_num_layers=3", ["4", "6"]),
        ("offload.cpu_offloading=true offload.cpu_offloading_num_layers=6", []),
        (f"{FINE} offload.offload_modules=[core_attn]", ["[core_attn,qkv_linear,attn_proj]"]),
        (f"{FINE} offload.offload_modules=[attn_proj,core_attn,qkv_linear,mlp_norm]", []),
    ],
)
def test_an_offload_that_is_partly_on_can_be_raised(now: str, expected: list[str]) -> None:
    own = ("model.num_layers=8", "optimizer.use_distributed_optimizer=true", *now.split())
    config = load_preset("gpt-tiny", own, enforce=False).config
    key = now.split()[1].partition("=")[0]
    settings = [dict(override.split("=", 1) for override in change.overrides) for change in remedies(config)]
    assert [setting[key] for setting in settings if key in setting] == expected


@pytest.mark.parametrize(
    ("own", "proposed"),
    [
        ((), False),
        (("model.attention_backend=flash",), True),
        (("model.attention_backend=flash", "data.create_attention_mask_in_dataloader=false"), False),
    ],
)
def test_a_mask_that_no_kernel_reads_is_left_out_at_no_cost(own: tuple[str, ...], proposed: bool) -> None:
    changes = [change.name for change in remedies(load_preset("gpt-tiny", own).config)]
    assert (changes[1] == "no attention mask in the batch") is proposed
    if proposed:
        advice = world_where(750, *own, **{"no attention mask": 350, "recompute all layers": 400}).advice()
        assert (leading(advice).names, leading(advice).slowdown) == (("no attention mask in the batch",), 0)


def test_what_the_rules_refuse_is_named_and_not_probed() -> None:
    probe = Played()
    advice = advice_for("device.limit=100MiB", probe=probe)
    assert advice.refused
    names = {proposal.names for proposal in (*advice.fitting, *advice.insufficient)}
    assert not names & {(row.name,) for row in advice.refused}
    assert all(row.reason for row in advice.refused)


@pytest.mark.parametrize("preset", ["gpt-tiny", "llama3-8b", "llama3-70b", "qwen3-30b-a3b-shaped"])
def test_changes_come_in_the_documents_order_and_are_loadable_overrides(preset: str) -> None:
    config = load_preset(preset).config
    changes = list(remedies(config))
    places = [FAMILIES.index(change.family) for change in changes]
    assert places == sorted(places)
    no_mask = {1} if config.attention_backend == "unfused" else set()
    assert set(places) == set(range(len(FAMILIES))) - no_mask
    for change in changes:
        changed = load_preset(preset, change.overrides, enforce=False).config
        assert changed != config, change.name
        batch = changed.num_microbatches * changed.data.micro_batch_size * changed.parallel.data_parallel_size
        assert batch == config.num_microbatches * config.data.micro_batch_size * config.parallel.data_parallel_size
        assert changed.parallel.world_size == config.parallel.world_size


class World:
    """Each change saves so many MiB of 1000 where it is in effect, and 4 % are lost without expandable segments."""

    def __init__(self, saved: dict[str, int], own: tuple[str, ...], limit: int) -> None:
        self.own = (*own, *NO_OTHERS, f"device.limit={limit}MiB")
        self.saved = saved
        self.changes = list(remedies(self.load(()).config))
        self.probes = 0

    def load(self, overrides: Sequence[str]) -> LoadedConfig:
        return load_preset("gpt-tiny", (*self.own, *overrides))

    def probe(self, job: ProbeJob, stop: threading.Event) -> ProbeResult:
        self.probes += 1
        inside = [change for change in self.changes if is_in_effect(change, job)]
        return sized(job, 1000 - sum(self.saved.get(change.name, 0) for change in inside), fragments=40)

    def fitting_sums(self) -> list[tuple[Remedy, ...]]:
        """Return all combinations of one change a family that the rules accept and that leave room."""
        families = [[None, *(each for each in self.changes if each.family == family)] for family in FAMILIES]
        chosen = [tuple(change for change in each if change) for each in product(*families)]
        return [each for each in chosen if are_compatible(each) and self.is_roomy(each)]

    def is_roomy(self, changes: tuple[Remedy, ...]) -> bool:
        return measure_variant(self.load, overrides_of(changes), self.probe, threading.Event()).is_roomy

    def advice(self, **options: Any) -> Advice:
        return advise(self.load, probe=self.probe, **options)


def is_in_effect(change: Remedy, job: ProbeJob) -> bool:
    pairs = (override.split("=", 1) for override in change.overrides)
    found = ((value, *(str(part) for part in key.split("."))) for key, value in pairs)
    return all(as_written(job.target.config[section][key]) == value for value, section, key in found)


def as_written(value: object) -> str:
    """Return ``value`` as overrides write it."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{','.join(value)}]"
    return str(value) if isinstance(value, str) else json.dumps(value)


CHANGES = tuple(change.name for change in remedies(load_preset("gpt-tiny").config) if change.family != "allocator")


def world_where(limit: int, *own: str, **saved: int) -> World:
    """Return a world in which changes save what ``saved`` says; its keys are the first words of names."""
    world = World({}, own, limit)
    world.saved = {
        change.name: size for key, size in saved.items() for change in world.changes if change.name.startswith(key)
    }
    return world


def leading(advice: Advice) -> Proposal:
    """Return what the headline names: the cheapest that leaves room."""
    return next(proposal for proposal in advice.fitting if proposal.variant.is_roomy)


@settings(max_examples=25, deadline=None)
@given(
    saved=st.dictionaries(st.sampled_from(CHANGES), st.integers(5, 200), min_size=2, max_size=5),
    limit=st.integers(700, 1000),
    enough=st.sampled_from([1, 3]),
)
def test_advice_finds_what_all_combinations_hold_and_no_single_change_is_cheaper(
    saved: dict[str, int], limit: int, enough: int
) -> None:
    world = World(saved, (), limit)
    world.changes = [change for change in world.changes if change.family == "allocator" or change.name in saved]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advise_module, "remedies", lambda config: world.changes)
        advice, whole = world.advice(enough=enough), world.advice(enough=None)
    if advice.now.fits or not world.fitting_sums():
        return
    assert any(proposal.variant.is_roomy for proposal in advice.fitting)
    singles = [each for each in whole.fitting if each.variant.is_roomy and len(each.names) == 1]
    assert all(leading(advice).slowdown <= each.slowdown for each in singles if not each.splits_anew)
    best, overrides = leading(advice), leading(advice).variant.overrides
    chosen = tuple(change for change in world.changes if change.name in best.names)
    assert overrides == overrides_of(chosen)
    if not singles:
        parts = [tuple(other for other in chosen if other is not change) for change in chosen]
        assert not any(world.is_roomy(part) for part in parts)


def test_the_next_best_of_a_family_is_taken_where_the_rules_refuse_the_best_beside_the_others() -> None:
    own = ("model.num_layers=12",)
    saved = {"activations of 10": 300, "100% of the optimizer's": 250, "recompute all layers": 200}
    advice = world_where(610, *own, **saved).advice()
    assert [name.partition(",")[0] for name in leading(advice).names] == [
        "100% of the optimizer's states on the host",
        "recompute all layers",
    ]


def test_changes_that_save_the_same_bytes_are_combined_without_each_other() -> None:
    class Overlapping(World):
        def probe(self, job: ProbeJob, stop: threading.Event) -> ProbeResult:
            recompute, data = job.target.config["recompute"], job.target.config["data"]
            kept = {None: 600, "selective": 500, "full": 200}[recompute["recompute_granularity"]]
            kept = min(kept, 300) if data["micro_batch_size"] == 1 else kept
            states = 400 - 250 * round(job.target.config["optimizer"]["optimizer_offload_fraction"])
            return sized(job, kept + states)

    advice = Overlapping({}, (), 500).advice()
    assert "100% of the optimizer's" in " ".join(leading(advice).names)


def test_a_tight_fit_ends_no_search_and_expandable_segments_that_fit_tightly_are_combined() -> None:
    world = world_where(1010, **{"recompute mlp": 35})
    advice = world.advice(enough=1)
    tight = [proposal.names for proposal in advice.fitting if proposal.variant.is_tight]
    assert ("expandable segments",) in tight
    assert leading(advice).names == ("expandable segments", "recompute mlp")


def test_the_leading_combination_has_no_superfluous_change_though_all_cost_the_same() -> None:
    world = world_where(700, **{"recompute all layers": 200, "100% of the optimizer's": 200})
    first, *others = world.advice().fitting
    assert "expandable segments" not in first.names
    assert any(set(first.names) < set(other.names) and first.slowdown == other.slowdown for other in others)


def test_the_dearest_change_is_taken_out_first() -> None:
    world = world_where(640, **{"recompute mlp": 150, "100% of the optimizer's": 350, "microbatches of 1": 250})
    assert leading(world.advice()).names == ("expandable segments", "recompute mlp", "microbatches of 1, twice as many")


def test_of_changes_that_cost_the_same_one_that_leaves_room_comes_first() -> None:
    world = world_where(690, **{"recompute all layers": 350})
    first, second = world.advice().fitting[:2]
    assert (first.names, first.variant.is_roomy) == (("expandable segments", "recompute all layers"), True)
    assert (second.names, second.variant.is_tight) == (("recompute all layers",), True)
