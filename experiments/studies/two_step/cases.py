"""The two-step game of the QMIX paper: QMIX finds 8, VDN and IQL settle at 7. See README.md."""

from __future__ import annotations

from muxrl.experiments.simulations.two_step_game import oracle_return, random_return
from muxrl.experiments.studies.case_table import Case, CaseTable, evaluated, main

TABLE = CaseTable(
    {
        algorithm: Case(
            "two_step",
            (f"servers.team.algorithm={algorithm}",),
            env_steps=20_000,
            every=2_000,
            measure=evaluated(1, combine=sum),
            levels={"random": random_return(), "optimum": oracle_return()},
        )
        for algorithm in ("QMIX", "VDN", "IQL")
    },
    seeds=(0, 1, 2, 3, 4),
    title="Two-step game: joint return, one greedy episode every 2,000 env steps",
)

if __name__ == "__main__":
    main(TABLE, __doc__)
