"""Rock, paper, scissors against the newest weights, or a pool of the past. See README.md."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.experiments.simulations.rock_paper_scissors import exploitability
from muxrl.experiments.studies.case_table import Case, CaseTable, main
from muxrl.experiments.studies.outcomes import Figures
from muxrl.orchestrator.launch.in_process import Served
from muxrl.servers.trainers.interface import Rows

EVERY = 128
"""Env steps between two measurements, one batch; at each the pool gets the newest weights."""
SNAPSHOT_EVERY = 2
"""Measurements from one snapshot to the next."""
NOW = "{now: {live: main}}"
BOTH = "{now: {live: main}, past: {snapshots: main, last: 100, weight: 4}}"


class Measure:
    """Measures the exploitability of the newest policy, and of the mean of all measured so far.

    It also brings the pool the learner's weights and snapshots, as a run does.
    """

    def __init__(self) -> None:
        self._served: Served | None = None

    def _begin(self, served: Served) -> None:
        self._served = served
        self._policies: list[np.ndarray] = []
        self._snapshots: dict[int, str] = {}
        self._folder = tempfile.TemporaryDirectory()

    def __call__(self, served: Served) -> Figures:
        if served is not self._served:
            self._begin(served)
        learner: Any = served.servers["main"].policies
        pool: Any = served.servers["rivals"].policies
        self._policies.append(policy_of(learner))
        if len(self._policies) % SNAPSHOT_EVERY == 0:
            place = Path(self._folder.name) / str(len(self._policies))
            learner.save(place)
            self._snapshots[len(self._policies)] = str(place)
        pool.sync("main", self._snapshots, learner.live())
        return {
            "return": -exploitability(np.mean(self._policies, axis=0)),
            "newest": -exploitability(self._policies[-1]),
        }


def policy_of(learner: Any) -> np.ndarray:
    """Returns the probabilities with which the learner takes the three actions."""
    seen = np.ones((1, 1), np.float32)
    rows = Rows(seen, None, None, ("agent_0",), True, False, np.random.default_rng(0))
    found: np.ndarray = learner.acting.learners["default"].probabilities(rows)[0]
    return found


def _case(draw: str, members: str) -> Case:
    return Case(
        "rock_paper_scissors",
        (
            "simulation.num_envs_per_process=64",
            f"servers.rivals.settings.draw={draw}",
            f"servers.rivals.settings.members={members}",
        ),
        env_steps=12_800,
        every=EVERY,
        measure=Measure(),
        levels={"equilibrium": 0.0},
    )


TABLE = CaseTable(
    {
        "mean policy: newest weights": _case("weights", NOW),
        "mean policy: pool, hard": _case("hard", BOTH),
    },
    seeds=(0, 1, 2, 3, 4),
    title="Return of the mean policy so far against its best response",
)

if __name__ == "__main__":
    main(TABLE, __doc__)
