"""Collect the cases that ``megatron_ci.py`` reads from a checkout of Megatron-LM.

    python tests/conformance/megatron_golden.py CHECKOUT > FILE

Every functional test with recorded memory becomes a case: its ``model_config.yaml``, and of each
``golden_values_dev_dgx_{a100,h100}.json`` the last values of ``mem-allocated-bytes`` and ``mem-max-allocated-bytes``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

TESTS = Path("tests/functional_tests/test_cases")
SERIES = {"alloc_last": "mem-allocated-bytes", "max_last": "mem-max-allocated-bytes"}


def row_of(golden: dict[str, Any], env: str) -> dict[str, Any] | None:
    """Return what was recorded last, None where memory was not."""
    row: dict[str, Any] = {"env": env}
    for name, series in SERIES.items():
        values = golden.get(series, {}).get("values", {})
        recorded = [values[step] for step in sorted(values, key=int) if isinstance(values[step], (int, float))]
        if not recorded:
            return None
        row[name] = int(recorded[-1])
    return row


def cards_of(document: dict[str, Any]) -> dict[str, int]:
    """Return the cards that the case ran on, if they are not all of a machine."""
    cards = ((document.get("MODEL_ENV_VARS") or {}).get("MODEL_ARGS") or {}).get("GPUS_PER_NODE")
    return {} if cards is None else {"cards": int(cards)}


def cases(checkout: Path) -> Iterator[dict[str, Any]]:
    """Yield every test of ``checkout`` whose memory was recorded on A100 or H100 cards."""
    for config in sorted((checkout / TESTS).glob("*/*/model_config.yaml")):
        rows = []
        for card in ("a100", "h100"):
            file = config.with_name(f"golden_values_dev_dgx_{card}.json")
            row = row_of(json.loads(file.read_text()), f"8x {card.upper()}-80GB") if file.exists() else None
            rows += [row] if row is not None else []
        document = yaml.safe_load(config.read_text())
        if rows and "MODEL_ARGS" in document:
            given = {f"ENV:{name}": value for name, value in (document.get("ENV_VARS") or {}).items()}
            given |= document["MODEL_ARGS"]
            arguments = {
                name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()
            }
            case = {"case": f"{config.parent.parent.name}/{config.parent.name}", "arguments": arguments, "rows": rows}
            yield case | cards_of(document)


def main(argv: Sequence[str]) -> int:
    """Print the cases of the checkout that is named."""
    if len(argv) != 1 or not (Path(argv[0]) / TESTS).is_dir():
        print(f"give the folder of a Megatron-LM checkout, with {TESTS} in it", file=sys.stderr)
        return 2
    print(json.dumps(list(cases(Path(argv[0]))), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
