"""A job sees whether its search lives by a file that changes."""

from __future__ import annotations

from pathlib import Path

from oomscope.bisect.cluster.lease import kept, watched

LONG_S = 20.0


def test_a_search_that_lives_is_waited_for(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    with kept(alive, beat_s=0.02), watched(alive, beat_s=0.05, lease_s=0.5) as ended:
        assert not ended.wait(1.5)


def test_a_search_that_died_is_noticed(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    alive.touch()
    with watched(alive, beat_s=0.02, lease_s=0.1) as ended:
        assert ended.wait(LONG_S)


def test_a_search_that_took_its_things_away_is_noticed_at_once(tmp_path: Path) -> None:
    with watched(tmp_path / "alive", beat_s=0.02, lease_s=3600) as ended:
        assert ended.wait(LONG_S)


def test_nothing_is_left_running(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    with kept(alive, beat_s=3600), watched(alive, beat_s=3600) as ended:
        pass
    assert not ended.is_set()
