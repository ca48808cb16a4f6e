"""What a suite may say, and which line is blamed for what it may not."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from oomscope.config.problems import InvalidConfigError
from oomscope.errors import ExitCode
from oomscope.gate.suite.metrics import Band, Bands
from oomscope.gate.suite.suite import Suite, load_suite
from oomscope.units import MiB
from tests.unit.gate.nights import case

WHOLE = """\
defaults:
  limit: 80GiB
  overrides: [probe.iterations=1]
  metrics: [peak_requested]
cases:
  - name: big
    preset: llama3-8b
    overrides: [data.micro_batch_size=2]
    rank: worst
    metrics:
      peak_reserved: {warn: 1%, fail: [64MiB, 2%]}
  - name: own
    harness: gate/harness.py
    repo: ..
    limit: 7GiB
  - {name: train, config: configs/train.yaml}
"""


def load(tmp_path: Path, text: str) -> Suite:
    path = tmp_path / "memory.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return load_suite(path)


def test_defaults_are_laid_under_every_case(tmp_path: Path) -> None:
    big, own, train = load(tmp_path, WHOLE).cases
    assert big.overrides == (
        "probe.iterations=1",
        "data.micro_batch_size=2",
        "probe.rank=worst",
        "device.limit=80GiB",
    )
    assert own.overrides == ("probe.iterations=1", "device.limit=7GiB")
    assert big.asked == ("peak_requested", "peak_reserved")
    assert big.bands_of("peak_reserved").fail.absolute == 64 * MiB
    assert train.asked == ("peak_requested",)
    assert (own.path, own.checkout) == (tmp_path / "gate" / "harness.py", tmp_path / "..")
    assert train.path == tmp_path / "configs" / "train.yaml"


def test_what_checkouts_are_given_is_of_own_code_and_part_of_no_digest(tmp_path: Path) -> None:
    text = """\
defaults: {link: [data], setup: make, fixup: ['*: true']}
cases:
  - {name: own, command: c, link: [.env], setup: make all, fixup: ['main: a.patch']}
  - {name: plain, entry: 'a:b'}
  - {name: bundled, preset: p}
"""
    own, plain, bundled = load(tmp_path, text).cases
    assert (own.links, own.setup, own.fixups) == (("data", ".env"), "make all", ("*: true", "main: a.patch"))
    assert (plain.links, plain.setup, plain.fixups) == (("data",), "make", ("*: true",))
    assert (bundled.links, bundled.setup, bundled.fixups) == ((), "", ())
    bare = load(tmp_path, "cases: [{name: own, command: c}]").cases[0]
    assert own.digest == bare.digest


BANDS = """\
defaults:
  metrics: {peak_requested: {fail: 1GiB}, peak_reserved: {warn: 0, fail: 64MiB}}
cases:
  - {name: chosen, preset: p, metrics: [peak_requested, overhead]}
  - {name: banded, preset: p, metrics: {peak_reserved: {warn: 1%}, overhead: {fail: 2MiB}}}
  - {name: plain, preset: p}
