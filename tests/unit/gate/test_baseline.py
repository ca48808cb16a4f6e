"""The baseline file: stable, sorted, strict, one entry for each kind of machine."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.config.problems import InvalidConfigError
from oomscope.gate.baseline import Baseline, Entry, Key, load_baseline
from oomscope.gate.suite.metrics import Band, Bands
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import case, entry, measured

WORDS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12) | st.from_regex(
    r"[-+]?[0-9a-f_]{1,8}[.eE]?[-+]?[0-9]{0,8}", fullmatch=True
)
KEYS = st.builds(
    Key,
    config=WORDS,
    backend=st.sampled_from(["virtual", "cuda"]),
    gpu=WORDS,
    driver=WORDS,
    torch=WORDS,
    allocator=WORDS,
    variables=WORDS,
)
BAND = st.builds(Band, absolute=st.integers(0, 2**60))
ENTRIES = st.builds(
    Entry,
    key=KEYS,
    outcome=st.sampled_from(["fits", "oom"]),
    values=st.dictionaries(st.sampled_from(["peak_requested", "flops"]), st.integers(0, 2**63 - 1)),
    bands=st.dictionaries(
        st.just("peak_requested"), st.builds(lambda warn, fail: Bands(warn=warn, fail=fail.at_least(warn)), BAND, BAND)
    ),
    oomscope=WORDS,
)


@settings(max_examples=10)
@given(st.lists(st.tuples(WORDS.filter(bool), ENTRIES), max_size=4))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, accepted) -> None:
    path = tmp_path_factory.getbasetemp() / "memory.baseline.yaml"
    made = Baseline().accepting(accepted)
    path.write_text(made.to_text(), encoding="utf-8")
    assert load_baseline(path) == made
    assert Baseline().accepting(reversed(accepted)).entries.keys() == made.entries.keys()


def test_accepting_one_case_changes_its_lines_alone() -> None:
    names = ("b", "a", "c")
    before = Baseline().accepting((name, entry(case(name), measured(GiB))) for name in names)
    after = before.accepting([("b", entry(case("b"), measured(GiB + MiB)))])
    changed = [
        line
        for line in difflib.unified_diff(before.to_text().splitlines(), after.to_text().splitlines(), n=0, lineterm="")
        if line[0] in "+-" and line[:3] not in {"+++", "---"}
    ]
    assert changed == [
        "-      peak_requested: 1073741824  # 1.00 GiB",
        "-      peak_reserved: 1073741824  # 1.00 GiB",
        "+      peak_requested: 1074790400  # 1.00 GiB",
        "+      peak_reserved: 1074790400  # 1.00 GiB",
    ]


KEY = Key(config="c", backend="virtual", gpu="h100-80gb", driver="", torch="2.15.0", allocator="")


def test_an_entry_that_names_torch_without_its_build_still_counts() -> None:
    before = Entry(key=KEY, outcome="fits", values={})
    older = Baseline(entries={"a": (before,)})
    built = replace(KEY, torch=f"{KEY.torch}+cu132")
    assert older.find("a", built) is before
    assert older.find("a", replace(KEY, torch="2.14.0+cu130")) is None
    accepted = older.accepting([("a", replace(before, key=built))])
    assert [entry.key for entry in accepted.entries["a"]] == [built]
    assert accepted.find("a", replace(built, torch=f"{KEY.torch}+cu126")) is None


def test_other_machines_keep_their_entries_and_what_cannot_be_met_goes() -> None:
    here, there = measured(GiB), measured(GiB, backend="cuda", gpu="H100", versions={"torch": "2.13.0", "driver": "9"})
    made = Baseline().accepting([("tiny", entry(case(), here)), ("tiny", entry(case(), there))])
    assert len(made.entries["tiny"]) == 2
    other = case(overrides=("data.micro_batch_size=2",))
    assert len(made.accepting([("tiny", entry(other, here))]).entries["tiny"]) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cases: {}", "schema_version is missing"),
        ("schema_version: 3\ncases: {}", "schema_version: input should be 2; it is 3"),
        ("schema_version: 2\ncases:\n  a:\n  - {config: x, backend: tpu, metrics: {}}", ":4: "),
        ("schema_version: 2\ncases:\n  a:\n  - {config: x, backend: virtual, metrics: {peak_requested: -1}}", ":4: "),
        (
            "schema_version: 2\ncases: {a: [&one {config: x, backend: virtual, metrics: {}}, *one]}",
            "two entries for one kind of machine",
        ),
        (
            "schema_version: 2\ncases:\n  a:\n  - {config: x, backend: virtual, metrics: {peak_lve: 1}}",
            'metric "peak_lve"',
        ),
        ("schema_version: 2\ncases: {a: [{config: x, backend: virtual, metrics: {}, bands: {b: {}}}]}", 'metric "b"'),
        ("<<<<<<< ours\nschema_version: 2", "not YAML"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "memory.baseline.yaml"
    path.write_text(text)
    with pytest.raises(InvalidConfigError) as caught:
        load_baseline(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
