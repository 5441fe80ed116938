"""Vector environments: Gymnasium's, those with dicts by agent, and those like VMAS."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from ray.rllib.env.vector.vector_multi_agent_env import VectorMultiAgentEnv
from tests.client.scripted_envs import Counting

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import (
    OnlyCopy,
    SimulationError,
    adapt_vector,
    make_simulation,
    make_vector_simulation,
)
from muxrl.client.adapters.autoreset import AutoresetEnv
from muxrl.client.env_loop import EnvLoop
from muxrl.client.first_look import look
from muxrl.client.random_policy import RandomTransport
from muxrl.protocol.spaces import Box, Discrete

HERE = __name__
ZERO_COST = "muxrl.experiments.simulations.zero_cost:ZeroCost"


def carts(num_envs: int, mode: str = "NextStep", copy: bool = True) -> Any:
    return SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1", max_episode_steps=15)] * num_envs,
        copy=copy,
        autoreset_mode=AutoresetMode(mode),
    )


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_copy_of_gymnasium_is_the_environment_by_itself(mode: str, copies: bool) -> None:
    vector = make_vector_simulation(f"{HERE}:carts", {"mode": mode, "copy": copies}, 3)
    assert vector.possible_agents == ("agent",)
    assert vector.action_spaces == {"agent": Discrete(2)}
    observed = vector.reset(seed=7)["agent"]
    alone = [gymnasium.make("CartPole-v1", max_episode_steps=15) for _ in range(3)]
    first = [env.reset(seed=7 + i)[0] for i, env in enumerate(alone)]
    assert observed.tolist() == [one.tolist() for one in first]
    open_copies, rng = {0, 1, 2}, np.random.default_rng(0)
    next_begins: set[int] = set()
    while open_copies:
        actions = rng.integers(2, size=3)
        step = vector.step({"agent": actions})
        # The observation after an end is the first one of the next episode.
        for copy in next_begins:
            assert np.abs(step.observations["agent"][copy]).max() <= 0.05
            assert step.present[copy].all()
            assert not step.terminated[copy].any()
            assert not step.truncated[copy].any()
        next_begins = set()
        for copy in sorted(open_copies):
            seen, reward, ended, cut, _ = alone[copy].step(int(actions[copy]))
            assert step.terminated[copy].tolist() == [ended]
            assert step.truncated[copy].tolist() == [cut and not ended]
            assert step.is_over[copy] == (ended or cut)
            assert step.rewards["agent"][copy] == reward
            if not (ended or cut):
                assert step.observations["agent"][copy].tolist() == seen.tolist()
                continue
            assert step.final_observations[copy]["agent"].tolist() == seen.tolist()
            open_copies.remove(copy)
            if mode == "NextStep":
                assert not step.present[copy].any()
                next_begins.add(copy)
            else:
                assert np.abs(step.observations["agent"][copy]).max() <= 0.05
    vector.close()
    vector.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_an_only_copy_keeps_what_it_has_shown(mode: str) -> None:
    kwargs = {"mode": mode, "copy": False}
    only = make_simulation(f"{HERE}:carts", kwargs, vector_env=True)
    first = only.reset(1)[0]["agent"]
    before = first.copy()
    result = only.step({"agent": 0})
    while not result.is_over:
        result = only.step({"agent": 0})
    assert first.tolist() == before.tolist()
    last = result.final_observations["agent"]
    assert np.abs(last).max() > 0.05
    before = last.copy()
    only.reset(2)
    assert last.tolist() == before.tolist()


def taxis(num_envs: int, mode: str) -> Any:
    return SyncVectorEnv(
        [lambda: gymnasium.make("Taxi-v3", max_episode_steps=9)] * num_envs,
        autoreset_mode=AutoresetMode(mode),
    )


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_masks_in_infos_are_part_of_what_each_copy_observes(mode: str) -> None:
    vector = make_vector_simulation(f"{HERE}:taxis", {"mode": mode}, 3)
    alone = [make_simulation("gymnasium:Taxi-v3", {"max_episode_steps": 9}) for _ in range(3)]
    assert vector.observation_spaces == alone[0].observation_spaces
    rows = vector.reset(seed=7)["agent"]
    seen = [one.reset(seed=7 + i)[0]["agent"] for i, one in enumerate(alone)]
    rng = np.random.default_rng(0)
    for t in range(1, 10):
        for copy, one in enumerate(seen):
            assert rows["observation"][copy] == one["observation"]
            assert rows["action_mask"][copy].tolist() == one["action_mask"].tolist()
        actions = np.array([rng.choice(np.flatnonzero(one["action_mask"])) for one in seen])
        step, rows = (step := vector.step({"agent": actions})), step.observations["agent"]
        results = [one.step({"agent": int(a)}) for one, a in zip(alone, actions, strict=True)]
        last = [one.final_observations if t == 9 else one.observations for one in results]
        seen = [one["agent"] for one in last]
    for copy, one in enumerate(seen):
        last = step.final_observations[copy]["agent"]
        assert (last["observation"], last["action_mask"].tolist()) == (
            one["observation"], one["action_mask"].tolist()
        )  # fmt: skip
    if mode != "NextStep":  # the rows are already those of the next episode
        env = gymnasium.make("Taxi-v3").unwrapped
        for state, mask in zip(rows["observation"], rows["action_mask"], strict=True):
            assert mask.tolist() == env.action_mask(int(state)).tolist()  # type: ignore[attr-defined]


def test_a_mask_stays_with_the_copy_that_is_not_reset() -> None:
    vector = adapt_vector(taxis(2, "Disabled"))
    before = vector.reset(seed=7)["agent"]
    after = vector.reset_some(np.array([True, False]), {"agent": before})["agent"]
    assert after["action_mask"][1].tolist() == before["action_mask"][1].tolist()
    only = make_simulation(f"{HERE}:taxis", {"mode": "Disabled"}, vector_env=True)
    assert only.reset(7)[0]["agent"]["action_mask"].tolist() == before["action_mask"][0].tolist()


def test_the_last_state_is_in_the_infos_of_an_env_that_has_reset() -> None:
    infos = {"final_obs": {a: np.ones((2, 1), np.float32) for a in "ab"}}
    vector = adapt_vector(Batched(2, truncations=np.array([False, True]), infos=infos))
    vector.reset(0)
    with pytest.raises(SimulationError, match=r"the infos have no 'final_state'"):
        vector.step({a: np.zeros(2, int) for a in "ab"})


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_metrics_leave_out_the_infos_of_a_reset(mode: str) -> None:
    class Counts(gymnasium.Wrapper[Any, Any, Any, Any]):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], {"n": 100.0}

        def step(self, action: Any) -> Any:
            seen, reward, _, _, _ = self.env.step(action)
            self.t = getattr(self, "t", 0) % 3 + 1
            return seen, reward, False, self.t == 3, {"n": float(self.t), "in": {"side": 2.0}}

    def copies(num: int) -> Any:
        counts = [lambda: Counts(gymnasium.make("CartPole-v1"))] * num
        return adapt_vector(SyncVectorEnv(counts, autoreset_mode=AutoresetMode(mode)))

    metrics = {"n": "sum", "in/side": "sum"}
    vector, alone = copies(2), OnlyCopy(copies(1))
    agents = {"agent": (vector.observation_spaces["agent"], vector.action_spaces["agent"])}
    for simulations in (vector, [alone]):
        found: list[Any] = []
        client = MultiplexingClient([RandomTransport.for_agents(agents)])
        loop = EnvLoop(simulations, client, metrics=metrics)
        loop.run(found.append, lambda found=found: len(found) >= 6)
        assert [(one.metrics["n"], one.metrics["in/side"]) for one in found] == [
            ({"agent": 6.0}, {"agent": 6.0})
        ] * len(found)
    hint = look(alone, metrics={**metrics, "m": "sum"}, is_whole=True).absent_metrics.pop("m")
    assert hint.startswith("; its infos have n, in/side")
    assert "_n" not in hint


def test_actions_have_the_dtype_of_their_space() -> None:
    class Strict(gymnasium.ActionWrapper[Any, Any, Any]):
        action_space = spaces.MultiDiscrete([2, 3], dtype=np.int32)

        def action(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            return int(action[0])

    env = SyncVectorEnv([lambda: Strict(gymnasium.make("CartPole-v1"))] * 2)
    vector = adapt_vector(env)
    vector.reset(0)
    vector.step({"agent": np.ones((2, 2), np.int64)})


def test_an_id_of_gymnasium_with_arrays_inside() -> None:
    vector = make_vector_simulation(
        "gymnasium:CartPole-v1", {"vectorization_mode": "vector_entry_point"}, 5
    )
    assert vector.reset(seed=1)["agent"].shape == (5, 4)
    assert vector.step({"agent": np.ones(5, np.int64)}).rewards["agent"].tolist() == [1.0] * 5


def test_an_only_copy_with_dicts_by_agent_is_the_simulation() -> None:
    one = make_simulation(ZERO_COST, {"num_steps": 6})
    only = make_simulation(f"{ZERO_COST}Vector", {"num_steps": 6}, vector_env=True)
    assert isinstance(only, OnlyCopy)
    assert one.possible_agents == only.possible_agents
    assert one.observation_spaces == only.observation_spaces
    assert one.state_size == only.state_size
    np.testing.assert_equal(only.reset()[0], one.reset()[0])
    rng = np.random.default_rng(0)
    for _ in range(6):
        np.testing.assert_equal(only.state(), one.state())
        actions = {a: int(rng.integers(5)) for a in one.possible_agents}
        mine, result = only.step(actions), one.step(actions)
        assert mine.is_over == result.is_over
        np.testing.assert_equal(mine[:5], result[:5])
    assert result.is_over
    np.testing.assert_equal(only.state(), one.state())
    look(only)


class Batched(Counting):
    """A batch that resets by itself, and a part of whose steps is replaced by something wrong."""

    def __init__(self, num_envs: int, **spoilt: Any) -> None:
        super().__init__(*[9] * num_envs, mode="SameStep")
        self.spoilt = spoilt

    def step(self, actions: Any) -> Any:
        parts = "observations", "rewards", "terminations", "truncations", "infos"
        return tuple((dict(zip(parts, super().step(actions), strict=True)) | self.spoilt).values())


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        ({"truncations": np.array([True, False])}, "no 'final_obs'"),
        ({"truncations": {"r": np.zeros(2)}}, r"truncation of \['r'\]; .* \['a', 'b'\]"),
        ({"rewards": {"a": np.zeros(3)}}, r"reward of agent 'a' .*2 numbers.*\(3,\)"),
        ({"observations": {"a": np.zeros((2, 1))}}, r"no observations of \['b'\]"),
        ({"observations": np.zeros((2, 2))}, "expected a dict by agent"),
        ({"infos": {"a": {"action_mask": np.ones((2, 9), np.int8)}}},
         r"have an 'action_mask' now.* of reset\(\), too"),
    ],
)  # fmt: skip
def test_a_wrong_part_of_a_step_of_copies_is_refused_by_name(
    spoilt: dict[str, Any], says: str
) -> None:
    vector = adapt_vector(Batched(2, **spoilt))
    vector.reset()
    with pytest.raises(SimulationError, match=says):
        vector.step({a: np.zeros(2, np.int64) for a in "ab"})


class InBuffers(Counting):
    """Writes all that it returns into the same arrays, also at a reset; draws its first
    observations."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(*[9] * num_envs)
        self.rng = np.random.default_rng()
        self.rows, self.earned = np.zeros((num_envs, 1), np.float32), np.zeros(num_envs)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self.rows[mask] = self.rng.uniform(-1.0, 0.0, (mask.sum(), 1))
        self.earned[mask] = 0.0
        return dict.fromkeys("ab", self.rows), {}

    def step(self, actions: Any) -> Any:
        self.rows[:], self.earned[:] = 0.5, 1.0
        seen, earned = (dict.fromkeys("ab", one) for one in (self.rows, self.earned))
        infos = {"a": {"n": self.earned, "tensor": torch.from_numpy(self.earned)}}
        return seen, earned, {}, np.arange(self.num_envs) == 0, infos