"""


def test_a_list_chooses_and_a_mapping_adds(tmp_path: Path) -> None:
    chosen, banded, plain = load(tmp_path, BANDS).cases
    assert (chosen.chooses, banded.chooses, plain.chooses) == (True, False, False)
    assert chosen.counted == chosen.required == ("peak_requested", "peak_reserved", "overhead")
    assert banded.counted == ("peak_requested", "peak_reserved", "overhead", "pinned", "non_torch", "flops")
    assert banded.required == ("peak_requested", "peak_reserved", "overhead")
    assert plain.required == ("peak_requested", "peak_reserved")
    (first, *_) = load(tmp_path, WHOLE).cases
    assert first.chooses


def test_bands_come_from_the_suite_then_from_calibration_then_from_the_metric(tmp_path: Path) -> None:
    (case,) = load(tmp_path, "cases: [{name: a, preset: p, metrics: {peak_requested: {fail: 1MiB}}}]").cases
    found = Bands(warn=Band(absolute=5), fail=Band(absolute=10))
    assert case.bands_of("peak_requested", found) == Bands(warn=Band(absolute=5), fail=Band(absolute=MiB))
    assert case.bands_of("peak_reserved", found) == found
    assert case.bands_of("peak_reserved").fail.absolute == 20 * MiB


def test_what_only_warns_does_not_fail_inside_of_its_warning() -> None:
    told = case(bands={"peak_requested": {"warn": "2%"}, "peak_reserved": {"warn": "5%"}})
    wide = Band(relative=Fraction(2, 100))
    assert told.bands_of("peak_requested") == Bands(warn=wide, fail=wide)
    assert told.bands_of("peak_reserved").fail == Band(absolute=20 * MiB, relative=Fraction(5, 100))
    assert told.bands_of("peak_requested", Bands(fail=Band(absolute=9))).fail.absolute == 9


def test_the_digest_is_of_what_is_asked(tmp_path: Path) -> None:
    cases = {one.name: one.digest for one in load(tmp_path, WHOLE).cases}
    other = {one.name: one.digest for one in load(tmp_path, WHOLE.replace("7GiB", "8GiB")).cases}
    assert {name for name in cases if cases[name] != other[name]} == {"own"}
    bands = load(tmp_path, WHOLE.replace("64MiB", "65MiB"))
    assert {one.name: one.digest for one in bands.cases} == cases


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("cases: [{name: a, preset: p, limt: 1}]", 1, "did you mean limit?"),
        ("cases:\n  - name: a\n    preset: p\n    config: c", 2, "preset and config to measure; give one of"),
        ("cases:\n  - name: a", 2, "nothing to measure"),
        ("cases:\n  - preset: p", 2, "cases[0].name is missing"),
        ("cases:\n  - {name: a, preset: p}\n  - {name: a, preset: q}", 3, "two cases are called 'a'"),
        ("cases:\n  - {name: a, preset: p, repo: .}", 2, "repo without harness or entry or command"),
        ("cases:\n  - {name: a, preset: p, from: nemo}", 2, "from without config"),
        ("cases:\n  - {name: a, preset: p, link: [data]}", 2, "link without harness or entry or command"),
        ("cases:\n  - name: a\n    command: c\n    fixup: [x.patch]", 4, "is not a repair; write it as 'RANGE: "),
        ("cases:\n  - {name: a, entry: 'a:b', metric_regex: x}", 2, "metric_regex without command"),
        (
            "cases:\n  - {name: a, command: c, metric_regex: r, snapshot_glob: g}",
            2,
            "command with both metric_regex",
        ),
        ("cases:\n  - {name: a, preset: p, rank: [0]}", 2, "[0] is not a rank; give a number"),
        ("cases:\n  - name: a\n    preset: p\n    metrics: [speed]", 4, "metrics are peak_requested"),
        ("cases:\n  - name: a\n    preset: p\n    metrics:\n      peak_requested: {fail: lots}", 5, "is not a band"),
        ("cases:\n  - {name: a, preset: p, overrides: [x]}", 2, "write it with ="),
        ("cases:\n  - {name: a, preset: p, limit: huge}", 2, "is not the size of a card"),
        ("cases: {a: b}", 1, "cases: input should be a valid tuple; it is a mapping"),
        ("cases:\n  - name: 5\n    preset: p", 2, "cases[0].name: input should be a valid string; it is 5"),
        ("- a", 1, "holds no mapping"),
        ("cases: [", 1, "not YAML"),
        ("{}", 1, "cases is missing"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, where: int, said: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load(tmp_path, text)
    assert f"memory.yaml:{where}: " in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE


LONG, CUT = "x" * 9000, "x" * 55 + "…"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("rank: -1", "5: cases[1].rank: -1 is not a rank; give a number or first, last, worst"),
        ("limit: 9EiB", '5: cases[1].limit: "9EiB" is not the size of a card; give a size'),
        ("overrides:\n      - a=1\n      - b", '7: cases[1].overrides[1]: "b" is not a section.key=value; write it'),
        ('repo: "\\ud800"', "5: cases[1].repo: "),
        (f"limit: {LONG}", f'5: cases[1].limit: "{CUT}" is not the size of a card; give a size such as'),
        (f"metrics: [{LONG}]", f'5: cases[1].metrics.{LONG[:100]}: unknown metric "{CUT}"; metrics are'),
        ("metrics:\n      peak_requested:\n      speed:", '7: cases[1].metrics.speed: unknown metric "speed"'),
    ],
)
def test_the_line_of_the_key_is_blamed(tmp_path: Path, keys: str, said: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load(tmp_path, f"cases:\n  - {{name: a, preset: p}}\n  - name: b\n    preset: p\n    {keys}")
    assert str(caught.value).startswith(f"{tmp_path / 'memory.yaml'}:{said}")
