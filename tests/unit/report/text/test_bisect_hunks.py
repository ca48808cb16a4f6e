"""The hunks of a culprit in the terminal's report."""

from __future__ import annotations

from dataclasses import replace

from oomscope.bisect.results.result import BisectResult, CommitCulprit
from oomscope.bisect.results.sections import HunkChange, Narrowed
from oomscope.bisect.search.measured import Bytes
from oomscope.report.text.bisect import bisect_report
from oomscope.units import GiB, MiB
from tests.unit.report import searches
from tests.unit.report.text.test_bisect_text import rendered


def hunk(name: str, **fields: object) -> HunkChange:
    given: dict[str, object] = {"number": 1, "is_guilty": True, "delta": None, "sites": (), "section": "", **fields}
    return HunkChange(name=name, path=name.partition(" ")[0], **given)  # type: ignore[arg-type]


def with_narrowed(narrowed: Narrowed) -> BisectResult:
    assert isinstance(searches.COMMITS.culprit, CommitCulprit)
    return replace(searches.COMMITS, culprit=replace(searches.COMMITS.culprit, narrowed=narrowed))


def size(live: int) -> Bytes:
    return Bytes(requested_bytes=live, reserved_bytes=live)


NARROWED = Narrowed(
    candidates=41,
    hunks=(
        hunk("loss.py @@ -8,7 +8,9 @@", section="def loss(logits):", delta=size(GiB)),
        hunk("model.py @@ -1,3 +1,3 @@"),
        hunk("data.py", is_guilty=False, sites=searches.SITES[:1]),
    ),
    delta=size(2 * GiB),
    interaction=size(GiB),
    rest=size(-MiB),
)


def test_guilty_hunks_come_with_their_bytes_and_the_others_with_their_lines() -> None:
    text = " ".join(rendered(bisect_report(with_narrowed(NARROWED))).split())
    assert "At fault: 2 hunks of 41 in this commit" in text
    assert "loss.py @@ -8,7 +8,9 @@ def loss(logits): +1.00 GiB +1.00 GiB" in text
    assert "model.py @@ -1,3 +1,3 @@ not measured" in text
    assert "data.py not at fault" in text
    assert "together, or not measured +1.00 GiB +1.00 GiB" in text
    assert "all other hunks -1.00 MiB" in text
    assert "the commit +2.00 GiB" in text


def test_one_hunk_alone_has_no_row_for_the_others() -> None:
    text = rendered(bisect_report(with_narrowed(replace(NARROWED, candidates=1, hunks=NARROWED.hunks[:1]))))
    assert "At fault: 1 hunk of 1" in text
    assert "only together" not in text
    assert "all other hunks" not in text


def test_keys_at_fault_are_named() -> None:
    narrowed = replace(NARROWED, hunks=(), keys=("data.seq_length", "model.num_layers"), candidates=9)
    text = rendered(bisect_report(with_narrowed(narrowed)))
    assert "At fault of the 9 keys: data.seq_length, model.num_layers" in text


def test_hunks_that_cannot_be_told_apart_are_not_called_minimal() -> None:
    text = rendered(bisect_report(with_narrowed(replace(NARROWED, lumped=2))))
    assert "At fault, but they cannot be told apart: 2 hunks of 41" in text
    three = replace(NARROWED, lumped=2, hunks=(*NARROWED.hunks, hunk("more.py")))
    assert "At fault: 3 hunks of 41 in this commit, 2 of which cannot be told apart" in rendered(
        bisect_report(with_narrowed(three))
    )
