"""Which rank holds which part of the model: a rank's coordinates, and the process groups along each axis.

Ranks are numbered as Megatron-Core numbers them (``parallel_state.RankGenerator``, order ``tp-cp-ep-dp-pp``):
tensor parallel is the fastest axis and pipeline the slowest, or with use_tp_pp_dp_mapping the replicas are. Dense and
expert layers cut the same ranks of a stage in two ways, (tp, cp, dp) and (expert tp, ep, expert dp). Instances of the
distributed optimizer are equal parts of the replicas of either, one after the other: both ways the same runs of ranks
of the stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args

from oomscope.config.schema import Config
from oomscope.errors import ConfigError, UsageError

if TYPE_CHECKING:
    import torch.distributed as dist

Axis = Literal[
    "tp",
    "cp",
    "dp",
    "dp_cp",
    "intra_dp_cp",
    "cp_a2a",
    "cp_p2p",
    "pp",
    "ep",
    "expert_tp",
    "expert_tp_ep",
    "expert_dp",
    "intra_expert_dp",
    "inter_dist_opt",
    "embedding",
]


_MEMBERS: dict[Axis, tuple[str, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("dp",),
    "dp_cp": ("cp", "dp"),
    "pp": ("pp",),
    "expert_tp": ("expert_tp",),
    "ep": ("ep",),
    "expert_tp_ep": ("expert_tp", "ep"),
    "expert_dp": ("expert_dp",),
}
"""Axes that a group runs along, either those of dense layers or those of experts."""


class Place(NamedTuple):
    """One rank's place among the ranks of an axis."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    """Process group; None where the rank is alone and nothing is sent."""


_ALONE = Place()


@dataclass(frozen=True, kw_only=True)
class ParallelState:
    """One rank's place in the world and on every axis; the default is a world of one."""

    rank: int = 0
    world_size: int = 1
    tp: Place = _ALONE
    cp: Place = _ALONE
    pp: Place = _ALONE
    dp: Place = _ALONE
    cp_a2a: Place = _ALONE
    """Neighbours that exchange heads, in a context-parallel group of two levels."""
    cp_p2p: Place = _ALONE
    """Ring of the ranks at the same place among their neighbours, in such a group."""
    dp_cp: Place = _ALONE
    """Ranks that hold the same dense parameters: gradients are reduced over it."""
    ep: Place = _ALONE
    expert_tp: Place = _ALONE
    expert_tp_ep: Place = _ALONE
    """Ranks that share the experts of a layer and parts of them, expert TP fastest."""
    expert_dp: Place = _ALONE
    """Ranks that hold the same routed experts."""
    intra_dp_cp: Place = _ALONE
    """Ranks of ``dp_cp`` in the same optimizer instance: optimizer states are sharded over it."""
    intra_expert_dp: Place = _ALONE
    """Ranks of ``expert_dp`` in the same optimizer instance."""
    inter_dist_opt: Place = _ALONE
    """Ranks with the same shards, one in every instance."""
    embedding: Place = _ALONE
    """First and last stage of this pipeline, where a tied word embedding lives twice."""

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank holds the embedding."""
        return self.pp.rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank holds the output layer and the loss."""
        return self.pp.rank == self.pp.size - 1


def expert_tensor_parallel_size(config: Config) -> int:
    """Return TP inside an expert; null in the configuration means that of the dense layers."""
    return config.parallel.expert_tensor_parallel_size or config.parallel.tensor_model_parallel_size


def stage_size(config: Config) -> int:
    """Return the ranks of one pipeline stage, tp * cp * dp.

    Raises:
        ConfigError: the experts' axes do not divide it.
    """
    parallel = config.parallel
    ranks = parallel.tensor_model_parallel_size * parallel.context_parallel_size * parallel.data_parallel_size
    expert_ranks = expert_tensor_parallel_size(config) * parallel.expert_model_parallel_size
    if ranks % expert_ranks:
        raise ConfigError(
            f"a pipeline stage of {ranks} ranks cannot be cut into experts over {expert_ranks} ranks",
            where="parallel.expert_model_parallel_size",
            remedy="let TP * CP * DP be a multiple of expert TP * EP",
        )
    return ranks