def test_a_reset_into_the_same_arrays_changes_no_step() -> None:
    vector = adapt_vector(InBuffers(2))
    vector.ask_options(lambda copy: {"x": copy})
    first = vector.reset(seed=3)["a"]
    # The copies share a seed and play different episodes.
    assert first[0].tolist() != first[1].tolist()
    step = vector.step({a: np.zeros(2, np.int64) for a in "ab"})
    assert [one.tolist() for one in step.final_observations[0].values()] == [[0.5]] * 2
    assert [one.tolist() for one in step.rewards.values()] == [[1.0, 1.0]] * 2
    assert [one.tolist() for one in step.infos["a"].values()] == [[1.0, 1.0]] * 2
    assert step.observations["a"][0].max() < 0.0


def of_two(num_envs: int) -> Counting:
    return Counting(9, 9)


def without_a_number() -> Counting:
    return Counting(9, 9)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (f"{HERE}:of_two", "num_envs=4, but has 2 copies"),
        (f"{HERE}:without_a_number", r"called with num_envs and the kwargs {}, but it takes \(\)"),
        (ZERO_COST, "called with num_envs.*leave out vector_env"),
    ],
)
def test_another_number_of_copies_is_refused(env: str, says: str) -> None:
    with pytest.raises(SimulationError, match=says):
        make_vector_simulation(env, {}, 4)


