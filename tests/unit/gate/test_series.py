"""Nights are of one suite in whatever folder the checkout lay, and of two where the repositories are two."""

from __future__ import annotations

from oomscope.gate.suite.identity import Home, Place, Series, series_of

FIRST, OTHER = "a" * 40, "b" * 40


def place(path: str, inside: str | None = "ci/memory.yaml", first: str = "", remote: str = "") -> Place:
    home = None if inside is None else Home(path=inside, first_commit=first, remote=remote)
    return Place(path=path, home=home)


def test_checkouts_of_one_repository_are_one_series_clones_shallow_ones_and_renamed_ones() -> None:
    places = [
        place("/builds/1/p/ci/memory.yaml", first=FIRST),
        place("/builds/2/p/ci/memory.yaml", first=FIRST, remote="old/p"),
        place("/builds/3/p/ci/memory.yaml", remote="old/p"),
        place("/builds/4/p/ci/memory.yaml", first=FIRST, remote="new/p"),
        place("/builds/5/p/ci/memory.yaml", remote="new/p"),
    ]
    assert set(series_of(places).values()) == {Series(suite="ci/memory.yaml", repository="new/p")}
    assert len(set(series_of(places[:1] + places[2:3]).values())) == 2


def test_two_suites_of_one_repository_and_two_repositories_are_two_series() -> None:
    places = [
        place("/builds/ci/memory.yaml", first=FIRST),
        place("/builds/ci/memory.yaml", first=OTHER),
        place("/builds/nightly/memory.yaml", "nightly/memory.yaml", first=FIRST),
    ]
    assert list(series_of(places).values()) == [
        Series(suite="ci/memory.yaml", repository="a" * 10),
        Series(suite="ci/memory.yaml", repository="b" * 10),
        Series(suite="nightly/memory.yaml", repository="a" * 10),
    ]


def test_a_repository_has_one_name_for_all_its_suites() -> None:
    places = [
        place("/builds/1/ci/memory.yaml", first=FIRST, remote="group/p"),
        place("/builds/nightly/memory.yaml", "nightly/memory.yaml", first=FIRST),
    ]
    assert {one.repository for one in series_of(places).values()} == {"group/p"}


def test_a_night_that_knows_its_path_alone_is_of_the_only_repository_seen_there() -> None:
    old, known = place("/builds/ci/memory.yaml", None), place("/builds/ci/memory.yaml", first=FIRST)
    assert series_of([old, known])[old] == series_of([known])[known]
    another = place("/builds/ci/memory.yaml", first=OTHER)
    assert series_of([old, known, another])[old] == Series(suite="/builds/ci/memory.yaml")


def test_such_a_night_of_another_checkout_is_of_the_only_repository_in_a_folder_of_that_name() -> None:
    old, other = (place(f"/builds/1/{name}/ci/memory.yaml", None) for name in ("proj", "other-proj"))
    known = place("/builds/2/proj/ci/memory.yaml", first=FIRST)
    found = series_of([old, other, known])
    assert (found[old], found[other]) == (found[known], Series(suite=other.path))
    another = place("/builds/3/proj/ci/memory.yaml", first=OTHER)
    assert series_of([old, known, another])[old] == Series(suite=old.path)
    there = place(old.path, first=FIRST)
    assert series_of([old, there, another])[old] == found[known]


def test_a_repository_without_a_commit_and_a_remote_is_known_by_its_path() -> None:
    places = [place("/a/ci/memory.yaml"), place("/b/ci/memory.yaml")]
    assert [one.suite for one in series_of(places).values()] == ["/a/ci/memory.yaml", "/b/ci/memory.yaml"]
