"""In which order a pipeline rank takes its microbatches, as arithmetic that runs none of them.

Sources: Megatron-Core ``pipeline_parallel/schedules.py``, ``get_schedule_table`` and
``forward_backward_pipelining_with_interleaving``, and without model chunks
``forward_backward_pipelining_without_interleaving``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from oomscope.config.schema import Config


class Turn(NamedTuple):
    """A microbatch's turn at a model chunk, counted in the order of forwards; backward takes the chunks in reverse."""

    microbatch: int
    chunk: int


def turns(num_microbatches: int, chunks: int, group_size: int) -> list[Turn]:
    """Return all turns in order, the same on every rank: each chunk takes a whole group of microbatches in a row."""
    starts = range(0, num_microbatches, group_size)
    groups = [range(start, min(start + group_size, num_microbatches)) for start in starts]
    return [Turn(microbatch, chunk) for group in groups for chunk in range(chunks) for microbatch in group]


def warmup_microbatches(pp_size: int, pp_rank: int, num_microbatches: int) -> int:
    """Return the forwards before the first steady-state forward: ``min(p - r - 1, m)``."""
    return min(pp_size - pp_rank - 1, num_microbatches)


def warmup_turns(pp_size: int, pp_rank: int, num_microbatches: int, chunks: int, group_size: int) -> int:
    """Return the same of the interleaved schedule, in turns: ``min(2(p - r - 1) + (v - 1)G, mv)``."""
    ahead = 2 * (pp_size - pp_rank - 1) + (chunks - 1) * group_size
    return min(ahead, num_microbatches * chunks)


@dataclass(frozen=True)
class PassOrder:
    """The forwards of an iteration on one rank, numbered from 0, and how the backwards follow them."""

    chunks: tuple[int, ...]
    """The model chunk of each forward."""
    backward: tuple[int, ...]
    """The forwards' numbers in the order in which they are differentiated."""
    warmup: int
    """Forwards before the first that a backward follows at once."""

    def differentiated_before(self, forward: int) -> int:
        """Return how many backwards are over when ``forward`` runs."""
        return max(0, forward - self.warmup)


def pass_order(config: Config, pp_rank: int) -> PassOrder:
    """Return the order on pipeline rank ``pp_rank``."""
    p, m, v = config.parallel.pipeline_model_parallel_size, config.num_microbatches, config.model_chunks
    if v == 1:
        return PassOrder((0,) * m, tuple(range(m)), warmup_microbatches(p, pp_rank, m))
    group = config.microbatch_group_size
    order = turns(m, v, group)
    number = {turn: index for index, turn in enumerate(order)}
    backward = tuple(number[turn._replace(chunk=v - 1 - turn.chunk)] for turn in order)
    return PassOrder(tuple(turn.chunk for turn in order), backward, warmup_turns(p, pp_rank, m, v, group))
