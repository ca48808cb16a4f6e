"""What is said of bands that let everything pass, or tell nothing before they fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomscope.gate.baseline import Baseline
from oomscope.gate.night.run import Night
from oomscope.gate.suite.bands import Band, Bands
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import case, entry, measured, played, suite


@pytest.mark.parametrize(
    ("metric", "bands", "said"),
    [
        ("peak_requested", {"fail": "99%"}, ()),
        (
            "peak_requested",
            {"fail": "500%"},
            ("peak_requested may double before it fails: its band is 5.00 GiB, no less than",),
        ),
        ("largest_free", {"fail": "100%"}, ("largest_free never fails: its band is 1.00 GiB, no less than was",)),
        ("largest_free", {"fail": "99%"}, ()),
        ("peak_reserved", {"fail": "80GiB"}, ("peak_reserved never fails: its band is 80.00 GiB, on a card of 80",)),
        ("peak_reserved", {"fail": "79GiB"}, ()),
        ("pinned", {"fail": "900GiB"}, ()),
        (
            "peak_requested",
            {"warn": "5%", "fail": "1MiB"},
            ("peak_requested warns beyond 51.20 MiB and fails beyond 1.00 MiB",),
        ),
        ("peak_requested", {"warn": "1MiB", "fail": "5%"}, ()),
    ],
)
def test_odd_bands_are_told(metric: str, bands: dict[str, str], said: tuple[str, ...]) -> None:
    one = case(bands={metric: bands}, asked=(metric,), chooses=False)
    highest = replace(measured(GiB).reserved_peak, largest_free_bytes=GiB)
    result = replace(measured(GiB, limit_bytes=80 * GiB), reserved_peak=highest)
    accepted = Baseline(entries={"tiny": (entry(one, result),)})
    night = Night(suite=suite(one), baseline=accepted, baseline_path=one.folder / "b", probe=played(result)).run()
    (found,) = night.cases
    assert found.status == "same"
    assert len(found.notes) == len(said)
    assert all(note.startswith(begin) for note, begin in zip(found.notes, said, strict=True))


def test_a_suite_stricter_than_what_calibration_measured_is_told() -> None:
    one = case(bands={"peak_requested": {"fail": "1MiB"}})
    spread = Bands(warn=Band(absolute=2 * MiB), fail=Band(absolute=4 * MiB))
    accepted = Baseline(entries={"tiny": (entry(one, measured(GiB), bands={"peak_requested": spread}),)})
    night = Night(
        suite=suite(one), baseline=accepted, baseline_path=one.folder / "b", probe=played(measured(GiB))
    ).run()
    said = "peak_requested warns beyond 2.00 MiB and fails beyond 1.00 MiB, so that nothing is told before it fails"
    assert night.cases[0].notes == (said,)
