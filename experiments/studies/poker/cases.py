"""Kuhn poker by PPO against PPO, or a pool of its own past, measured exactly. See README.md."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl import load_policy
from muxrl.experiments.studies.case_table import Case, CaseTable, main
from muxrl.experiments.studies.outcomes import PICTURE_FILE, Figures, Outcome
from muxrl.experiments.studies.pictures import Panel, draw_curves
from muxrl.orchestrator.launch.in_process import Served

if TYPE_CHECKING:
    from muxrl.orchestrator.measure.exact_games import ExactGame, Mean

HERE = Path(__file__).parent
EVERY = 2500
"""Env steps between two measurements, at which a snapshot is made and the pool gets new weights."""


SHOWN = {"return": "mean of snapshots", "newest": "newest"}
"""By figure: the name of its curve in the picture."""


class Measure:
    """Measures the exploitability of the newest policies, and of the mean of all measured so far.

    It also brings the pool the learner's weights and snapshots, as a run does.
    """

    def __init__(self, game: str) -> None:
        self._name = game
        self._served: Served | None = None

    def _begin(self, served: Served) -> None:
        from muxrl.orchestrator.measure.exact_games import ExactGame, Mean

        self._served = served
        self._game: ExactGame = ExactGame(self._name)
        self._mean: Mean = Mean(self._game)
        self._snapshots: dict[int, str] = {}
        self._folder = tempfile.TemporaryDirectory()

    def __call__(self, served: Served) -> Figures:
        if served is not self._served:
            self._begin(served)
        number = len(self._snapshots) + 1
        place = Path(self._folder.name) / str(number)
        learners: dict[str, Any] = {
            server_id: server.policies
            for server_id, server in served.servers.items()
            if server_id != "rivals"
        }
        for server_id, learner in learners.items():
            learner.save(place / server_id)
        self._snapshots[number] = str(place / next(iter(learners)))
        loaded = load_policy(place)
        seats = [loaded.get(f"player_{seat}", loaded["player_0"]) for seat in range(2)]
        newest = self._game.table(seats)
        self._mean.add(newest)
        if "rivals" in served.servers:
            pool: Any = served.servers["rivals"].policies
            pool.sync("main", self._snapshots, learners["main"].live())
        return {
            "return": -self._game.exploitability(self._mean.table),
            "newest": -self._game.exploitability(newest),
        }


def _case(config: str) -> Case:
    return Case(
        str(HERE / config),
        (),
        env_steps=150_000,
        every=EVERY,
        measure=Measure("kuhn_poker"),
        levels={"equilibrium": 0.0, "uniform": -11 / 24},
    )


LEDUC = Case(
    str(HERE / "self_play.yaml"),
    ("simulation.env=open_spiel:leduc_poker", "stop.env_steps=400000"),
    env_steps=400_000,
    every=20_000,
    measure=Measure("leduc_poker"),
    levels={"equilibrium": 0.0, "uniform": -2.3735},
)


LONGER = replace(
    _case("self_play.yaml"),
    overrides=("stop.env_steps=800000",),
    env_steps=800_000,
    every=8_000,
)


def draw(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Draws a panel for each case, with curves of the mean and of the newest policy."""
    panels = []
    for name in dict.fromkeys(outcome.case for outcome in outcomes):
        seeds = [outcome for outcome in outcomes if outcome.case == name]
        curves = {
            label: [[(n, figures[key]) for n, figures in one.measured.items()] for one in seeds]
            for key, label in SHOWN.items()
        }
        panels.append(Panel(name, curves, seeds[0].levels))
    draw_curves(panels, "Return against a best response, exact", folder / PICTURE_FILE)


TABLE = CaseTable(
    {
        "Kuhn: PPO against PPO": _case("self_play.yaml"),
        "Kuhn: pool": _case("pool.yaml"),
        "Leduc: PPO against PPO": LEDUC,
        "Kuhn, longer: PPO against PPO": LONGER,
    },
    seeds=(0, 1, 2, 3, 4),
    draw_own=draw,
)

if __name__ == "__main__":
    main(TABLE, __doc__)
