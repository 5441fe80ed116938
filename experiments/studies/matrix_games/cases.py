"""Climbing and penalty: games whose optimum no mixer can fit. See README.md."""

from __future__ import annotations

from muxrl.experiments.simulations.matrix_game import Game, oracle_return, random_return
from muxrl.experiments.studies.case_table import Case, CaseTable, evaluated, main

ALGORITHMS = ("QMIX", "VDN", "IQL")
GAMES: dict[str, tuple[Game, float, float]] = {
    "climbing": ("climbing", 0.0, 5.0),
    "penalty_100": ("penalty", -100.0, 2.0),
    "penalty_25": ("penalty", -25.0, 2.0),
}
"""Game, its k, and what the best least-squares fit of each algorithm's family earns, which
`best_fits` works out."""

TABLE = CaseTable(
    {
        f"{name}: {algorithm}": Case(
            "matrix",
            (
                f"servers.team.algorithm={algorithm}",
                f"simulation.kwargs={{game: {game}, k: {k}}}",
            ),
            env_steps=10_000,
            every=1_000,
            measure=evaluated(1, combine=sum),
            levels={
                "random": random_return(game, k),
                "optimum": oracle_return(game, k),
                "best fit": best_fit,
            },
        )
        for name, (game, k, best_fit) in GAMES.items()
        for algorithm in ALGORITHMS
    },
    seeds=(0, 1, 2),
    title="Joint return, one greedy episode every 1,000 env steps",
)

if __name__ == "__main__":
    main(TABLE, __doc__)
