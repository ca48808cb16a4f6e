"""The section ``probe``: what is measured."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from oomscope.config.schema.section import Count, Section


class ProbeConfig(Section):
    """How the measurement is made."""

    backend: Literal["auto", "virtual", "cuda"] = "auto"
    """Where to measure; auto takes cuda where there is a card, else virtual."""
    rank: Annotated[int, Field(ge=0, le=2**31 - 1)] | Literal["first", "last", "worst"] = "first"
    """Which rank of the world this process plays; worst probes one rank of every distinct pipeline stage."""
    world_size: Count | None = None
    """For a harness: the ranks of its world, one of which is played; null means 1. The world of a configuration is
    the product of its parallel sizes."""
    iterations: Count = 2
    """Training steps."""
    seed: int = Field(default=1234, ge=0, le=2**63 - 1)
    """Seed of weights, data and dropout."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Seconds after which the probe is ended."""
    max_entries: Count = 1_000_000
    """On cuda: size of the recorded event ring."""
    max_frames: Count = 40
    """Python frames kept of each stack."""
