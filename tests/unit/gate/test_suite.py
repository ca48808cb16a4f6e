"""What a suite may say, and which line is blamed for what it may not."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.config.problems import InvalidConfigError
from oomscope.errors import ExitCode, InputError, NothingMeasuredError, OomscopeError
from oomscope.gate.night.cases import own_target
from oomscope.gate.suite.bands import Band, Bands
from oomscope.gate.suite.suite import Suite, load_suite
from oomscope.probe.job import CommandTarget, EntryTarget, ProgramTarget
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


def test_a_command_that_nothing_reads_is_a_program_as_it_is(tmp_path: Path) -> None:
    (found,) = load(tmp_path, "cases:\n  - {name: a, command: python train.py}").cases
    assert own_target(found, "command") == ProgramTarget(command="python train.py", repo=str(tmp_path))


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


BANDS = """\
defaults:
  metrics: {peak_requested: {fail: 1GiB}, peak_reserved: {warn: 0, fail: 64MiB}}
cases:
  - {name: chosen, preset: p, metrics: [peak_requested, overhead]}
  - {name: banded, preset: p, metrics: {peak_reserved: {warn: 1%}, overhead: {fail: 2MiB}}}
  - {name: plain, preset: p}
"""


def test_a_case_takes_nothing_from_the_bands_of_the_defaults(tmp_path: Path) -> None:
    chosen, banded, plain = load(tmp_path, BANDS).cases
    gib, wide = Band(absolute=1024 * MiB), Band(absolute=64 * MiB)
    assert chosen.bands_of("peak_requested").fail == gib
    assert banded.bands_of("peak_reserved") == Bands(warn=Band(relative=Fraction(1, 100)), fail=wide)
    assert plain.bands_of("peak_reserved") == Bands(warn=Band(), fail=wide)


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


OWN = """\
defaults: {limit: 7GiB, rank: [0, last]}
cases:
  - {name: staged, preset: llama3-70b, rank: [0, 3]}
  - {name: worst, preset: llama3-70b, rank: worst}
  - {name: both, config: c.yaml, from: megatron}
  - {name: function, entry: "tiny.train:build", repo: .., rank: 0}
  - {name: program, command: ./train, snapshot_glob: "*.pickle", rank: 0}
