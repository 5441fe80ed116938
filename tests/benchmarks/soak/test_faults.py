from __future__ import annotations

import itertools
from typing import get_args

from benchmarks.soak.faults import Fault, Kind, faults


def test_one_seed_decides_and_every_round_has_all_kinds() -> None:
    def first(seed: int) -> list[Fault]:
        return list(itertools.islice(faults(seed, ["a", "b"], ["s"]), 15))

    assert first(0) == first(0) != first(1)
    for begin in (0, 5, 10):
        assert {fault.kind for fault in first(0)[begin : begin + 5]} == set(get_args(Kind))
    for fault in first(0):
        victims = {
            "kill a simulation": {"s"},
            "kill the evaluation": {"evaluation"},
            "pause": {"a", "b", "s"},
        }
        assert fault.victim in victims.get(fault.kind, {"a", "b"})
