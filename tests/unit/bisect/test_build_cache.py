"""Builds are there whole or not at all, for one user at a time, and take no more room than they may."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from oomscope.bisect.build_cache import BuildCache


class GivenUpError(Exception):
    pass


def give_up() -> None:
    raise GivenUpError


def put(cache: BuildCache, name: str, place: Path, files: dict[str, str]) -> bool:
    for path, text in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    with cache.held(name, give_up) as build:
        return cache.keep(build, place, list(files))


def take(cache: BuildCache, name: str, place: Path) -> bool:
    place.mkdir(exist_ok=True)
    with cache.held(name, give_up) as build:
        return build.lay_out(place)


def test_what_is_kept_comes_back_with_modes_and_links(tmp_path: Path) -> None:
    cache, made = BuildCache(tmp_path / "builds"), tmp_path / "made"
    files = {"build/tool": "#!/bin/sh\n", "pkg/ünï .so": "elf"}
    put(cache, "k", made, files)
    (made / "build/tool").chmod(0o755)
    (made / "pkg/link").symlink_to("ünï .so")
    with cache.held("k", give_up) as build:
        assert cache.keep(build, made, [*files, "pkg/link"])
    assert take(cache, "k", tmp_path / "other")
    assert {str(path.relative_to(tmp_path / "other")) for path in (tmp_path / "other").rglob("*")} == {
        *("build", "build/tool", "pkg", "pkg/ünï .so", "pkg/link")
    }
    assert os.access(tmp_path / "other/build/tool", os.X_OK)
    assert (tmp_path / "other/pkg/link").readlink() == Path("ünï .so")
    assert not take(cache, "another", tmp_path / "third")


def test_nothing_written_is_a_build_as_well(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path / "builds")
    assert put(cache, "k", tmp_path, {})
    assert take(cache, "k", tmp_path / "other")


def test_it_takes_no_place_of_the_commits_own(tmp_path: Path) -> None:
    cache, other = BuildCache(tmp_path / "builds"), tmp_path / "other"
    put(cache, "k", tmp_path / "made", {"a": "1", "pkg/b.so": "2"})
    (other / "pkg").mkdir(parents=True)
    (other / "pkg/b.so").write_text("the commit's")
    assert not take(cache, "k", other)
    assert not (other / "a").exists()
    assert (other / "pkg/b.so").read_text() == "the commit's"


def test_it_does_not_follow_a_link_out_of_the_checkout(tmp_path: Path) -> None:
    cache, other, outside = BuildCache(tmp_path / "builds"), tmp_path / "other", tmp_path / "outside"
    put(cache, "k", tmp_path / "made", {"build/b": "2"})
    other.mkdir()
    outside.mkdir()
    (other / "build").symlink_to(outside)
    assert not take(cache, "k", other)
    assert not list(outside.iterdir())


@pytest.mark.parametrize("damage", ["cut", "gone", "list"])
def test_a_damaged_build_is_none(tmp_path: Path, damage: str) -> None:
    cache = BuildCache(tmp_path / "builds")
    put(cache, "k", tmp_path / "made", {"b": "22"})
    (kept,) = (tmp_path / "builds").rglob("b")
    if damage == "cut":
        kept.write_text("2")
    elif damage == "gone":
        kept.unlink()
    else:
        (tmp_path / "builds/k/files.json").write_text("{")
    assert not take(cache, "k", tmp_path / "other")
    put(cache, "k", tmp_path / "made", {"b": "22"})
    assert take(cache, "k", tmp_path / "other"), "it can be made anew"


def test_the_longest_unused_goes_first_and_none_that_is_in_use(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path / "builds", most_bytes=35)
    for age, name in enumerate("abc"):
        put(cache, name, tmp_path / "made", {"b": "0" * 10})
        os.utime(tmp_path / "builds" / name, (age, age))
    assert take(cache, "a", tmp_path / "first"), "used just now"
    with cache.held("b", give_up):
        put(cache, "d", tmp_path / "made", {"b": "0" * 10})
    assert {path.name for path in (tmp_path / "builds").iterdir() if path.is_dir()} == {"a", "b", "d"}
    assert not (tmp_path / "builds/c.lock").exists()


def test_what_is_larger_than_all_may_be_is_not_kept(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path / "builds", most_bytes=35)
    put(cache, "a", tmp_path / "made", {"b": "0" * 10})
    assert not put(cache, "big", tmp_path / "made", {"b": "0" * 36})
    assert take(cache, "a", tmp_path / "other")


def test_one_at_a_time_and_whoever_waits_may_give_up(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path / "builds")
    inside, most = 0, 0
    guard = threading.Lock()

    def hold() -> None:
        nonlocal inside, most
        for _ in range(20):
            with cache.held("k", lambda: None):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    with cache.held("k", give_up), pytest.raises(GivenUpError), cache.held("k", give_up):
        pass


KILLED = """
import os, sys
from pathlib import Path
from oomscope.bisect import build_cache
root, made = Path(sys.argv[1]), Path(sys.argv[2])
cache = build_cache.BuildCache(root)
build_cache.write_whole = lambda *a, **k: os.kill(os.getpid(), 9)
with cache.held("k", lambda: None) as build:
    cache.keep(build, made, ["b"])
"""


def test_a_writer_that_is_killed_leaves_no_build_and_no_lock(tmp_path: Path) -> None:
    cache, made = BuildCache(tmp_path / "builds"), tmp_path / "made"
    made.mkdir()
    (made / "b").write_text("2")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "builds"), str(made)], check=False)
    assert done.returncode == -9
    assert not take(cache, "k", tmp_path / "other")
    assert put(cache, "k", made, {"b": "2"})
    assert sorted(path.name for path in (tmp_path / "builds").iterdir()) == ["k", "k.lock"]
    assert json.loads((tmp_path / "builds/k/files.json").read_text()) == {"b": 1}