"""


def test_each_rank_of_a_list_is_a_case_of_its_own(tmp_path: Path) -> None:
    suite = load(tmp_path, OWN)
    names = ["staged rank 0", "staged rank 3", "worst", "both rank 0", "both rank last", "function", "program"]
    assert list(suite.names) == names
    assert suite.cases[1].overrides == ("probe.rank=3", "device.limit=7GiB")
    assert len({one.digest for one in suite.cases}) == len(names)
    assert [one.name for one in suite.only(("staged", "both rank 0")).cases] == [*names[:2], names[3]]
    assert suite.expanded(("both", "nobody")) == ("both rank 0", "both rank last", "nobody")


def test_own_code_is_reached_as_by_a_probe(tmp_path: Path) -> None:
    known = {one.name: one for one in load(tmp_path, OWN).cases}
    assert known["both rank 0"].extras == {"from": "megatron"}
    assert known["both rank 0"].own_kind is None
    repo = str(tmp_path.parent)
    assert own_target(known["function"], "entry") == EntryTarget(entry="tiny.train:build", repo=repo)
    program = CommandTarget(command="./train", snapshot_glob="*.pickle", repo=str(tmp_path))
    assert own_target(known["program"], "command") == program
    other = {one.name: one for one in load(tmp_path, OWN.replace("*.pickle", "out/*")).cases}
    assert [name for name in known if known[name].digest != other[name].digest] == ["program"]


def test_a_digest_stays_what_it_was() -> None:
    assert case().digest == "5b909f5d436d5906"


def test_the_digest_is_of_what_is_asked(tmp_path: Path) -> None:
    cases = {one.name: one.digest for one in load(tmp_path, WHOLE).cases}
    other = {one.name: one.digest for one in load(tmp_path, WHOLE.replace("7GiB", "8GiB")).cases}
    assert {name for name in cases if cases[name] != other[name]} == {"own"}
    bands = load(tmp_path, WHOLE.replace("64MiB", "65MiB"))
    assert {one.name: one.digest for one in bands.cases} == cases


def test_the_digest_knows_which_of_two_overrides_counts() -> None:
    two, four, other = "model.num_layers=2", "model.num_layers=4", "data.seq_length=8"
    assert case(overrides=(two, four)).digest == case(overrides=(four,)).digest
    assert case(overrides=(four, two)).digest == case(overrides=(two,)).digest
    assert case(overrides=(two,)).digest != case(overrides=(four,)).digest
    assert case(overrides=(two, other)).digest == case(overrides=(other, two)).digest


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
        ("cases:\n  - {name: a, config: p, from: nanny}", 2, "from"),
        ("cases:\n  - {name: a, entry: 'a:b', metric_regex: x}", 2, "metric_regex without command"),
        ("cases:\n  - {name: a, entry: 'a:b', command: c}", 2, "entry and command to measure"),
        (
            "cases:\n  - {name: a, command: c, metric_regex: r, snapshot_glob: g}",
            2,
            "command with both metric_regex",
        ),
        ("cases:\n  - {name: a, preset: p, rank: [0, worst]}", 2, "a list of ranks holds each once"),
        ("cases:\n  - {name: a, preset: p, rank: [1, 1]}", 2, "a list of ranks holds each once"),
        ("cases:\n  - {name: a, preset: p, rank: []}", 2, "a list of ranks holds each once"),
        ("cases:\n  - {name: a, preset: p, rank: 1.5}", 2, "1.5 is not a rank; give a number"),
        ("cases:\n  - {name: a rank 0, preset: p}\n  - {name: a, preset: p, rank: [0]}", 3, "two cases are called"),
        ("cases:\n  - name: a\n    preset: p\n    metrics: [speed]", 4, "metrics are peak_requested"),
        ("cases:\n  - name: a\n    preset: p\n    metrics:\n      peak_requested: {fail: lots}", 5, "is not a size"),
        ("cases:\n  - {name: a, preset: p, overrides: [x]}", 2, "write it with ="),
        ("cases:\n  - {name: a, preset: p, limit: huge}", 2, "is not a size"),
        ("cases:\n  - {name: a, preset: p, rank: best}", 2, '"best" is not a rank'),
        ("cases: {a: b}", 1, "cases"),
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


def test_an_empty_suite_is_never_green(tmp_path: Path) -> None:
    with pytest.raises(NothingMeasuredError, match=r"memory\.yaml:2: the suite has no cases") as caught:
        load(tmp_path, "defaults: {}\ncases: []")
    assert caught.value.exit_code == ExitCode.NOTHING_MEASURED


def test_a_missing_suite_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_suite(tmp_path / "none.yaml")


def test_some_cases_can_be_chosen(tmp_path: Path) -> None:
    suite = load(tmp_path, WHOLE)
    assert [one.name for one in suite.only(("own", "own")).cases] == ["own"]
    assert suite.only(()) is suite
    with pytest.raises(InputError, match="cases are big, own, train"):
        suite.only(("owm",))


@settings(max_examples=60)
@given(st.text(max_size=200))
def test_anything_at_all_is_a_suite_or_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with contextlib.suppress(OomscopeError):
        load_suite(path)


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["cases", "defaults", "name", "preset", "config", "metrics", "peak_requested", "fail", "rank"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_document_is_a_suite_or_one_line(tmp_path_factory: pytest.TempPathFactory, document: object) -> None:
    import json

    path = tmp_path_factory.getbasetemp() / "shaped.yaml"
    path.write_text(json.dumps(document))
    with contextlib.suppress(OomscopeError):
        load_suite(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cases: {name: a}", ":1: cases is a mapping, but must be a list; write [a, b], or a line with - for each"),
        ("cases:\n  - 7", ":2: cases[0] is 7, but must be a mapping; write lines of key: value under it"),
        ("cases:\n  - name: 5\n    preset: p", ':2: cases[0].name is 5, but must be text; put it in quotes: "5"'),
        ("cases:\n  - name: ''\n    preset: p", ':2: cases[0].name is "", but must be text that is not empty'),
        (
            "cases:\n  - {name: a, preset: p, overrides: a.b=1}",
            ':2: cases[0].overrides is "a.b=1", but must be a list; write [a, b], or a line with - for each',
        ),
        (
            "cases:\n  - {name: a, config: c, from: hydra}",
            ':2: cases[0].from is "hydra", but must be megatron, bridge or nemo',
        ),
        ("cases:\n  - {name: , preset: p}", ":2: cases[0].name has no value, but must be text"),
        ("case:\n  - {name: a, preset: p}", ":1: unknown key case; did you mean cases?"),
    ],
)
def test_errors_speak_of_yaml(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value) == f"{tmp_path / 'memory.yaml'}{said}"


LONG, CUT, NINES = "x" * 9000, "x" * 55 + "…", "9" * 40


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("rank: -1", "5: cases[1].rank: no world has a rank -1; give 0, or a number below the size of the world"),
        ("rank: true", "5: cases[1].rank: true is not a rank; give a number, first, last, worst, or a list of ranks"),
        ("limit: 1.5", "5: cases[1].limit: 1.5 is not a size; give a size such as 80GiB, 512MiB or 1048576"),
        ("limit: 9EiB", '5: cases[1].limit: "9EiB" is larger than any card; give a size'),
        ("overrides:\n      - a=1\n      - b", '7: cases[1].overrides[1]: "b" is not a section.key=value; write it'),
        ('repo: "\\ud800"', '5: cases[1].repo is "\\ud800", but must be text without halves of characters'),
        ('config: "a\\0b"', '5: cases[1].config: no file can be called "a\\x00b"; give a path from the suite'),
        ("harness: ''", '5: cases[1].harness is "", but must be text that is not empty'),
        (f"limit: {LONG}", f'5: cases[1].limit: "{CUT}" is not a size; give a size such as'),
        (
            f"metrics: {{peak_requested: {{fail: {LONG}}}}}",
            f'5: cases[1].metrics.peak_requested.fail: "{CUT}" is not a size',
        ),
        (
            f"metrics: {{peak_requested: {{fail: {NINES}%}}}}",
            "5: cases[1].metrics.peak_requested.fail: a band beyond all",
        ),
        (f"metrics: [{LONG}]", f'5: cases[1].metrics.{LONG[:100]}…: unknown metric "{CUT}"; metrics are'),
        ("from: nemo", "5: cases[1]: from without config; name one, or leave from out"),
        (
            "metrics:\n      peak_requested:\n      speed:",
            '7: cases[1].metrics.speed: unknown metric "speed"; metrics are',
        ),
    ],
)
def test_the_line_of_the_key_is_blamed(tmp_path: Path, keys: str, said: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load(tmp_path, f"cases:\n  - {{name: a, preset: p}}\n  - name: b\n    preset: p\n    {keys}")
    assert str(caught.value).startswith(f"{tmp_path / 'memory.yaml'}:{said}")


TOLD = """\
defaults: {metrics: {peak_requested: {DEFAULT}}}
cases:
  - name: a
    preset: p
    metrics:
      peak_requested:
        fail: FAIL
        warn: WARN
