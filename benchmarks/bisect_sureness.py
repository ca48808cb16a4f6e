"""Whether a search that calls itself sure is: how many of its answers are wrong, by how often a probe is.

The belief of a search is exact under its own prior of the rates (``oomscope/bisect/rates.py``). How much it promises
too much where a rate lies far out in that prior is measured here: lines of 40 commits, a random one at fault, both
rates the same. ``noted`` is the share of answers whose interval of a rate goes beyond that of the prior.

    python benchmarks/bisect_sureness.py [CASES]
"""

from __future__ import annotations

import sys

from bisect_noise import Case, Weighing

from oomscope.bisect.search.posterior import PosteriorSearch, Prior, mixed_rate

COMMITS = 40
RATES = (0.05, 0.1, 0.2, 0.3)
ENOUGH = (0.95, 0.99)


def row(rate: float, enough: float, cases: int) -> str:
    """Return the row of one rate."""
    usual = mixed_rate(Prior(), [(1.0, 0, 0)]).high
    answers = wrong = noted = wrong_noted = 0
    for seed in range(cases):
        case = Case(Weighing(PosteriorSearch(last=COMMITS, enough=enough)), COMMITS, (rate, rate), seed)
        case.run(1)
        if case.state.culprit is None:
            continue
        search = case.state.search
        is_wrong = case.state.culprit != case.at
        is_noted = max(search.false_good_rate.high, search.false_bad_rate.high) > usual
        answers += 1
        wrong += is_wrong
        noted += is_noted
        wrong_noted += is_wrong and is_noted
    shares = " | ".join(
        f"{100 * part / whole:.1f} %" if whole else ""
        for part, whole in ((answers, cases), (wrong, answers), (noted, answers), (wrong_noted, noted))
    )
    return f"| {100 * rate:.0f} % | {100 * enough:.0f} % | {shares} |"


def main() -> None:
    """Print the table, in Markdown."""
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    print("| wrong probes | asked for | answered | wrong of these | noted | wrong of these |")
    print("|---|---|---|---|---|---|")
    for enough in ENOUGH:
        for rate in RATES:
            print(row(rate, enough, cases), flush=True)


if __name__ == "__main__":
    main()
