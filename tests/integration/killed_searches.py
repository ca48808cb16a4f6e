"""Searches that are killed again and again, each time at a random moment, and gone on with: a program of its own.

Each life is a fork of this process, which has imported everything, so that a life costs what the search costs. The
probe is a fake that takes some milliseconds and says in a file, before it answers, what it measured.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.journal.store import JournalStore
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.results.sections import StepsWanted
from oomscope.bisect.run.identity import Machine
from oomscope.bisect.run.places import JournalUse, Places
from oomscope.bisect.vcs.ranges import RevisionRange
from oomscope.errors import InputError
from oomscope.probe.job import ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.worlds import FakeProbe, harness_code

PROBE_S = 0.005
LOOKS = 6
FOR_EVER_S = 600.0


@dataclass(frozen=True)
class Lives:
    """One search with many lives, in a directory of its own; the repository is shared."""

    directory: Path
    home: Path

    @property
    def measured(self) -> Path:
        """What the probe has measured, a line each."""
        return self.home / "measured"

    @property
    def answer(self) -> Path:
        """The answer of the life that came to its end."""
        return self.home / "answer.json"

    @property
    def store(self) -> JournalStore:
        return JournalStore(self.request.places.journals)

    @property
    def request(self) -> CommitRequest:
        return CommitRequest(
            repo=self.directory / "repo",
            range=RevisionRange(good="good", bad="main"),
            subject=harness_code(self.directory / "harness.py"),
            places=Places(self.home / "state"),
            use_cache=False,
            steps=StepsWanted(looks=LOOKS),
        )

    def number(self) -> int | None:
        """Return the number of the search, if a life came far enough to write its first line."""
        for number in reversed(self.store.numbers()):
            try:
                return self.store.read(number).begun.search
            except InputError:
                continue
        return None

    def live(self, kill_after_s: float) -> bool:
        """Search in a fork, kill it after a while, and return whether it came to its end before."""
        number = self.number()
        request = self.request if number is None else replace(self.request, journal=JournalUse(search=number))
        child = os.fork()
        if child == 0:
            self._search(request)
        deadline = time.monotonic() + kill_after_s
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert status == 0, "a life ended with an error"
                return True
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def _search(self, request: CommitRequest) -> None:
        try:
            self.answer.write_text(json.dumps(answer_of(bisect_commits(request, probe=self._probe, environment={}))))
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 # a fork must not go on as the program
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def _probe(self, job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        time.sleep(PROBE_S)
        fake = FakeProbe()
        result = fake(job)
        with self.measured.open("a") as file:
            file.write(f"{fake.ran[0]}\n")
        return result


def answer_of(result: BisectResult) -> dict[str, Any]:
    """Return the document without what a later life may differ in."""
    return answer_of_document(json.loads(json.dumps(result.to_json())))


def answer_of_document(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a search without what a later life may differ in."""
    for name in ("search", "cost"):
        document.pop(name)
    for probe in document["probes"]:
        probe.update(wall_s=0, probe_s=0, cached=False)
    for evidence in (document["last_good"], document["first_bad"]):
        evidence["result"].update(wall_s=0, worker_rss_bytes=0)
    return document


def lived_through(lives: Lives, moments: Callable[[], float], most_kills: int) -> int:
    """Kill the search at ``moments``, at most so often, then let it end; return how often it was killed."""
    kills = recorded = 0
    while not lives.live(moments() if kills < most_kills else FOR_EVER_S):
        kills += 1
        measured = len(lives.measured.read_text().splitlines()) if lives.measured.exists() else 0
        number = lives.number()
        if number is None:
            assert measured == 0, "what is measured before there is a journal is lost"
            continue
        account = lives.store.read(number)
        assert not account.problems
        assert len(account.kept) >= recorded, "an answer that was written is gone"
        recorded = len(account.kept)
        assert measured - recorded <= kills, "a kill cost more than the probe that ran"
    return kills


def main(directory: Path, kills_wanted: int, seed: int) -> None:
    """Kill searches ``kills_wanted`` times, and hold each answer against that of a search that nobody kills."""
    chance = random.Random(seed)
    Machine.here({})  # so that no life has to find out
    undisturbed = Lives(directory, directory / "undisturbed")
    undisturbed.home.mkdir()
    began = time.monotonic()
    assert undisturbed.live(FOR_EVER_S)
    took_s = time.monotonic() - began
    kills = searches = 0
    while kills < kills_wanted:
        searches += 1
        lives = Lives(directory, directory / f"search {searches}")
        lives.home.mkdir()
        # A part of the time, so that a search has several lives, which together come to every moment of it.
        kills += lived_through(lives, lambda: chance.uniform(0, took_s * 2 / 3), kills_wanted - kills)
        assert json.loads(lives.answer.read_text()) == json.loads(undisturbed.answer.read_text())
        assert list(lives.request.places.checkouts.iterdir()) == [], "a clone of the dead is left"
    print(json.dumps({"kills": kills, "searches": searches, "undisturbed_s": took_s}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
