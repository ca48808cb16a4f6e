"""A file that was given to the wrong command is answered with the one that reads it."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest

from oomscope.cli.main import run


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("preset: gpt-tiny\n")
    Path("a.yaml.gz").write_bytes(gzip.compress(b"preset: gpt-tiny\n"))
    Path("a.pickle").write_bytes(pickle.dumps([]))
    Path("y.png").write_bytes(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("explain a.yaml", "; oomscope probe a.yaml measures a configuration\n"),
        ("replay a.yaml.gz", "; oomscope probe a.yaml.gz measures a configuration\n"),
        ("probe a.yaml.gz", "not text: byte 0x8b is not UTF-8; unpack it: gunzip a.yaml.gz\n"),
        (
            "probe a.pickle",
            "a.pickle: no configuration of oomscope's; oomscope explain a.pickle reads memory snapshots\n",
        ),
        ("gate run a.pickle", "not text: byte 0x80 is not UTF-8; oomscope explain a.pickle reads memory snapshots\n"),
        ("gate run a.yaml.gz", "; unpack it: gunzip a.yaml.gz\n"),
        ("config check y.png", "y.png:1: not text: byte 0x89 is not UTF-8; give a YAML file in UTF-8\n"),
    ],
)
def test_the_command_for_it_is_named(capsys, words: str, said: str) -> None:
    assert run(words.split()) == 2
    assert capsys.readouterr().err.endswith(said)
