"""A repository has one name, by whichever URL it was cloned."""

from __future__ import annotations

import pytest

from oomscope.gate.suite.identity import Home, remote_name


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://token-of-tonight:s3cret@git.example:8443/group/sub/project.git", "group/sub/project"),
        ("git@git.example:group/sub/project.git", "group/sub/project"),
        ("ssh://git@git.example:22/group/sub/project/", "group/sub/project"),
        ("alias:project", "project"),
        ("/srv/git/project.git", "srv/git/project"),
        ("file:///srv/project/.git", "srv/project"),
        ("/srv/a:b/project", "srv/a:b/project"),
    ],
)
def test_a_remote_is_called_the_same_however_it_is_reached(url: str, name: str) -> None:
    assert remote_name(url) == name


def test_a_repository_without_a_remote_is_called_by_its_first_commit() -> None:
    assert Home(path="a.yaml", first_commit="c" * 40).repository == "c" * 10
    assert Home(path="a.yaml", first_commit="c" * 40, remote="group/project").repository == "group/project"
