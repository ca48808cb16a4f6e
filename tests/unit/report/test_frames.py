from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from oomscope.report.exports import dataframes
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.trace import Action, Category, Frame, Moment, Snapshot
from oomscope.snapshot.write import write_snapshot
from oomscope.units import GiB, MiB
from tests.trace_builder import TraceBuilder
from tests.unit.report import results, searches
from tests.unit.snapshot.strategies import recordings

OF_A_PROBE = (dataframes.sites, dataframes.categories, dataframes.phases, dataframes.tried)
OF_A_SEARCH = (dataframes.steps, dataframes.probes, dataframes.grown_sites)


@given(recordings())
def test_events_say_what_the_trace_says(recording) -> None:
    trace, segments, requested = recording
    events = dataframes.events(trace, segments)
    assert events["action"].tolist() == [Action(code).name.lower() for code in trace.action]
    assert events["address"].tolist() == trace.address.tolist()
    assert events["category"].tolist() == [Category(code).label for code in trace.category]
    moments = list(zip(events["phase"], events["iteration"], events["microbatch"], strict=True))
    assert moments == [trace.moments[index] for index in trace.moment_id]
    assert events["requested_bytes"].tolist() == requested
    assert events["reserved_bytes"].tolist() == Timeline.of(trace, segments).reserved.tolist()


def test_an_event_names_its_line_and_the_forward_line_behind_it() -> None:
    forward, backward = Frame("/home/a/model.py", 7, "forward"), Frame("/home/a/train.py", 9, "step")
    inner = Frame("/home/a/lib/python3.11/site-packages/torch/nn/functional.py", 1, "linear")
    builder = TraceBuilder()
    moment = Moment("backward", 1, 3)
    builder.event(Action.ALLOC, 2**63, 5, 7, 11, (inner, backward), moment, Category.GRADIENT, "mlp", (forward,))
    builder.event(Action.FREE_REQUESTED, 2**63, 5, 7, 12)
    first, second = dataframes.events(builder.build()).to_dict("records")
    assert first == {
        "action": "alloc",
        "address": 2**63,
        "size": 5,
        "stream": 7,
        "time_us": 11,
        "phase": "backward",
        "iteration": 1,
        "microbatch": 3,
        "category": "gradient",
        "module": "mlp",
        "site": "/home/a/train.py:9 step",
        "forward_site": "/home/a/model.py:7 forward",
        "requested_bytes": 5,
        "reserved_bytes": 0,
    }
    assert (second["site"], second["forward_site"], second["requested_bytes"]) == ("", "", 5)


@pytest.mark.parametrize("result", [results.FITS, results.OOM])
def test_lines_and_categories_sum_to_the_peak(result) -> None:
    assert dataframes.sites(result)["bytes"].sum() == result.peak.requested_bytes
    assert dataframes.categories(result)["bytes"].sum() == result.peak.requested_bytes
    by_category = dataframes.sites(result).groupby("category")["bytes"].sum()
    assert by_category.to_dict() == {name: size for name, size in result.peak.categories.items() if size}


def test_fixes_keep_what_is_missing() -> None:
    fixes = dataframes.tried(results.OOM)
    assert fixes["survives"].tolist() == [False, True]
    assert fixes["failed_event"].isna().tolist() == [False, True]
    assert fixes["failed_event"][0] == 99
    assert fixes["margin_bytes"].tolist() == [-1, 2 * GiB]


@pytest.mark.parametrize("result", [searches.COMMITS, searches.SUSPECTS])
def test_grown_lines_sum_to_the_change(result) -> None:
    grown = dataframes.grown_sites(result)
    assert grown["after_bytes"].sum() - grown["before_bytes"].sum() == grown["delta_bytes"].sum()
    assert grown["delta_bytes"].sum() == result.change.requested_bytes
    nowhere = grown[grown["file"] == ""]
    assert nowhere[["category", "delta_bytes"]].values.tolist() == [["the request that failed", 512 * MiB]]


def test_steps_say_what_was_reached_and_which_line_changed_most() -> None:
    steps = dataframes.steps(searches.STEPS)
    assert steps["delta_overhead_bytes"].tolist()[:2] == [-GiB, 0]
    assert steps["since_good_requested_bytes"].tolist() == [3 * GiB, 2 * GiB, 2 * GiB]
    assert steps["dominant_category"].tolist()[0] == "temporary"
    assert steps["dominant_line"].isna().tolist() == [False, True, True]
    assert steps["dominant_bytes"].tolist()[0] == 2 * GiB


def test_probes_without_a_measurement_have_no_bytes() -> None:
    probes = dataframes.probes(searches.COMMITS)
    assert probes["answer"].tolist() == ["good", "bad", "untestable"]
    assert probes["requested_bytes"].tolist() == [6 * GiB, 8 * GiB, pd.NA]
    assert probes["keys"].isna().all()
    assert dataframes.probes(searches.KEYS)["keys"].tolist() == ["", "data.seq_length"]


@pytest.mark.parametrize("table", [*OF_A_PROBE, *OF_A_SEARCH], ids=lambda table: table.__name__)
def test_nothing_measured_is_no_rows_of_the_same_columns(table) -> None:
    search = replace(searches.COMMITS, sites=(), steps=(), probes=())
    whole, none = (results.OOM, results.BROKEN) if table in OF_A_PROBE else (searches.COMMITS, search)
    full, empty = table(whole), table(none)
    assert (len(full) > 0, len(empty)) == (True, 0)
    pd.testing.assert_series_equal(full.dtypes, empty.dtypes)


def test_an_empty_trace_has_typed_columns() -> None:
    empty = dataframes.events(TraceBuilder().build())
    assert len(empty) == 0
    assert empty["address"].dtype == pd.UInt64Dtype()
    assert empty["size"].dtype == np.int64
    assert empty["site"].dtype == "category"


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "python.md").read_text(encoding="utf-8")
TABLES = PAGE.partition("\n## Results as tables")[2].partition("\n## Memory limits")[0]
EXAMPLE = "\n".join(re.findall(r"```python\n(.*?)```", TABLES, flags=re.DOTALL))


def test_the_worked_example_of_the_documentation(tmp_path: Path, monkeypatch, capsys) -> None:
    builder = TraceBuilder()
    for address, phase, category in ((0, "init", Category.PARAMETER), (1, "forward", Category.ACTIVATION)):
        builder.event(Action.ALLOC, address, 2 * GiB, 0, 1, (), Moment(phase, 0, 0), category)
    builder.event(Action.FREE_REQUESTED, 1, 2 * GiB)
    builder.event(Action.ALLOC, 1, 4 * GiB, 0, 1, (), Moment("loss", 0, 0), Category.TEMPORARY)
    builder.event(Action.FREE_REQUESTED, 1, 4 * GiB)
    trace = builder.build()
    write_snapshot(Snapshot(segments=(), traces=(trace,)), tmp_path / "trace.pickle")
    result = replace(results.FITS, peak=replace(results.PEAK, event=Timeline.of(trace).peak_event()))
    (tmp_path / "probe.json").write_text(json.dumps(result.to_json()))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(EXAMPLE, names)
    live = names["by_phase"].stack().dropna()
    assert live[live > 0].to_dict() == {("parameter", "init"): 2 * GiB, ("temporary", "loss"): 4 * GiB}
    assert "activation    5.0" in capsys.readouterr().out
