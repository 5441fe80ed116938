from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from tests.servers.algorithms.qmix.two_step import AGENTS, TwoStepGame

from muxrl.servers.agents.teams import TeamProblem, TeamSpec, team_reward
from muxrl.servers.algorithms.qmix.team_env import TeamEnv
from muxrl.servers.algorithms.replay.episodes import EpisodeReplay
from muxrl.servers.rllib.episodes import trajectory_of

A, B = np.array([0.1, 0.2, 0.3], np.float32), np.array([0.4, 0.5], np.float32)


def test_members_are_padded_to_the_largest(team_of_two: TeamSpec) -> None:
    assert (team_of_two.obs_dim, team_of_two.num_actions, team_of_two.state_dim) == (3, 4, 6)
    seen = team_of_two.observe({"a": A, "b": B}, last_actions={"b": 3})
    np.testing.assert_array_equal(seen["obs"], np.array([A, [0.4, 0.5, 0.0]], np.float32))
    np.testing.assert_array_equal(seen["state"], seen["obs"].reshape(-1))
    np.testing.assert_array_equal(seen["action_mask"], [[1, 1, 0, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(seen["alive"], [1, 1])
    np.testing.assert_array_equal(seen["last_action"], [-1, 3])
    assert team_of_two.observation_space.contains(seen)
    assert team_of_two.action_space == spaces.MultiDiscrete([4, 4])


def test_an_absent_member_is_a_zero_row_with_action_zero_only(team_of_two: TeamSpec) -> None:
    seen = team_of_two.observe({"b": B, "stranger": B}, last_actions={"a": 1, "b": 2})
    np.testing.assert_array_equal(seen["obs"][0], 0)
    np.testing.assert_array_equal(seen["action_mask"][0], [1, 0, 0, 0])
    np.testing.assert_array_equal(seen["alive"], [0, 1])
    np.testing.assert_array_equal(seen["last_action"], [-1, 2])
    assert team_of_two.observation_space.contains(seen)
    assert team_of_two.observation_space.contains(team_of_two.observe({}))


def test_masks_are_padded_and_without_one_all_actions_are_available(team_of_two: TeamSpec) -> None:
    seen = team_of_two.observe({"a": A, "b": B}, {"b": [0, 1, 0, 1]})
    np.testing.assert_array_equal(seen["action_mask"], [[1, 1, 0, 0], [0, 1, 0, 1]])


def test_observations_share_no_memory(team_of_two: TeamSpec) -> None:
    first = team_of_two.observe({"a": A, "b": B})
    second = team_of_two.observe({"a": A, "b": B})
    for value in first.values():
        value.fill(7)
    assert not any((value == 7).any() for value in second.values())
    np.testing.assert_array_equal(team_of_two.observe({})["action_mask"], [[1, 0, 0, 0]] * 2)


def test_a_state_of_its_own() -> None:
    box, act = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)
    spec = TeamSpec(("a",), {"a": box}, {"a": act}, state_size=2)
    seen = spec.observe({"a": [0.5]}, state=[1, 2])
    np.testing.assert_array_equal(seen["state"], np.array([1, 2], np.float32))
    with pytest.raises(TeamProblem, match="needs a state of 2 numbers"):
        spec.observe({"a": [0.5]})
    with pytest.raises(TeamProblem, match=r"the state has the shape \[3\], state_size is 2"):
        spec.observe({"a": [0.5]}, state=[1, 2, 3])


def test_observations_side_by_side_may_mark_departed_members(team_of_two: TeamSpec) -> None:
    spec = replace(team_of_two, marks_departed=True)
    np.testing.assert_array_equal(
        spec.observe({"b": B}, departed={"a", "stranger"})["state"],
        [*spec.observe({"b": B})["obs"].ravel(), 1, 0],
    )
    everybody = spec.observe({"a": A, "b": B})
    np.testing.assert_array_equal(everybody["state"][-2:], [0, 0])
    assert spec.observation_space.contains(everybody)


def test_split_returns_the_actions_of_acting_members(team_of_two: TeamSpec) -> None:
    split = team_of_two.split(np.array([1, 3]), ["b"])
    assert split == {"b": 3}
    assert type(split["b"]) is int
    with pytest.raises(TeamProblem, match="3 actions came for the 2 members"):
        team_of_two.split([0, 0, 0], ["a"])


@pytest.mark.parametrize(
    ("observations", "masks", "message"),
    [
        ({"a": B}, None, r"'a' observed the shape \[2\], its space says \[3\]"),
        ({"a": np.float32(1)}, None, r"'a' observed the shape \[\]"),
        ({"a": A}, {"a": [1]}, r"mask of agent 'a' has the shape \[1\], it has 2 actions"),
        ({"a": A}, {"a": [0, 0]}, "mask of agent 'a' forbids every action"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    team_of_two: TeamSpec, observations: Any, masks: Any, message: str
) -> None:
    with pytest.raises(TeamProblem, match=message):
        team_of_two.observe(observations, masks)


def test_spaces_that_cannot_form_a_team() -> None:
    box, act = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    with pytest.raises(
        TeamProblem, match=r"action space Box.* of agent 'a'.*one value per discrete action"
    ):
        TeamSpec(("a",), {"a": box}, {"a": box})
    with pytest.raises(TeamProblem, match=r"observation space .* one-dimensional Box"):
        TeamSpec(("a",), {"a": act}, {"a": act})
    with pytest.raises(TeamProblem, match="'b' of the team has no observation space"):
        TeamSpec(("a", "b"), {"a": box}, {"a": act})
    with pytest.raises(TeamProblem, match="names a member twice"):
        TeamSpec(("a", "a"), {"a": box}, {"a": act})


def test_team_reward() -> None:
    assert team_reward({"a": 3.0, "b": 1.5}, "sum", 3) == 4.5
    assert team_reward({"a": 3.0, "b": 1.5}, "mean", 3) == 1.5
    assert team_reward({}, "sum", 3) == 0.0
    with pytest.raises(TeamProblem):
        team_reward({}, "max", 3)  # type: ignore[arg-type]


class _Scripted(MultiAgentEnv):
    """An environment that replays what each step returns."""

    def __init__(self, agents: str, script: list[Any]) -> None:
        self.agents = self.possible_agents = list(agents)
        self.observation_spaces = {a: spaces.Box(0, 9, (1,), np.float32) for a in agents}
        self.action_spaces = {a: spaces.Discrete(3) for a in agents}
        self.script, self.actions = script, []  # type: ignore[var-annotated]
        super().__init__()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._steps = iter(self.script)
        return self._see(next(self._steps)), {}

    def step(self, action_dict: Any) -> Any:
        self.actions.append(dict(action_dict))
        agents, rewards, terminateds, truncateds = next(self._steps)
        return self._see(agents), rewards, terminateds, truncateds, {}

    def _see(self, agents: str) -> dict[str, np.ndarray]:
        return {a: np.ones(1, np.float32) for a in agents}


GO_ON: dict[str, bool] = {"__all__": False}
END: dict[str, bool] = {"__all__": True}


def test_team_env_sends_actions_of_acting_members_and_sums_rewards() -> None:
    env = _Scripted(
        "abc",
        [
            "ac",
            ("ab", {"a": 1.0, "b": 2.0, "c": 4.0}, GO_ON, GO_ON),
            ("b", {"a": 1.0}, {"a": True, "__all__": False}, GO_ON),
            ("b", {"b": 1.0}, END, GO_ON),
        ],
    )
    teams = TeamEnv(env, {"t": ["a", "b"]}, reward="mean", marks_departed=True)
    assert teams.possible_agents == ["t", "c"]
    observations, _ = teams.reset()
    np.testing.assert_array_equal(observations["t"]["alive"], [1, 0])

    observations, rewards, terminateds, *_ = teams.step({"t": np.array([2, 1]), "c": 0})
    assert env.actions[-1] == {"a": 2, "c": 0}
    assert rewards == {"t": 1.5, "c": 4.0}
    assert terminateds == GO_ON
    np.testing.assert_array_equal(observations["t"]["last_action"], [2, -1])

    observations, _, terminateds, *_ = teams.step({"t": np.array([0, 1])})
    assert env.actions[-1] == {"a": 0, "b": 1}
    np.testing.assert_array_equal(observations["t"]["alive"], [0, 1])
    np.testing.assert_array_equal(observations["t"]["state"], [0, 1, 1, 0])
    assert terminateds == GO_ON, "a team with a member left goes on"

    observations, rewards, terminateds, truncateds, _ = teams.step({"t": np.array([0, 2])})
    assert env.actions[-1] == {"b": 2}
    assert (terminateds, truncateds) == (END, GO_ON)
    assert "t" in observations, "RLlib needs the observation after the last action"


def test_truncation_sets_all_only_and_observes_members_for_the_bootstrap() -> None:
    truncated = {"a": True, "b": True, "__all__": True}
    env = _Scripted("ab", ["ab", ("ab", {}, {"a": False, "b": False, "__all__": False}, truncated)])
    teams = TeamEnv(env, {"t": ["a", "b"]})
    teams.reset()
    observations, _, terminateds, truncateds, _ = teams.step({"t": [0, 0]})
    assert (terminateds, truncateds) == (GO_ON, END)
    np.testing.assert_array_equal(observations["t"]["alive"], [1, 1])


def test_a_team_ends_with_its_last_member_while_the_others_go_on() -> None:
    env = _Scripted(
        "abc",
        [
            "abc",
            ("abc", {}, {"a": True, "__all__": False}, GO_ON),
            ("bc", {}, GO_ON, {"b": True, "__all__": False}),
            ("c", {"a": 9.0, "c": 1.0}, GO_ON, GO_ON),
        ],
    )
    teams = TeamEnv(env, {"t": ["a", "b"]})
    teams.reset()
    teams.step({"t": [0, 0], "c": 0})
    observations, _, terminateds, truncateds, _ = teams.step({"t": [0, 0], "c": 0})
    assert (terminateds, truncateds) == (GO_ON, {"t": True, "__all__": False})
    np.testing.assert_array_equal(observations["t"]["alive"], [0, 1])
    assert teams.agents == ["c"]
    observations, rewards, *_ = teams.step({"c": 0})
    assert set(observations) == {"c"}
    assert rewards == {"c": 1.0}, "a reward after the team's end has no place"


def recorded(teams: TeamEnv) -> MultiAgentEpisode:
    """Returns the episode that RLlib's env runner records when all agents choose action 0."""
    episode = MultiAgentEpisode(
        observation_space=teams.observation_spaces,
        action_space=teams.action_spaces,
        agent_to_module_mapping_fn=lambda *args, **kwargs: "m",
    )
    observations, infos = teams.reset()
    episode.add_env_reset(observations=observations, infos=infos)
    while not episode.is_done:
        nothing = {
            a: np.zeros(teams.action_spaces[a].shape, np.int64) for a in episode.get_agents_to_act()
        }
        observations, rewards, terminateds, truncateds, infos = teams.step(nothing)
        episode.add_env_step(
            observations,
            nothing,
            rewards,
            infos,
            terminateds=terminateds,
            truncateds=truncateds,
        )
    # Else RLlib begins a new episode in an environment that it has not reset.
    assert terminateds["__all__"] or truncateds["__all__"]
    return episode


def parallel(ends: list[tuple[str, str]]) -> list[Any]:
    """The script of agents a and b as RLlib's `ParallelPettingZooEnv` tells it.

    Args:
        ends: for each step who terminates in it and who is truncated.
    """
    live, script = "ab", ["ab"]
    for step in ends:
        flags: list[dict[str, bool]] = [{a: a in done for a in live} for done in step]
        for told in flags:
            told["__all__"] = all(told.values())
        script.append((live, dict.fromkeys(live, 1.0), *flags))  # type: ignore[arg-type]
        live = "".join(a for a in live if a not in "".join(step))
    return script


@pytest.mark.parametrize(
    ("groups", "ends", "terminated", "truncated"),
    [
        ({"t": "ab"}, [("a", "b")], "", "t"),
        ({"t": "ab"}, [("a", ""), ("", "b")], "", "t"),
        ({"x": "a", "y": "b"}, [("a", "b")], "x", "y"),
        ({"x": "a", "y": "b"}, [("a", ""), ("", "b")], "x", "y"),
        ({"x": "a", "y": "b"}, [("", "a"), ("b", "")], "y", "x"),
        ({"t": "a"}, [("b", "a")], "b", "t"),
        ({"t": "a"}, [("a", "b")], "t", "b"),
        ({"t": "a"}, [("a", "a"), ("b", "")], "tb", ""),
    ],
)
def test_rllib_bootstraps_truncated_teams_only(
    groups: dict[str, str], ends: list[tuple[str, str]], terminated: str, truncated: str
) -> None:
    teams = TeamEnv(_Scripted("ab", parallel(ends)), groups)
    singles = recorded(teams).agent_episodes
    # Learners look at `is_terminated`, whatever else is set.
    assert {a for a, single in singles.items() if single.is_terminated} == set(terminated)
    assert {a for a, single in singles.items() if not single.is_terminated} == set(truncated)
    assert all(singles[a].is_truncated for a in truncated)
    for team_id in groups:
        replay = EpisodeReplay(1)
        replay.add(trajectory_of(singles[team_id].to_numpy()))
        assert bool(replay.sample(1)["terminateds"][0, -1]) == (team_id in terminated)


def test_a_team_with_a_terminated_and_a_truncated_member() -> None:
    terminated, truncated = {"a": True, "__all__": False}, {"b": True, "__all__": False}
    teams = TeamEnv(_Scripted("ab", ["ab", ("ab", {}, terminated, truncated)]), {"t": ["a", "b"]})
    teams.reset()
    observations, _, terminateds, truncateds, _ = teams.step({"t": [0, 0]})
    assert (terminateds, truncateds) == (GO_ON, END)
    np.testing.assert_array_equal(observations["t"]["alive"], [0, 1])


def test_a_team_goes_on_while_an_agent_that_was_seen_is_left() -> None:
    truncated = {"a": True, "__all__": False}
    script = ["ab", ("a", {}, GO_ON, truncated), ("b", {}, GO_ON, GO_ON)]
    teams = TeamEnv(_Scripted("ab", script), {"t": ["a"]})
    teams.reset()
    _, _, _, truncateds, _ = teams.step({"t": [0], "b": 0})
    assert truncateds == {"t": True, "__all__": False}


def test_rllib_needs_observations_of_terminated_agents_beside_a_truncation() -> None:
    flags = {"b": True, "__all__": False}, {"a": True, "__all__": False}
    teams = TeamEnv(_Scripted("ab", ["ab", ("a", {}, *flags)]), {"t": ["a"]})
    teams.reset()
    _, _, terminateds, truncateds, _ = teams.step({"t": [0], "b": 0})
    assert (terminateds, truncateds) == (flags[0], {"t": True, "__all__": False})


def test_a_team_without_acting_members_waits() -> None:
    env = _Scripted("ab", ["a", ("b", {"a": 1.0}, GO_ON, GO_ON)])
    teams = TeamEnv(env, {"t": ["a"]})
    teams.reset()
    observations, rewards, *_ = teams.step({"t": [1]})
    assert set(observations) == {"b"}
    assert rewards == {"t": 1.0}


def test_masks_and_a_state_from_the_environment() -> None:
    class Masked(_Scripted):
        def __init__(self) -> None:
            super().__init__("a", ["a"])
            self.observation_spaces = {
                "a": spaces.Dict(
                    observation=spaces.Box(0, 1, (1,), np.float32),
                    action_mask=spaces.MultiBinary(3),
                )
            }

        def _see(self, agents: str) -> Any:
            return {a: {"observation": np.ones(1), "action_mask": [0, 1, 1]} for a in agents}

    teams = TeamEnv(Masked(), {"t": ["a"]}, state=lambda env: [5.0, 6.0], state_size=2)
    observations, _ = teams.reset()
    np.testing.assert_array_equal(observations["t"]["action_mask"], [[0, 1, 1]])
    np.testing.assert_array_equal(observations["t"]["state"], [5, 6])
    assert teams.get_observation_space("t").contains(observations["t"])


class _Told(_Scripted):
    """Agents observe what the script says, and a global state of the same numbers for all."""

    def __init__(self, agents: str, script: list[Any], own: spaces.Space, **parts: Any) -> None:
        super().__init__(agents, script)
        self.own = own
        space = spaces.Dict(obs=own, state=spaces.MultiDiscrete([3, 2]), **parts)
        self.observation_spaces = dict.fromkeys(agents, space)
        self.t = 0

    def _see(self, agents: str) -> Any:
        self.t += 1
        mask = {"action_mask": np.array([0, 1, 1], np.int8)}
        seen = {"obs": self.own.sample(), "state": np.array([self.t % 3, 1])}
        is_masked = "action_mask" in next(iter(self.observation_spaces.values())).spaces
        return dict.fromkeys(agents, seen | mask if is_masked else seen)


@pytest.mark.parametrize("parts", [{}, {"action_mask": spaces.MultiBinary(3)}])
def test_a_state_that_members_observe_is_the_mixers(parts: Any) -> None:
    env = _Told("ab", ["a", ("b", {}, GO_ON, GO_ON)], spaces.Box(0, 1, (2,), np.float32), **parts)
    teams = TeamEnv(env, {"t": ["a", "b"]})
    assert teams.team("t").state_dim == 5
    assert teams.team("t").obs_dim == 2
    first, _ = teams.reset()
    second, *_ = teams.step({"t": [1, 1]})
    assert first["t"]["state"].tolist() == [0, 1, 0, 0, 1]
    assert second["t"]["state"].tolist() == [0, 0, 1, 0, 1]
    assert teams.get_observation_space("t").contains(first["t"])
    own = [0, 1, 1] if parts else [1, 1, 1]
    assert first["t"]["action_mask"].tolist() == [own, [1, 0, 0]]


def test_the_environments_state_takes_precedence_over_an_observed_one() -> None:
    env = _Told("a", ["a"], spaces.Box(0, 1, (2,), np.float32))
    teams = TeamEnv(env, {"t": ["a"]}, state=lambda env: [4.0], state_size=1)
    observations, _ = teams.reset()
    assert observations["t"]["state"].tolist() == [4]


def test_observations_of_other_kinds_are_flattened() -> None:
    env = _Told("a", ["a"], spaces.MultiDiscrete([2, 3]), extra=spaces.Discrete(2))
    teams = TeamEnv(env, {"t": ["a"]})
    assert teams.team("t").obs_dim == 2 + 3 + 2

    plain = _Scripted("a", ["a"])
    plain.observation_spaces = {"a": spaces.Discrete(4)}
    plain._see = lambda agents: {"a": 2}  # type: ignore[method-assign, assignment]
    observations, _ = TeamEnv(plain, {"t": ["a"]}).reset()
    assert observations["t"]["obs"].tolist() == [[0, 0, 1, 0]]


def test_a_state_that_only_some_members_observe_is_refused() -> None:
    env = _Told("ab", ["ab"], spaces.Box(0, 1, (2,), np.float32))
    env.observation_spaces["b"] = spaces.Box(0, 1, (2,), np.float32)
    with pytest.raises(TeamProblem, match="'a' observes 5 numbers of it and agent 'b' None"):
        TeamEnv(env, {"t": ["a", "b"]})


def test_the_grouped_environment_of_rllibs_own_examples() -> None:
    """The environment of RLlib's QMIX examples: ``obs`` and ENV_STATE, integer agent ids."""
    from ray.rllib.env.multi_agent_env import ENV_STATE
    from ray.rllib.examples.envs.classes.multi_agent import two_step_game

    from muxrl.servers.agents.spaces import STATE_KEY

    assert ENV_STATE == STATE_KEY == "state"
    env = two_step_game.TwoStepGame({"one_hot_state_encoding": True, "separate_state_space": True})
    env.possible_agents = [0, 1]
    teams = TeamEnv(env, {"agents": [0, 1]})  # type: ignore[dict-item]
    observations, _ = teams.reset()
    assert observations["agents"]["state"].shape == (6,)  # MultiDiscrete([2, 2, 2]), one-hot
    teams.step({"agents": np.array([1, 0])})
    _, rewards, terminateds, *_ = teams.step({"agents": np.array([1, 1])})
    assert rewards == {"agents": 8.0}
    assert terminateds == END


def test_team_env_refuses_groups_it_cannot_form() -> None:
    with pytest.raises(TeamProblem, match="'t' names agent 'x'; the environment has"):
        TeamEnv(TwoStepGame(), {"t": ["x"]})
    with pytest.raises(TeamProblem, match="'agent_0' is in the groups 't' and 'u'"):
        TeamEnv(TwoStepGame(), {"t": AGENTS, "u": ["agent_0"]})
