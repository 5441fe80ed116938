"""A game whose most valuable action is forbidden where it looks best.

::

    S  action 0, pays 0 ──> X   (looks like Y; there action 2 is forbidden, 0 and 1 pay 1)
       action 1, pays 5, end
       action 2, pays 0, end
    Y  actions 0 and 1 pay 1, action 2 pays 10, end

X and Y are one observation, so the networks learn that action 2 is worth 10 in X, too. Whoever
bootstraps on it takes action 0 in S, for 10; it is worth 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.policy.policy import PolicySpec
from tests.servers.algorithms.qmix.pieces import tensors_of

from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.algorithms.qmix import QMIXConfig, TeamSpec
from muxrl.servers.algorithms.qmix.learner import QMIXTorchLearner
from muxrl.servers.algorithms.qmix.rl_module import Q_VALUES
from muxrl.servers.algorithms.replay.episodes import EpisodeReplay
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.gymnasium_spaces import spaces_of
from muxrl.servers.rllib.episodes import trajectory_of

LONG = [pytest.mark.learning, pytest.mark.night]
SPEC = TeamSpec(("a",), {"a": Box((2,))}, {"a": Discrete(3)})
OF_TEAM = spaces_of(SPEC)
S, X_OR_Y = np.array([1.0, 0.0]), np.array([0.0, 1.0])
ALL, NOT_2 = [1, 1, 1], [1, 1, 0]

Step = tuple[np.ndarray, list[int], int, float]


def play(*steps: Step) -> Trajectory:
    """An episode that terminates after these observations, masks, actions and rewards."""
    episode = SingleAgentEpisode(observation_space=OF_TEAM[0], action_space=OF_TEAM[1])
    seen = [SPEC.observe({"a": obs}, {"a": mask}) for obs, mask, _, _ in steps]
    episode.add_env_reset(seen[0])
    for i, (_, _, action, reward) in enumerate(steps):
        is_last = i == len(steps) - 1
        after = seen[i] if is_last else seen[i + 1]
        episode.add_env_step(after, np.array([action]), reward, terminated=is_last)
    return trajectory_of(episode.to_numpy())


def learn(mask_in_x: list[int], **settings: Any) -> QMIXTorchLearner:
    """Fits every transition of the game equally often."""
    replay = EpisodeReplay(7, seed=0)
    for action in (0, 1):
        replay.add(play((S, ALL, 0, 0.0), (X_OR_Y, mask_in_x, action, 1.0)))
    for action, pays in ((1, 5.0), (2, 0.0)):
        replay.add(play((S, ALL, action, pays)))
    for action, pays in ((0, 1.0), (1, 1.0), (2, 10.0)):
        replay.add(play((X_OR_Y, ALL, action, pays)))
    config = (
        QMIXConfig()
        .training(
            agent="mlp",
            obs_last_action=False,
            hidden_dim=32,
            optimizer_name="adam",
            lr=0.01,
            gamma=1.0,
            target_update_freq=20,
            **settings,
        )
        .multi_agent(
            policies={"team": PolicySpec(None, *OF_TEAM)},
            policy_mapping_fn=lambda *args, **kwargs: "team",
        )
        .debugging(seed=0)
    )
    learner = config.build_learner(spaces={"team": OF_TEAM})
    batch = replay.sample(7)
    for _ in range(300):
        learner.learn({"team": tensors_of(batch)}, 0)
    return learner


def team_values(learner: QMIXTorchLearner) -> np.ndarray:
    """Q_tot in S and in X or Y, of every action, ``[2, 3]``."""
    module = learner.module["team"]
    seen = [SPEC.observe({"a": obs}) for obs in (S, X_OR_Y)]
    obs = {key: torch.from_numpy(np.stack([s[key] for s in seen]))[:, None] for key in seen[0]}
    with torch.no_grad():
        values = module.forward_train({Columns.OBS: obs})[Q_VALUES][:, 0]
        best = values.masked_fill(obs["action_mask"][:, 0] == 0, -torch.inf).amax(-1)
        mixed = []
        for action in range(3):
            choice = (best, torch.full((2, 1), action)) if module.mixes_advantages else ()
            mixed.append(
                module.mix(values[..., action], obs["state"][:, 0], obs["alive"][:, 0], *choice)
            )
    return torch.cat(mixed, -1).numpy()


@pytest.mark.parametrize(
    "settings",
    [
        {"mixer": "qmix"},
        pytest.param({"mixer": "qmix", "double_q": False}, marks=LONG),
        pytest.param({"mixer": "vdn", "td_lambda": 0.5}, marks=pytest.mark.learning),
        pytest.param({"mixer": "qplex"}, marks=pytest.mark.learning),
        pytest.param({"mixer": "none"}, marks=LONG),
    ],
    ids=str,
)
def test_a_forbidden_action_is_neither_bootstrapped_nor_taken(settings: Any) -> None:
    learner = learn(NOT_2, **settings)
    values = team_values(learner)
    np.testing.assert_allclose(values, [[1, 5, 0], [1, 1, 10]], atol=0.3)

    module = learner.module["team"]
    x = SPEC.observe({"a": X_OR_Y}, {"a": NOT_2})
    rows = {key: torch.from_numpy(np.stack([value] * 500)) for key, value in x.items()}
    greedy = module.forward_inference({Columns.OBS: rows})[Columns.ACTIONS]
    assert 2 not in greedy
    explored = module.forward_exploration({Columns.OBS: rows}, t=0)[Columns.ACTIONS]
    assert set(explored.flatten().tolist()) == {0, 1}


def test_the_forbidden_action_would_be_worth_ten() -> None:
    """What the test above would find if masks were ignored."""
    assert team_values(learn(ALL, mixer="vdn"))[0, 0] == pytest.approx(10.0, abs=0.3)
