from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from muxrl.servers.algorithms.qmix import QMIXConfig, TeamSpec
from muxrl.servers.algorithms.qmix.rl_module import INPUTS, Q_VALUES, QMIXTorchRLModule
from muxrl.servers.gymnasium_spaces import spaces_of


def make_module(spec: TeamSpec, inference_only: bool = False, **settings: Any) -> QMIXTorchRLModule:
    config = QMIXConfig().training(**{"epsilon": 0.0, **settings})
    observed, acted = spaces_of(spec)
    return QMIXTorchRLModule(
        observation_space=observed,
        action_space=acted,
        inference_only=inference_only,
        model_config=config.model_config,
    )


def observe(spec: TeamSpec, rows: int, rng: np.random.Generator, **kwargs: Any) -> Any:
    """``[rows, ...]`` tensors; member b may choose actions 1 and 3 only."""
    seen = [
        spec.observe(
            {"a": rng.normal(size=3), "b": rng.normal(size=2)}, {"b": [0, 1, 0, 1]}, **kwargs
        )
        for _ in range(rows)
    ]
    return {key: torch.from_numpy(np.stack([s[key] for s in seen])) for key in seen[0]}


def batch_of(module: QMIXTorchRLModule, obs: Any) -> dict[str, Any]:
    batch = {Columns.OBS: obs}
    if module.is_stateful():
        state = module.get_initial_state()["h"].expand(len(obs["obs"]), -1, -1)
        batch[Columns.STATE_IN] = {"h": state}
    return batch


@pytest.mark.parametrize("agent", ["gru", "mlp"])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_actions_are_available_ones(team_of_two: TeamSpec, agent: str, epsilon: float) -> None:
    module = make_module(team_of_two, agent=agent, epsilon=epsilon)
    rng = np.random.default_rng(0)
    batch = batch_of(module, observe(team_of_two, 200, rng))
    for out in (module.forward_exploration(batch, t=0), module.forward_inference(batch)):
        actions = out[Columns.ACTIONS]
        assert (actions.shape, actions.dtype) == ((200, 2), torch.int64)
        assert set(actions[:, 0].tolist()) <= {0, 1}
        assert set(actions[:, 1].tolist()) <= {1, 3}


def test_an_absent_members_action_is_zero(team_of_two: TeamSpec) -> None:
    module = make_module(team_of_two, epsilon=1.0)
    seen = team_of_two.observe({"a": np.ones(3)})
    obs = {key: torch.from_numpy(value)[None] for key, value in seen.items()}
    for _ in range(20):
        assert module.forward_exploration(batch_of(module, obs), t=0)["actions"][0, 1] == 0


def test_exploration_is_uniform_and_each_member_draws_for_itself(team_of_two: TeamSpec) -> None:
    module = make_module(team_of_two, agent="mlp", epsilon=1.0)
    rows = 8000
    seen = observe(team_of_two, rows, np.random.default_rng(0))
    in_rllib = module.forward_exploration(batch_of(module, seen), t=0)[Columns.ACTIONS].numpy()
    arrays = {key: value.numpy() for key, value in seen.items()}
    served, _ = module.act_in_numpy(arrays, None, 0, np.random.default_rng(0))
    for actions in (in_rllib, served):
        pairs, counts = np.unique(actions, axis=0, return_counts=True)
        assert pairs.tolist() == [[0, 1], [0, 3], [1, 1], [1, 3]]
        assert np.abs(counts / rows - 0.25).max() < 0.03


def test_epsilon_is_the_share_of_random_draws(team_of_two: TeamSpec) -> None:
    module = make_module(team_of_two, agent="mlp", epsilon=0.4)
    seen = team_of_two.observe({"a": np.ones(3), "b": np.ones(2)})
    obs = {key: torch.from_numpy(np.stack([v] * 8000)) for key, v in seen.items()}
    greedy = module.forward_inference(batch_of(module, obs))[Columns.ACTIONS]
    explored = module.forward_exploration(batch_of(module, obs), t=0)[Columns.ACTIONS]
    differs = (greedy != explored).float().mean(0)
    # A random draw is the greedy action with probability 1/2 for a, and 1/4 for b.
    assert differs.tolist() == pytest.approx([0.2, 0.3], abs=0.03)


