"""Options that name a card for a snapshot, since a snapshot of PyTorch's does not tell its own."""

from __future__ import annotations

from typing import NamedTuple

import click

from oomscope.cli.options import Command, Size, gpu_option, limit_option
from oomscope.errors import UsageError


class NamedCard(NamedTuple):
    """What the user says of a card."""

    limit: int | None
    """Bytes in all; None where no card is named."""
    non_torch: int
    """Bytes of it that the process holds outside PyTorch."""


def card_options(command: Command) -> Command:
    """Add ``--limit``, ``--gpu`` and ``--non-torch``."""
    options = (
        limit_option,
        gpu_option,
        click.option("--non-torch", type=Size(), metavar="SIZE", help="Bytes of it outside PyTorch (default: none)."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def named_card(limit: str | None, gpu: str | None, non_torch: str | None) -> NamedCard:
    """Return what the three options say.

    Raises:
        UsageError: two cards are named, none of a name is known, or memory outside PyTorch is given of no card.
    """
    from oomscope.units import MiB, parse_size

    if limit is not None and gpu is not None:
        raise UsageError(f"both --limit {limit} and --gpu {gpu}", remedy="name one card")
    if non_torch is not None and limit is None and gpu is None:
        raise UsageError("--non-torch without a card", remedy="give --limit SIZE or --gpu NAME as well")
    total = None if limit is None else parse_size(limit)
    if gpu is not None:
        from oomscope.virtual.cards import find_card

        total = find_card(gpu).total_bytes
    if limit is not None and limit.isdecimal() and 0 < int(limit) < MiB:
        raise UsageError(
            f"--limit {limit} is a card of {limit} bytes", remedy=f"say --limit {limit}GiB if you mean that"
        )
    return NamedCard(total, parse_size(non_torch or 0))
