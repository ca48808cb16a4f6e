"""Measures the example of every option and writes ``docs/options.md``.

``make options`` probes each row of ``options.yaml`` before and after its example on the virtual card; what several rows
begin from is probed once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from oomscope.config.load import load_preset
from oomscope.errors import ConfigError
from oomscope.probe.tuning.variants import Variant, launched, measure_variant
from oomscope.units import format_size

Measure = Callable[[str, tuple[str, ...]], Variant]
"""A preset and overrides to what a probe says."""


@dataclass(frozen=True)
class Option:
    """One option, or several keys that act together; a row of the page."""

    keys: tuple[str, ...]
    memory: str
    """Its effect on the memory of a rank."""
    cost: str
    """What is paid for it in time, traffic or host memory."""
    preset: str
    """One of ``SMALL``."""
    example: tuple[str, ...]
    """Overrides that show the effect."""
    given: tuple[str, ...] = ()
    """Overrides that hold before and after."""

    @classmethod
    def of(cls, row: dict[str, Any]) -> Option:
        """Return the option that a row of ``options.yaml`` describes."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in row.items()})


_DATA = yaml.safe_load((Path(__file__).parent / "options.yaml").read_text(encoding="utf-8"))
SMALL: dict[str, tuple[str, ...]] = {preset: tuple(overrides) for preset, overrides in _DATA["presets"].items()}
"""Presets that examples build on, and what makes them quick to probe."""
TOPICS: dict[str, list[Option]] = {topic: [Option.of(row) for row in rows] for topic, rows in _DATA["topics"].items()}
"""Heading to its options, in the order of the page."""
NO_EFFECT: list[str] = _DATA["without_effect"]
"""Keys that move no byte on the device."""
NOT_MODELLED: list[str] = _DATA["not_modelled"]
"""Keys that the rules refuse, or that act beside a refused one alone."""
OWN_SECTIONS: list[str] = _DATA["own_sections"]
"""Sections that say what is measured and how, and are no options of a training run."""

_HEAD = """\
# Options

What each option does to the memory of a rank, what it costs, and an example that was measured: the peak of requested
bytes of rank 0 (and of reserved and host bytes) before and after the override, on a virtual H100, with
`oomscope probe`. Bytes that are not requested at that moment make no difference there. The time is the estimate of a
step ([cost](advise.md#the-estimate-of-time)), after over before.

n tokens of a microbatch on a rank, s sequence, b microbatch, h hidden, f width of the MLP, a heads, g groups of them,
L layers, E experts, k experts a token, m microbatches; t, p, c, e, d: ranks of tensor, pipeline, context, expert and
data parallelism; v model chunks of a rank; S ranks share the residual stream, t with sequence parallelism and else 1.
Sizes in bytes, of 16-bit training.

The examples stand on presets that are made small:

{presets}

So the first row is

```console
$ oomscope probe --preset llama3-8b {first}
```

This page is written by `make options`.
"""

_TABLE = """\
| option | memory | cost | example | before | after | difference | time |
|---|---|---|---|---|---|---|---|
"""


def page(measure: Measure) -> str:
    """Return docs/options.md, with every example measured by ``measure``.

    Raises:
        ConfigError: an example did not go through.
    """
    first = next(iter(TOPICS.values()))[0]
    presets = "\n".join(f"- `{name}`{_made_small(name)}" for name in SMALL)
    parts = [_HEAD.format(presets=presets, first=" ".join((*SMALL[first.preset], *first.given, *first.example)))]
    for topic, options in TOPICS.items():
        parts.append(f"## {topic}\n\n{_TABLE}{''.join(row(option, measure) for option in options)}")
    parts.append(f"## Without effect\n\nThese move no byte on the device: {_listed(NO_EFFECT)}.\n")
    parts.append(f"## Not modelled\n\nThe [rules](rules.md) refuse these, and say why: {_listed(NOT_MODELLED)}.\n")
    return "\n".join(parts)


def row(option: Option, measure: Measure) -> str:
    """Return the row of ``option``, measured.

    Raises:
        ConfigError: one of its two configurations did not go through.
    """
    before, after = (_went_through(option, measure, overrides) for overrides in ((), option.example))
    given = f"given {_listed(option.given)}: " if option.given else ""
    cells = [
        _listed(option.keys, by="<br>"),
        option.memory,
        option.cost,
        f"`{option.preset}` {given}{_listed(option.example)}",
        _size(before),
        _size(after),
        format_size((after.requested_bytes or 0) - (before.requested_bytes or 0), signed=True),
        _times(before, after),
    ]
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"


def _went_through(option: Option, measure: Measure, overrides: tuple[str, ...]) -> Variant:
    variant = measure(option.preset, (*SMALL[option.preset], *option.given, *overrides))
    if not variant.fits:
        raise ConfigError(
            f"the example of {option.keys[0]} was not measured: {variant.message or variant.outcome}",
            where=" ".join((option.preset, *variant.overrides)),
            remedy="give it an example that fits",
        )
    return variant


def _size(variant: Variant) -> str:
    """Return requested bytes, what is reserved, and what lies on the host."""
    text = f"{format_size(variant.requested_bytes or 0)} ({format_size(variant.reserved_bytes or 0)} reserved)"
    return f"{text}, {format_size(variant.host_bytes)} on the host" if variant.host_bytes else text


def _times(before: Variant, after: Variant) -> str:
    if before.sequence_s is None or after.sequence_s is None:
        return "-"
    return f"{after.sequence_s / before.sequence_s - 1:+.1%}".replace("%", " %")


def _listed(words: Sequence[str], by: str = " ") -> str:
    return by.join(f"`{word}`" for word in words)


def _made_small(preset: str) -> str:
    return f" with {_listed(SMALL[preset])}" if SMALL[preset] else ""


def probed() -> Measure:
    """Return what measures by a probe on the virtual card, each configuration once."""
    known: dict[tuple[str, tuple[str, ...]], Variant] = {}

    def measure(preset: str, overrides: tuple[str, ...]) -> Variant:
        asked = (preset, overrides)
        if asked not in known:
            known[asked] = measure_variant(
                lambda further: load_preset(preset, ("probe.backend=virtual", *further)),
                overrides,
                launched,
                threading.Event(),
            )
        return known[asked]

    return measure


def write_page(directory: Path) -> Path:
    """Measure all examples, write ``options.md`` into ``directory`` and return its path."""
    path = directory / "options.md"
    path.write_text(page(probed()), encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.stdout.write(f"Wrote {write_page(Path(sys.argv[1]))}\n")
