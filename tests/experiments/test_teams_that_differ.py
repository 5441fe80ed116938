"""Games for teams whose members are unlike, late or dead; and level-based foraging."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from muxrl.client.adapters.pettingzoo_parallel import PettingZooParallel
from muxrl.experiments.simulations.foraging import ORACLE_RETURN, Foraging
from muxrl.experiments.simulations.sentries import Sentries
from muxrl.experiments.studies.case_table import Case, CaseTable, Measure, evaluated
from muxrl.experiments.studies.published.cases import FirstForaging


def test_a_sentry_arrives_in_time_dies_once_and_does_not_come_back() -> None:
    simulation = PettingZooParallel(Sentries())
    observations, _ = simulation.reset(1)
    seen_at: dict[str, list[int]] = {a: [] for a in simulation.possible_agents}
    died_at: dict[str, int] = {}
    t = 0
    while observations:
        for agent in observations:
            seen_at[agent].append(t)
        # sentry_1 errs at its third step; the others never do.
        actions = {a: int(seen[:3].argmax()) for a, seen in observations.items()}
        if t == 4:
            actions["sentry_1"] = (actions["sentry_1"] + 1) % 3
        state = simulation.state()
        rows = state.reshape(3, 5)
        assert [bool(row[0]) for row in rows] == [
            a in observations for a in simulation.possible_agents
        ]
        assert [bool(row[1]) for row in rows] == [False, t > 4, False]
        result = simulation.step(actions)
        died_at |= dict.fromkeys(result.terminations, t)
        observations = result.observations
        t += 1
    assert died_at == {"sentry_1": 4}
    assert seen_at["sentry_0"] == list(range(12))
    assert seen_at["sentry_1"] == [2, 3, 4]
    assert seen_at["sentry_2"] == list(range(4, 12))
    assert list(result.truncations) == ["sentry_0", "sentry_2"]


def test_foraging_pays_one_for_everything_and_is_terminated_then() -> None:
    env = Foraging()
    for seed in range(20):
        env.reset(seed=seed)
        game: Any = env.unwrapped
        total, ends = 0.0, []
        for row, column in np.argwhere(game.field):
            for player, beside in zip(game.players, (-1, 1), strict=True):
                player.position = (row, column + beside)
            game._gen_valid_moves()
            _, rewards, *is_over, _ = env.step((5, 5))  # both load
            total += sum(rewards)
            ends.append(is_over)
        assert total == pytest.approx(ORACLE_RETURN)
        assert ends == [[False, False], [True, False]]
    env.reset()
    assert [env.step((0, 0))[2:4] for _ in range(50)] == [(False, False)] * 49 + [(False, True)]


def test_levels_are_those_of_the_third_version() -> None:
    env = Foraging()
    levels = set()
    for seed in range(30):
        (seen, _), _ = env.reset(seed=seed)
        mine, other = seen[[8, 11]]
        levels |= {int(mine), int(other)}
        assert seen[2] == seen[5] == mine + other  # each apple takes both
    assert levels == {1, 2}


def greedy_return(config: str, measure: Measure, env_steps: int, server: dict[str, Any]) -> float:
    """Trains one QMIX team through a server and returns its greedy mean return."""
    settings = {"agent": "mlp", "optimizer_name": "adam", "lr": 0.002,
                "epsilon": [[0, 1.0], [env_steps // 2, 0.02]]}  # fmt: skip
    server = {"algorithm": "QMIX", "agents": ["*"], "groups": {"all": ["*"]},
              "settings": settings, **server}  # fmt: skip
    overrides = (f"servers.team={json.dumps(server)}", "simulation.num_envs_per_process=8")
    case = Case(config, overrides, env_steps, measure)
    return CaseTable({"QMIX": case}).run("QMIX").final["return"]


@pytest.mark.learning
@pytest.mark.usefixtures("rllib")
def test_a_team_of_unlike_members_uses_all_of_their_actions() -> None:
    learned = greedy_return("unlike_cues", evaluated(100), 8_000, {"team_reward": "mean"})
    assert learned > 15  # random 3.8; two actions for each member could return 9.6 at most


def test_the_first_foraging_has_lighter_apples_and_ends_with_its_time() -> None:
    env = FirstForaging()
    heaviest = {2: 1, 3: 2, 4: 3}  # by the sum of the agents' levels
    found: dict[int, int] = {}
    for seed in range(60):
        env.reset(seed=seed)
        game: Any = env.unwrapped
        levels = sum(player.level for player in game.players)
        found[levels] = max(found.get(levels, 0), int(game.field.max()))
    assert found == heaviest
    ends = [env.step((0, 0))[2:4] for _ in range(25)]
    assert ends == [(False, False)] * 24 + [(True, False)]
