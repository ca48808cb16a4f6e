"""What is chosen among entries on a virtual card, which computes no scores.

**Choices of a router:** each expert is chosen equally often. A mixture of experts gives each token to the experts with
the highest scores (``torch.topk``, or ``argmax`` for one); what an expert allocates follows from how many tokens it
gets. Routers are trained to choose evenly, and the bundled transformer counts so as well. So row ``r`` chooses
``r·k, r·k + 1, …, r·k + k − 1``, modulo the number of entries. Few entries in a row distinguish routers, and
predictions of classifiers, from searches in a vocabulary.

**Other draws** of ``torch.multinomial``, tokens above all, have no likely answer. They are read once, which makes them
values that the card does not know, and count as entries near the middle of the vocabulary: special tokens, such as the
one that ends a sequence, have its lowest or highest numbers. Under another rule of values they are other entries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from oomscope.probe.recording.values.card_bytes import is_plain, write
from oomscope.probe.recording.values.followed import is_known
from oomscope.probe.recording.values.operations import OnHost, operations_replaced

_MOST_PLACES: Final = 3
MOST_ENTRIES: Final = 1024
"""Most entries a row chooses among: no router has more experts."""
DRAWN_NOTE: Final = (
    "what torch.multinomial draws is from the middle of its range: tokens are ordinary ones, none ends a sequence"
)
_LEAST_VOCABULARY: Final = 17
_FIRST_DRAWN: Final = {0: 0, 257: 1, 512: 2}
"""The first entry drawn, by what the card answers under ``zeros``, ``larger`` and ``largest``."""


@contextmanager
def choices_are_assumed(note: Callable[[str], None], place: Callable[[], str | None]) -> Iterator[None]:
    """Answer such choices while the block runs.

    The operations run as they are; then the result on the card gets its values.

    Args:
        note: told, at the end of the block, which lines made even choices; of other draws at once.
        place: returns the line of the program that runs now.
    """
    assumed = _AssumedChoices(note, place)

    def chosen(choosing: Callable[..., Any], run: Callable[..., Any], *how: Any, **more: Any) -> Any:
        return choosing(run, assumed, *how, **more)

    operations: dict[str, Callable[..., Any]] = {"topk": _topk, "argmax": _argmax, "multinomial": _multinomial}
    try:
        with operations_replaced({name: functools.partial(chosen, each) for name, each in operations.items()}):
            yield
    finally:
        if assumed.is_even:
            note(even_note(assumed.places))


def even_note(places: Sequence[str]) -> str:
    """Return the note on even choices that these lines made."""
    at = f" at {', '.join(places[:_MOST_PLACES])}" if places else ""
    rest = " and elsewhere" if len(places) > _MOST_PLACES else ""
    return (
        f"choices (topk, argmax, multinomial){at}{rest} count as even, each entry as often as any other: where a size "
        "or a loop depends on them, a real run may need more memory"
    )


class _AssumedChoices:
    """Choices that were assumed so far, and the lines of the program that made them."""

    def __init__(self, note: Callable[[str], None], place: Callable[[], str | None]) -> None:
        self.drawn = functools.cache(note)
        self.is_even = False
        self._place = place
        self._places: dict[str, None] = {}

    @property
    def places(self) -> list[str]:
        """The lines that made even choices, the first first."""
        return list(self._places)

    def even(self) -> None:
        """Note an even choice."""
        self.is_even = True
        if len(self._places) <= _MOST_PLACES and (place := self._place()):
            self._places[place] = None


def _topk(run: Callable[..., Any], assumed: _AssumedChoices, scores: torch.Tensor, k: int, *how: Any) -> Any:
    dim = how[0] if how else -1
    is_choice = _is_choice(scores, dim, k)
    chosen = run(scores, k, *how)
    if is_choice:
        _choose(scores.shape[dim], chosen[1].movedim(dim, -1), assumed)
    return chosen


def _argmax(
    run: Callable[..., Any], assumed: _AssumedChoices, scores: torch.Tensor, dim: int | None = None, *how: Any
) -> Any:
    is_choice = dim is not None and _is_choice(scores, dim)
    chosen = run(scores, dim, *how)
    if dim is not None and is_choice:
        is_kept = bool(how and how[0])
        _choose(scores.shape[dim], chosen.movedim(dim, -1) if is_kept else chosen.unsqueeze(-1), assumed)
    return chosen


def _multinomial(
    run: Callable[..., Any], assumed: _AssumedChoices, chances: torch.Tensor, *how: Any, **more: Any
) -> Any:
    is_choice = _is_choice(chances, -1, how[0])
    chosen = run(chances, *how, **more)
    if is_choice:
        _choose(chances.shape[-1], chosen, assumed)
    elif _is_writable(chosen):
        _draw(chances.shape[-1], chosen, assumed)
    return chosen


def _draw(entries: int, chosen: torch.Tensor, assumed: _AssumedChoices) -> None:
    """Write entries into ``chosen``, a row's beside each other."""
    first, span = 0, entries
    if entries >= _LEAST_VOCABULARY and chosen.shape[-1] <= entries // 2:
        first, span = entries // 4, entries // 2
        assumed.drawn(DRAWN_NOTE)
    unknown = int(chosen.view(-1)[:1].cpu())
    numbers = torch.arange(chosen.numel(), device="cpu") + _FIRST_DRAWN.get(unknown, len(_FIRST_DRAWN))
    with OnHost():
        write(chosen, numbers.remainder_(span).add_(first).view(chosen.shape))


def _is_choice(scores: torch.Tensor, dim: int, count: int = 1) -> bool:
    """Whether rows choose ``count`` among few entries by unknown ``scores``, and each entry gets its share.

    One row, or a few, do not: what a decoder says next, or what a policy does, is not known.
    """
    if scores.dim() == 0 or not 1 < scores.shape[dim] <= MOST_ENTRIES:
        return False
    if scores.numel() // scores.shape[dim] * count < scores.shape[dim]:
        return False
    return not is_known(scores)


def _is_writable(chosen: torch.Tensor) -> bool:
    return is_plain(chosen) and not torch.cuda.is_current_stream_capturing()


def _choose(entries: int, chosen: torch.Tensor, assumed: _AssumedChoices) -> None:
    """Write even choices into ``chosen``: rows × what a row chooses."""
    if not _is_writable(chosen):
        return
    with OnHost():
        write(chosen, torch.arange(chosen.numel(), device="cpu").remainder_(entries).view(chosen.shape))
    assumed.even()