def _sizes(config: Config, *, expert: bool) -> dict[str, int]:
    """Return the ranks along each axis that dense or expert layers cut the world by, the fastest first."""
    parallel, stage = config.parallel, stage_size(config)
    if expert:
        sizes = {"expert_tp": expert_tensor_parallel_size(config), "ep": parallel.expert_model_parallel_size}
        replicas = {"expert_dp": stage // (sizes["expert_tp"] * sizes["ep"])}
    else:
        sizes = {"tp": parallel.tensor_model_parallel_size, "cp": parallel.context_parallel_size}
        replicas = {"dp": parallel.data_parallel_size}
    stages = {"pp": parallel.pipeline_model_parallel_size}
    return sizes | stages | replicas if parallel.use_tp_pp_dp_mapping else sizes | replicas | stages


def _places(sizes: dict[str, int], rank: int) -> dict[str, int]:
    """Return where ``rank`` stands along each axis."""
    places = {}
    for axis, size in sizes.items():
        rank, places[axis] = divmod(rank, size)
    return places


def stage_of(config: Config, rank: int) -> int:
    """Return the pipeline stage of ``rank``.

    Raises:
        UsageError: the world of ``config`` has no such rank.
    """
    world_size = config.parallel.world_size
    if not 0 <= rank < world_size:
        raise UsageError(f"a world of {world_size} ranks has no rank {rank}", remedy=f"give 0 to {world_size - 1}")
    return _places(_sizes(config, expert=False), rank)["pp"]


def groups(config: Config, axis: Axis) -> Iterator[tuple[int, ...]]:
    """Yield the ranks of every group along ``axis``, each ascending, in an order that is the same on all ranks."""
    for rank in range(config.parallel.world_size):
        ranks = group_of(config, rank, axis)
        if ranks[0] == rank:
            yield ranks


def group_of(config: Config, rank: int, axis: Axis) -> tuple[int, ...]:
    """Return the ranks of the group along ``axis`` that ``rank`` belongs to, ascending (itself alone if none)."""
    match axis:
        case "intra_dp_cp" | "intra_expert_dp" | "inter_dist_opt":
            return _of_instances(config, rank, axis)
        case "cp_a2a" | "cp_p2p":
            return _on_a_level(config, rank, axis)
        case "embedding":  # the two ends of the pipeline; between them a rank is alone
            pipeline = group_of(config, rank, "pp")
            ends = dict.fromkeys((pipeline[0], pipeline[-1]))
            return tuple(ends) if rank in ends else (rank,)
    members = _MEMBERS[axis]
    sizes = _sizes(config, expert=members[0].startswith("e"))
    ranks, stride = [0], 1
    for name, place in _places(sizes, rank).items():
        places = range(sizes[name]) if name in members else (place,)
        ranks = [stride * other + faster for other in places for faster in ranks]
        stride *= sizes[name]
    return tuple(ranks)


def _on_a_level(config: Config, rank: int, axis: Axis) -> tuple[int, ...]:
    """Return ``rank``'s neighbours in its context-parallel group; along ``cp_p2p`` those at its place among theirs.

    Without two levels it is alone. Source: Megatron-Core ``parallel_state.py``, ``create_hierarchical_groups``.
    """
    if config.cp_comm_type != "a2a+p2p":
        return (rank,)
    ranks, neighbours = group_of(config, rank, "cp"), config.context_levels[0]
    place = ranks.index(rank)
    if axis == "cp_p2p":
        return ranks[place % neighbours :: neighbours]
    start = place - place % neighbours
    return ranks[start : start + neighbours]


def _of_instances(config: Config, rank: int, axis: Axis) -> tuple[int, ...]:
    """Return the run of ``rank``'s replicas that is its optimizer instance, or those at its place in every instance."""
    replicas = group_of(config, rank, "expert_dp" if axis == "intra_expert_dp" else "dp_cp")
    size = len(replicas) // config.optimizer.num_distributed_optimizer_instances
    place = replicas.index(rank)
    start = place - place % size
    return replicas[place % size :: size] if axis == "inter_dist_opt" else replicas[start : start + size]


def stage_representatives(config: Config) -> list[int]:
    """Return the first rank of every pipeline stage.

    Ranks of one stage hold and do the same, but for partly offloaded optimizer states (rule O17).
    """
    return list(group_of(config, 0, "pp"))


def build_parallel_state(config: Config, *, rank: int = 0, world_size: int = 1) -> ParallelState:
    """Return ``rank``'s place, with its process groups made on the default process group's backend.

    On the ``fake`` backend only the groups of this rank are made, so that one process plays any rank of a world
    of thousands; elsewhere all ranks make all groups in the same order, as ``torch.distributed.new_group`` asks.
    Call it outside any fake-tensor or dispatch mode.

    Raises:
        UsageError: ``world_size`` is not the configuration's, or ``torch.distributed`` is not initialised for it.
    """
    if world_size != config.parallel.world_size:
        raise UsageError(
            f"the configuration describes a world of {config.parallel.world_size} ranks, not of {world_size}",
            where="parallel",
            remedy="let TP * CP * PP * DP be the number of ranks",
        )
    made = _Groups(config, rank, world_size)
    return ParallelState(rank=rank, world_size=world_size, **{axis: made.along(axis) for axis in get_args(Axis)})


class _Groups:
    """Makes this rank's group along an axis, and takes part in the making of all others where it must.

    Axes with the same ranks share a group: a communicator costs device memory.
    """

    def __init__(self, config: Config, rank: int, world_size: int) -> None:
        self._config = config
        self._rank = rank
        self._made: dict[tuple[int, ...], dist.ProcessGroup] = {}
        if world_size == 1:
            self._only_own = True
            return
        import torch.distributed as dist

        if not dist.is_initialized() or dist.get_world_size() != world_size or dist.get_rank() != rank:
            raise UsageError(
                f"torch.distributed is not initialised as rank {rank} of {world_size}",
                remedy="call torch.distributed.init_process_group first",
            )
        self._only_own = "fake" in dist.get_backend_config()

    def along(self, axis: Axis) -> Place:
        """Return this rank's place along ``axis``."""
        import torch.distributed as dist

        mine = group_of(self._config, self._rank, axis)
        for ranks in (mine,) if self._only_own else groups(self._config, axis):
            if len(ranks) > 1 and ranks not in self._made:
                # torch returns a marker in place of a group that this rank is not in; it is never asked for.
                self._made[ranks] = cast(
                    "dist.ProcessGroup", dist.new_group(list(ranks), group_desc=f"oomscope_{axis}")
                )
        return Place(mine.index(self._rank), len(mine), self._made.get(mine))
