"""The critic values of loaded policies, whose weights make them known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.export.untrained import plan_of, save
from tests.servers.scripted_store import count

from muxrl.protocol.spaces import Box, DictSpace, Discrete, Space
from muxrl.servers.agents.observing import Observing
from muxrl.servers.checkpoints.checkpoint import STATE_FILE
from muxrl.servers.checkpoints.resuming import Normalization
from muxrl.servers.checkpoints.state_file import read_state, write_state
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.fixed_policies.loaded_policies import LoadedPolicy, load_checkpoint
from muxrl.servers.lookup import find
from muxrl.servers.setting_values import AlgorithmProblem

SEES, THREE = Box((2,)), Discrete(3)
MASKED = DictSpace({"action_mask": Box((3,), "int8", 0, 1), "seen": SEES})
SEEN = np.array([0.5, -1.5], np.float32)
C = 0.1


def constant(parameter: torch.Tensor) -> torch.Tensor:
    return torch.full_like(parameter, C)


def counting(parameter: torch.Tensor) -> torch.Tensor:
    """Returns biases 1, 2, 3, ... and zero weights: any input has these outputs."""
    if parameter.dim() > 1:
        return torch.zeros_like(parameter)
    return torch.arange(1.0, 1 + parameter.numel()).reshape(parameter.shape)


def critic(*inputs: float) -> float:
    """Returns the value of a critic with eight hidden units, all of whose numbers are `C`."""
    return 8 * C * float(np.tanh(C * sum(inputs) + C)) + C


def load(plan: ServerPlan, folder: Path, put: Any = constant) -> LoadedPolicy:
    return load_checkpoint(save(plan, folder, put))["a"]


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "IMPALA", "APPO"])
def test_the_value_is_the_critic_s(tmp_path: Path, algorithm: str) -> None:
    policy = load(plan_of(algorithm, SEES, THREE), tmp_path)
    assert policy.value(SEEN) == pytest.approx(critic(0.5, -1.5), rel=1e-6)
    seen = {"action_mask": np.array([1, 0, 1], np.int8), "seen": SEEN}
    masked = load(plan_of(algorithm, MASKED, THREE), tmp_path / "masked")
    assert masked.value(seen) == pytest.approx(critic(0.5, -1.5), rel=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "allowed", "expected"),
    [
        ("DQN", [1, 1, 1], 2.0),  # 1 + A - mean(A), with A = 1, 2, 3
        ("DQN", [1, 1, 0], 1.0),
        ("SAC", [1, 1, 1], np.exp([1, 2, 3]) @ [1, 2, 3] / np.exp([1, 2, 3]).sum()),
        ("SAC", [1, 1, 0], np.exp([1, 2]) @ [1, 2] / np.exp([1, 2]).sum()),
    ],
)
def test_values_of_actions_are_those_of_available_ones(
    tmp_path: Path, algorithm: str, allowed: list[int], expected: float
) -> None:
    policy = load(plan_of(algorithm, MASKED, THREE), tmp_path, counting)
    seen = {"action_mask": np.array(allowed, np.int8), "seen": SEEN}
    assert policy.value(seen) == pytest.approx(expected, rel=1e-6)
    assert policy(seen) == sum(allowed) - 1
    if min(allowed):
        unmasked = load(plan_of(algorithm, SEES, THREE), tmp_path / "unmasked", counting)
        assert unmasked.value(SEEN) == pytest.approx(expected, rel=1e-6)


def test_a_value_is_in_the_rewards_own_units_and_of_what_the_network_reads(tmp_path: Path) -> None:
    plan = plan_of("PPO", SEES, THREE, normalize_observations=True, normalize_rewards=True)
    save(plan, tmp_path, constant)
    observing, scale = Observing(plan), RewardScale(0.9)
    find("PPO").seating.make_seats(plan, observing)
    for number in (1.0, 3.0):  # mean 2, deviation 1
        count(observing, {"a": np.full(2, number)})
    for reward in (-7.0, 7.0):
        scale.add_number(reward)
    path = tmp_path / STATE_FILE
    state = Normalization(observing, {"both": scale}).get_state()
    write_state(path, {**read_state(path), "normalization": state})
    value = load_checkpoint(tmp_path)["a"].value(SEEN)
    assert value == pytest.approx(7 * critic(0.5 - 2, -1.5 - 2), rel=1e-6)


def test_a_recurrent_critic_goes_on_with_the_episode(tmp_path: Path) -> None:
    model = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8}
    policy = load(plan_of("PPO", SEES, THREE, model=model), tmp_path)
    first = policy.value(SEEN)
    assert policy.value(SEEN) == first  # asking for a value is no action
    policy(SEEN)
    assert policy.value(SEEN) > first
    policy.reset()
    assert policy.value(SEEN) == first


def test_stacked_frames_are_read_as_in_acting(tmp_path: Path) -> None:
    policy = load(plan_of("PPO", SEES, THREE, frame_stack=2), tmp_path)
    assert policy.value(SEEN) == pytest.approx(critic(*SEEN, *SEEN), rel=1e-6)
    policy(SEEN)
    later = np.array([2.0, 1.0], np.float32)
    assert policy.value(later) == pytest.approx(critic(*SEEN, *later), rel=1e-6)


# --- central critics ------------------------------------------------------------------------


def central(algorithm: str, sees: Space = SEES, **more: Any) -> ServerPlan:
    return plan_of(algorithm, sees, THREE, is_team=True, **more)


def test_a_central_critic_reads_the_global_state(tmp_path: Path) -> None:
    plan = central("MAPPO", state_size=3)
    policy = load(plan, tmp_path)
    state = np.array([1.0, 2.0, 3.0])
    # The critic also reads the agent's id and its own observation.
    assert policy.value(SEEN, state) == pytest.approx(critic(6, 1, -1), rel=1e-6)
    for wrong, text in ((None, "got nothing"), (state[:2], r"got ndarray of \(2,\)")):
        with pytest.raises(AlgorithmProblem, match=rf"'a' also reads the global state, .*{text}"):
            policy.value(SEEN, wrong)
    assert policy(SEEN) == 0  # to act, it needs no state


@pytest.mark.parametrize("algorithm", ["MAPPO", "HAPPO"])
@pytest.mark.parametrize("late", ["refuse", "allow"])
def test_without_a_global_state_a_central_critic_reads_what_the_team_observes(
    tmp_path: Path, algorithm: str, late: Any
) -> None:
    plan = central(algorithm, late_members=late)
    policy = load(plan, tmp_path)
    with pytest.raises(
        AlgorithmProblem, match=r"'a' also reads the observations of b, .*got nothing"
    ):
        policy.value(SEEN)
    with pytest.raises(AlgorithmProblem, match=r"the observations of b, .*got dict"):
        policy.value(SEEN, {"c": SEEN})
    own = 1, -1  # its id, and once more its own observation
    assert policy.value(SEEN, {"b": 3 * SEEN}) == pytest.approx(critic(-1, -3, *own), rel=1e-6)
    assert policy.value(SEEN, {}) == pytest.approx(critic(-1, *own), rel=1e-6)


def test_a_central_critic_reads_the_state_among_the_observations(tmp_path: Path) -> None:
    policy = load(central("MAPPO", DictSpace({"own": SEES, "state": Box((3,))})), tmp_path)
    seen = {"own": SEEN, "state": np.array([1.0, 2.0, 3.0], np.float32)}
    assert policy.value(seen) == pytest.approx(critic(6, 1, -1), rel=1e-6)


def test_a_recurrent_central_critic_values_the_first_step_alone(tmp_path: Path) -> None:
    model = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8}
    policy = load(central("MAPPO", state_size=3, model=model), tmp_path)
    assert policy.value(SEEN, np.ones(3)) > 0
    policy(SEEN)
    with pytest.raises(AlgorithmProblem, match="can value only the first step"):
        policy.value(SEEN, np.ones(3))


@pytest.mark.parametrize(
    "plan",
    [
        central("QMIX", settings={"hidden_dim": 8}, model={}),
        plan_of("PPO", SEES, THREE, settings={"use_critic": False}),
        plan_of("SAC", SEES, Box((1,), "float32", -1.0, 1.0)),
        plan_of("MADDPG", SEES, Box((1,), "float32", -1.0, 1.0), is_team=True,
                settings={"hidden_dim": 8}, model={}),
    ],
    ids=lambda plan: plan.algorithm,
)  # fmt: skip
def test_algorithms_without_a_value_of_observations_are_refused(
    tmp_path: Path, plan: ServerPlan
) -> None:
    why = "no critic can value the observations of agent 'a'; critics of A2C, .*MAPPO, PPO, SAC can"
    with pytest.raises(AlgorithmProblem, match=why):
        load(plan, tmp_path).value(SEEN)


def test_a_normalised_state_is_read_as_in_training(tmp_path: Path) -> None:
    plan = central("MAPPO", state_size=3, normalize_observations=True)
    save(plan, tmp_path, constant)
    observing = Observing(plan)
    find("MAPPO").seating.make_seats(plan, observing)
    for number in (1.0, 3.0):  # mean 2, deviation 1
        count(observing, {a: np.full(2, number) for a in "ab"}, np.full(3, number))
    path = tmp_path / STATE_FILE
    state = Normalization(observing).get_state()
    write_state(path, {**read_state(path), "normalization": state})
    value = load_checkpoint(tmp_path)["a"].value(SEEN, np.array([1.0, 2.0, 3.0]))
    assert value == pytest.approx(critic(6 - 3 * 2, 1, -1 - 2 * 2), rel=1e-6)