def test_vector_and_other_environments_are_refused_in_each_other_s_place() -> None:
    with pytest.raises(SimulationError, match=r"neither a Gymnasium VectorEnv nor"):
        adapt_vector(gymnasium.make("CartPole-v1"))
    for name in ("carts", "Vmas"):
        with pytest.raises(SimulationError, match=r"simulation\.vector_env: true.*--vector-env"):
            make_simulation(f"{HERE}:{name}", {"num_envs": 2})
    for make in (make_simulation, lambda env, kwargs: make_vector_simulation(env, kwargs, 2)):
        with pytest.raises(SimulationError, match=r"VectorMultiAgentEnv .* name the MultiA"):
            make(f"{HERE}:of_rllib", {})


def of_rllib(num_envs: int = 2) -> Any:
    return type("SyncVectorMultiAgentEnv", (VectorMultiAgentEnv,), {})()


def test_an_unknown_autoreset_mode_is_refused() -> None:
    env = carts(2)
    env.metadata["autoreset_mode"] = "later"
    with pytest.raises(SimulationError, match=r"'autoreset_mode'.*'later'.*SameStep"):
        AutoresetEnv(env)


class Vmas:
    """A stand-in for VMAS: tensors in lists, agents with names, reset by index."""

    def __init__(self, num_envs: int) -> None:
        import torch

        self.torch, self.num_envs, self.device = torch, num_envs, "cpu"
        self.terminated_truncated = False
        self.agents = [SimpleNamespace(name="red"), SimpleNamespace(name="blue")]
        box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.observation_space = spaces.Tuple([box, box])
        self.action_space = spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)])
        self.t, self.earned = torch.zeros(num_envs), torch.zeros(num_envs)

    def reset(self, seed: int | None = None) -> Any:
        self.t[:] = self.torch.arange(self.num_envs) - 1
        return self.get_from_scenario()[0]

    def reset_at(self, index: int, return_observations: bool = True) -> None:
        self.t[index] = self.earned[index] = 0

    def get_from_scenario(self, **_: bool) -> Any:
        return [[self.t[:, None].clone(), -self.t[:, None]]]

    def step(self, actions: Any) -> Any:
        assert self.terminated_truncated
        assert actions[0].dtype == self.torch.int64
        assert actions[1].shape == (self.num_envs, 2)
        self.t += 1
        self.earned[:] = actions[0]
        rewards = [self.earned, actions[1].sum(1)]
        infos = [{"t": self.t}, {}]
        return self.get_from_scenario()[0], rewards, self.t == 2, self.t == 3, infos


def test_a_simulator_like_vmas() -> None:
    vector = make_vector_simulation(f"{HERE}:Vmas", {}, 3)
    assert vector.possible_agents == ("red", "blue")
    assert vector.action_spaces["red"] == Discrete(3)
    assert isinstance(vector.action_spaces["blue"], Box)
    assert vector.reset()["blue"].tolist() == [[1.0], [0.0], [-1.0]]
    actions = {"red": np.array([0, 1, 2]), "blue": np.ones((3, 2), np.float32)}
    step = vector.step(actions)
    assert step.rewards["red"].tolist() == [0.0, 1.0, 2.0]
    assert step.rewards["blue"].tolist() == [2.0] * 3
    assert step.terminated.tolist() == [[False] * 2, [False] * 2, [True] * 2]
    assert step.is_over.tolist() == [False, False, True]
    assert step.final_observations == {2: {"red": [2.0], "blue": [-2.0]}}
    assert step.observations["red"].tolist() == [[0.0], [1.0], [0.0]]
    assert step.infos["red"]["t"].tolist() == [0.0, 1.0, 2.0]
    assert step.present.all()
