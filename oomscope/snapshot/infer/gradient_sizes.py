"""Which blocks that the last backward left alive may be gradients of parameters: a gradient is of its parameter's size.

Gradients of activations are alive at the end too where a failure cut backward off, and with varying lengths none of
an earlier iteration was of their size. There are no more gradients of a size than parameters of it. Where no parameter
is of that size, a gradient may still be as large as what was collected from other ranks (a flat parameter), or as a
gradient of an earlier backward.
"""

from __future__ import annotations

import numpy as np

from oomscope.snapshot.infer.activity import Mark, Phase
from oomscope.snapshot.infer.life import Life, Mask

_MAKES_PARAMETERS = Mark.MODULE_MOVE | Mark.CONSTRUCTION | Mark.GRAD_BUFFER


def fits_parameter(b: Life) -> Mask:
    """Return which blocks cut off in backward a parameter may have for its gradient; all where no size is known.

    Of more blocks than there are parameters, the oldest: gradients of activations pass.
    """
    stays = b.lasting & ~b.cut_off & ~np.isin(b.own, (Phase.BACKWARD, Phase.OPTIMIZER, Phase.ZERO_GRAD))
    stays &= ~b.marked(Mark.BUCKETS)
    parameters = stays & (b.of_setup | b.older | (b.marked(_MAKES_PARAMETERS) & ~b.made_in(Phase.FORWARD)))
    whole = b.made_in(Phase.BACKWARD) & ~b.same_span & ~b.cut_off
    left = b.made_in(Phase.BACKWARD) & b.cut_off & ~b.same_span
    if not (parameters | whole).any():
        return left
    others = np.unique(b.size[whole | b.marked(Mark.COMMUNICATION)])
    fits = np.zeros_like(left)
    for size in np.unique(b.size[left]).tolist():
        of_size = b.size == size
        count = _number(parameters & of_size)
        rows = np.flatnonzero(left & of_size)
        if not count and size in others:
            fits[rows] = True
        fits[rows[: max(0, count - _number(whole & b.lasting & of_size))]] = True
    return fits


def _number(rows: Mask) -> int:
    return int(np.count_nonzero(rows))