def test_epsilon_follows_its_schedule(team_of_two: TeamSpec) -> None:
    module = make_module(team_of_two, agent="mlp", epsilon=QMIXConfig().epsilon)
    batch = batch_of(module, observe(team_of_two, 1, np.random.default_rng(0)))
    for t, expected in [(0, 1.0), (25_000, 0.525), (50_000, 0.05), (10**6, 0.05)]:
        module.forward_exploration(batch, t=t)
        assert float(module.epsilon_schedule.get_current_value()) == pytest.approx(expected)


def test_steps_sequences_and_a_time_axis_agree(team_of_two: TeamSpec) -> None:
    """A server passes no time axis, RLlib's env runner T = 1, the learner whole episodes."""
    module = make_module(team_of_two)
    rng = np.random.default_rng(0)
    steps = [observe(team_of_two, 4, rng, last_actions={"a": 1}) for _ in range(5)]
    episode = {key: torch.stack([s[key] for s in steps], 1) for key in steps[0]}
    values = module.forward_train({Columns.OBS: episode})["q_values"]
    assert values.shape == (4, 5, 2, 4)
    greedy = values.masked_fill(episode["action_mask"] == 0, -torch.inf).argmax(-1)

    plain = with_time = batch_of(module, steps[0])[Columns.STATE_IN]
    for t, obs in enumerate(steps):
        out = module.forward_inference({Columns.OBS: obs, Columns.STATE_IN: plain})
        plain = out[Columns.STATE_OUT]
        assert plain["h"].shape == (4, 2, 64)
        torch.testing.assert_close(out[Columns.ACTIONS], greedy[:, t])

        timed = {key: value[:, None] for key, value in obs.items()}
        out = module.forward_exploration({Columns.OBS: timed, Columns.STATE_IN: with_time}, t=0)
        with_time = out[Columns.STATE_OUT]
        torch.testing.assert_close(out[Columns.ACTIONS], greedy[:, t : t + 1])
        torch.testing.assert_close(with_time["h"], plain["h"])


@pytest.mark.parametrize("agent", ["gru", "mlp"])
@pytest.mark.parametrize("obs_last_action", [False, True])
@pytest.mark.parametrize("obs_agent_id", [False, True])
def test_acting_in_numpy_is_the_network(
    team_of_two: TeamSpec, agent: str, obs_last_action: bool, obs_agent_id: bool
) -> None:
    module = make_module(
        team_of_two, agent=agent, obs_last_action=obs_last_action, obs_agent_id=obs_agent_id
    )
    rng = np.random.default_rng(0)
    for last_actions in ({}, {"a": 1}, {"a": 0, "b": 3}):
        obs = observe(team_of_two, 5, rng, last_actions=last_actions)
        h = 3 * torch.randn(5, 2, 64) if agent == "gru" else None
        values, after = module.step_in_numpy(as_numpy(obs), None if h is None else h.numpy())
        expected, expected_after = module._step_in_torch(obs, h)
        np.testing.assert_allclose(values, expected[:, 0], rtol=1e-4, atol=1e-6)
        if h is not None:
            np.testing.assert_allclose(after, expected_after, rtol=1e-4, atol=1e-6)


