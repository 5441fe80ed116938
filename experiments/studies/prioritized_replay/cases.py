"""QMIX where answers are seldom paid: replay drawn uniformly, or by priority. See README.md."""

from __future__ import annotations

import json

from muxrl.experiments.simulations.recall_game import memoryless_return, oracle_return
from muxrl.experiments.studies.case_table import Case, CaseTable, evaluated, main

BUDGETS = {16: 16_000, 32: 24_000}
"""Env steps by the number of cues."""
ALPHAS = {"uniform": 0.0, "by priority": 0.6}

_SETTINGS = {
    "gamma": 0.9,
    "optimizer_name": "adam",
    "lr": 0.002,
    "epsilon": [[0, 1.0], [15_000, 0.05]],
}


def _case(num_cues: int, alpha: float) -> Case:
    settings = {**_SETTINGS, "prioritized_replay_alpha": alpha}
    return Case(
        "recall",
        (
            "simulation.num_envs_per_process=8",
            f"simulation.kwargs={{num_agents: 2, num_cues: {num_cues}}}",
            "servers.team.algorithm=QMIX",
            "servers.team.agents=[agent_*]",
            "servers.team.groups={both: [agent_*]}",
            "servers.team.team_reward=mean",
            f"servers.team.settings={json.dumps(settings)}",
        ),
        env_steps=BUDGETS[num_cues],
        every=2_000,
        measure=evaluated(64),
        levels={"random": memoryless_return(num_cues), "optimum": oracle_return()},
    )


TABLE = CaseTable(
    {
        f"{num_cues} cues: {name}": _case(num_cues, alpha)
        for num_cues in BUDGETS
        for name, alpha in ALPHAS.items()
    },
    seeds=(0, 1, 2),
    title="Recall: mean return per agent, 64 greedy episodes every 2,000 env steps",
)

if __name__ == "__main__":
    main(TABLE, __doc__)
