"""Links to a forge: from the URL of a remote, or the page that the user names, and never with a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.bisect.vcs.forge import Forge, forge_of
from oomscope.errors import UsageError
from tests.unit.bisect.repos import Repo


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("https://github.com/ada/tiny.git", "https://github.com/ada/tiny"),
        ("https://ada:secret@github.com/ada/tiny", "https://github.com/ada/tiny"),
        ("git@github.com:ada/tiny.git", "https://github.com/ada/tiny"),
        ("ssh://git@gitlab.example.org:2222/group/sub/tiny.git", "https://gitlab.example.org/group/sub/tiny/-"),
        ("https://git.example.org/ada/tiny.git", None),
        ("/srv/github/tiny.git", None),
        ("../github", None),
    ],
)
def test_the_forge_of_a_remote(tmp_path: Path, url: str, base: str | None) -> None:
    repo = Repo(tmp_path / "repo")
    repo.git("remote", "add", "origin", url)
    found = forge_of(repo.path, None)
    assert (found.base if found else None) == base


def test_without_a_remote_or_a_repository_there_are_no_links(tmp_path: Path) -> None:
    assert forge_of(Repo(tmp_path / "repo").path, None) is None
    assert forge_of(tmp_path, None) is None
    assert forge_of(tmp_path, "") is None


def test_the_page_that_the_user_names_counts() -> None:
    forge = Forge.named("https://code.example.org/ada/tiny/-/")
    assert forge is not None
    assert forge.commit("c0ffee") == "https://code.example.org/ada/tiny/-/commit/c0ffee"
    assert (
        forge.line("c0ffee", "a b/<x>.py", 3) == "https://code.example.org/ada/tiny/-/blob/c0ffee/a%20b/%3Cx%3E.py#L3"
    )


@pytest.mark.parametrize("url", ["javascript:alert(1)", "github.com/ada/tiny", "https://github.com", "file:///etc/x"])
def test_what_is_no_page_of_a_repository_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="not the page of a repository"):
        Forge.named(url)
