"""What is measured, and on which card: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import TP2, Cases

CASES: Cases = {
    "D1": (
        [{"optimizer.use_distributed_optimizer": True}],
        [{"optimizer.use_distributed_optimizer": True, "parallel.data_parallel_size": 2}, {}],
    ),
    "D2": ([{"probe.rank": 1}], [{"probe.rank": 0}, {"probe.rank": "last"}, {"probe.rank": 1, **TP2}]),
    "D3": (
        [{"device.limit": "1GiB"}, {"device.limit": "3GiB", "device.other_process_bytes": "2GiB"}],
        [{"device.limit": "2GiB"}, {"device.other_process_bytes": "90GiB"}],
    ),
    "D4": (
        [{"probe.world_size": 2}, {"probe.world_size": 1, **TP2}],
        [{"probe.world_size": 1}, {"probe.world_size": 2, **TP2}, TP2],
    ),
}