def as_numpy(obs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {key: value.numpy() for key, value in obs.items()}


def test_acting_follows_new_weights_and_a_moved_network(team_of_two: TeamSpec) -> None:
    module, other = make_module(team_of_two), make_module(team_of_two)
    obs = observe(team_of_two, 5, np.random.default_rng(0))
    h = batch_of(module, obs)[Columns.STATE_IN]["h"].numpy()
    obs = as_numpy(obs)
    before = module.step_in_numpy(obs, h)[0]
    module.set_state(other.get_state())
    np.testing.assert_array_equal(module.step_in_numpy(obs, h)[0], other.step_in_numpy(obs, h)[0])
    assert (before != other.step_in_numpy(obs, h)[0]).any()

    module.agent.fc_in.weight = torch.nn.Parameter(torch.zeros_like(module.agent.fc_in.weight))
    module.agent.fc_out.weight = torch.nn.Parameter(torch.zeros_like(module.agent.fc_out.weight))
    np.testing.assert_array_equal(
        module.step_in_numpy(obs, h)[0],
        np.broadcast_to(module.agent.fc_out.bias.detach(), (5, 2, 4)),
    )


def test_the_inputs_are_observation_last_action_and_id(team_of_two: TeamSpec) -> None:
    steps = [
        team_of_two.observe({"a": [1, 2, 3], "b": [4, 5]}, last_actions={"b": 2}),
        team_of_two.observe({"b": [6, 7]}),
    ]
    obs = {key: torch.from_numpy(np.stack([s[key] for s in steps]))[None] for key in steps[0]}
    inputs = make_module(team_of_two)._inputs_of(obs)
    assert inputs.tolist() == [  # time first
        [[[1, 2, 3, 0, 0, 0, 0, 1, 0], [4, 5, 0, 0, 0, 1, 0, 0, 1]]],
        [[[0, 0, 0, 0, 0, 0, 0, 1, 0], [6, 7, 0, 0, 0, 0, 0, 0, 1]]],
    ]
    bare = make_module(team_of_two, obs_agent_id=False, obs_last_action=False)
    assert bare._inputs_of(obs).tolist() == [[[[1, 2, 3], [4, 5, 0]]], [[[0, 0, 0], [6, 7, 0]]]]


def test_the_target_network_reuses_given_inputs(team_of_two: TeamSpec) -> None:
    module = make_module(team_of_two)
    module.make_target_networks()
    rng = np.random.default_rng(0)
    steps = [observe(team_of_two, 4, rng) for _ in range(3)]
    batch = {Columns.OBS: {key: torch.stack([s[key] for s in steps], 1) for key in steps[0]}}
    out = module.forward_train(batch)
    alone, shared = module.forward_target(batch), module.forward_target(batch, out[INPUTS])
    torch.testing.assert_close(alone[Q_VALUES], shared[Q_VALUES])
    # A fresh copy, so the two networks agree.
    torch.testing.assert_close(alone[Q_VALUES], out[Q_VALUES])


def test_a_gru_is_called_to_train_where_it_learns(
    team_of_two: TeamSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU its gradient is an error otherwise: cuDNN's."""
    called: list[bool] = []
    cell = torch.gru

    def seen(x: torch.Tensor, *others: Any) -> Any:
        called.append(others[5])
        return cell(x, *others)

    monkeypatch.setattr(torch, "gru", seen)
    module = make_module(team_of_two, agent="gru")
    module.make_target_networks()
    rng = np.random.default_rng(0)
    obs = observe(team_of_two, 4, rng)
    batch = {Columns.OBS: {key: torch.stack([part, part], 1) for key, part in obs.items()}}
    module.forward_train(batch)
    module.forward_target(batch)
    assert called == [True, False]


def test_the_inference_copy_holds_the_agent_network_only(team_of_two: TeamSpec) -> None:
    full = make_module(team_of_two)
    full.make_target_networks()
    copy = make_module(team_of_two, inference_only=True)
    state = full.get_state(inference_only=True)
    assert set(state) == set(copy.get_state())
    assert all(name.startswith("agent.") for name in state)
    copy.set_state(state)
    batch = batch_of(full, observe(team_of_two, 8, np.random.default_rng(0)))
    assert torch.equal(
        full.forward_inference(batch)["actions"], copy.forward_inference(batch)["actions"]
    )


def test_it_works_in_inference_mode(team_of_two: TeamSpec) -> None:
    module = make_module(team_of_two, epsilon=0.5)
    with torch.inference_mode():
        batch = batch_of(module, observe(team_of_two, 1, np.random.default_rng(0)))
        assert module.forward_exploration(batch, t=7)["actions"].shape == (1, 2)


def test_spaces_that_are_not_a_teams_are_refused() -> None:
    import gymnasium

    with pytest.raises(ValueError, match="are the agents in a group"):
        QMIXTorchRLModule(
            observation_space=gymnasium.spaces.Box(-1, 1, (3,)),
            action_space=gymnasium.spaces.Discrete(2),
            model_config=QMIXConfig().model_config,
        )