"""


@pytest.mark.parametrize(
    ("warn", "fail", "contradict"),
    [
        ("2MiB", "1MiB", True),
        ("5%", "1%", True),
        ("5%", "0", True),
        ("[1MiB, 5%]", "[1MiB, 2%]", True),
        ("[2MiB, 5%]", "1MiB", True),
        ("1MiB", "1MiB", False),
        ("1%", "5%", False),
        ("5%", "1MiB", False),
        ("1MiB", "5%", False),
    ],
)
def test_a_warning_wider_than_the_failure_contradicts_it(
    tmp_path: Path, warn: str, fail: str, contradict: bool
) -> None:
    text = TOLD.replace("FAIL", fail).replace("WARN", warn).replace("{DEFAULT}", "{}")
    if not contradict:
        assert load(tmp_path, text).cases[0].bands_of("peak_requested").warn == Band.parse(yaml.safe_load(warn))
        return
    with pytest.raises(InvalidConfigError) as caught:
        load(tmp_path, text)
    said = "cases[0].metrics.peak_requested: warn is wider than fail, so that nothing is told before it fails"
    assert str(caught.value) == f"{tmp_path / 'memory.yaml'}:8: {said}; lower warn, or raise fail"


def test_bands_of_defaults_and_case_may_contradict_each_other(tmp_path: Path) -> None:
    text = TOLD.replace("{DEFAULT}", "{warn: 5%}").replace("FAIL", "1%").replace("        warn: WARN\n", "")
    with pytest.raises(InvalidConfigError) as caught:
        load(tmp_path, text)
    key = "cases[0].metrics.peak_requested"
    said = f"{key}: with the defaults warn is wider than fail, so that nothing is told before it fails"
    assert str(caught.value) == f"{tmp_path / 'memory.yaml'}:6: {said}; lower warn, or raise fail"


def test_each_key_and_override_has_its_place(tmp_path: Path) -> None:
    big, own, _ = load(tmp_path, WHOLE).cases
    file = tmp_path / "memory.yaml"
    assert big.place("preset") == f"{file}:7: preset"
    assert big.place("limit") == big.place("device.limit=80GiB") == f"{file}:2: limit"
    assert big.place("probe.iterations=1") == f"{file}:3: override probe.iterations=1"
    assert big.place("data.micro_batch_size=2") == f"{file}:8: override data.micro_batch_size=2"
    assert big.place("probe.rank=worst") == f"{file}:9: rank"
    assert own.place("limit") == f"{file}:15: limit"
    assert own.place("rank") == own.where == f"{file}:12"
