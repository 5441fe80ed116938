"""DQN and SAC make as many updates for many simulations as for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.servers.acted import act_on
from tests.servers.resumable import CASES, REPLAY, plan_of

from muxrl.protocol.messages import StartEpisode, Step
from muxrl.servers.episodes.trajectories import Trajectory, stack
from muxrl.servers.server import make_policies


@pytest.mark.parametrize("algorithm", ["DQN", "SAC"])
@pytest.mark.parametrize(("intensity", "updates"), [(None, 0.25), (10.0, 1.25), (5.5, 0.6875)])
def test_training_intensity_is_steps_trained_for_each_played(
    algorithm: str, intensity: float | None, updates: float
) -> None:
    """In batches of 8, every 4 env steps; RLlib rounds 5.5 to 6."""
    settings = {**REPLAY, "training_intensity": intensity}
    policies: Any = make_policies(plan_of(algorithm, settings=settings), pytest.fail)
    policies.algo.replay("shared")
    policies.algo.env_runner.num_env_steps_sampled_lifetime = 31
    policies.algo.note_batch(31)  # none is due before 32
    assert not policies.algo._updates_due
    policies.algo.env_runner.num_env_steps_sampled_lifetime = 100
    policies.algo.note_batch(40)
    assert policies.algo._updates_due == {"shared": pytest.approx(40 * updates)}


def test_an_iteration_that_a_checkpoint_cuts_is_not_longer() -> None:
    """Of 16 env steps, of which 12 were played before."""
    algos = [make_policies(plan_of("DQN"), pytest.fail).algo for _ in range(2)]  # type: ignore[attr-defined]
    steps = [0]

    def play(algo: Any, until: int) -> int:
        def step() -> None:
            steps[0] += 4
            algo.env_runner.num_env_steps_sampled_lifetime = steps[0]
            if steps[0] == until:
                raise InterruptedError

        algo.training_step = step
        algo._run_one_training_iteration()
        return steps[0]

    first, second = algos
    assert play(first, 0) == 16
    with pytest.raises(InterruptedError):
        play(first, 28)
    second.env_runner.num_env_steps_sampled_lifetime = 28
    second.set_state(first.get_state())
    assert play(second, 0) == 32
    assert play(second, 0) == 48


@pytest.mark.parametrize("algorithm", ["DQN", "SAC"])
def test_n_steps_may_be_more_than_env_steps_between_updates(algorithm: str) -> None:
    settings = {**REPLAY, "n_step": 3, "rollout_fragment_length": 1}
    policies: Any = make_policies(plan_of(algorithm, settings=settings), pytest.fail)
    assert policies.algo.config.get_rollout_fragment_length() == 1


@pytest.mark.parametrize("algorithm", ["DQN", "SAC"])
@pytest.mark.parametrize("num", [1, 6])
def test_updates_go_by_env_steps(algorithm: str, num: int) -> None:
    policies: Any = make_policies(plan_of(algorithm), pytest.fail)
    algo, store = policies.algo, policies.store
    first = algo.config.num_steps_sampled_before_learning_starts
    fragment = algo.config.get_rollout_fragment_length()
    rng, sizes, played, t = np.random.default_rng(0), [], 0, 0
    names = [f"episode-{i}" for i in range(num)]
    for name in names:
        store.accept(StartEpisode(name), 0.0)
    while played < first + 24:
        pending = [
            store.accept(
                Step(name, t, {"a": rng.random(2, np.float32)}, {"a": 1.0} if t else {}), 0.0
            )
            for name in names
        ]
        act_on(policies.acting, *pending)
        store.finish_frame()
        t, played = t + 1, played + num * bool(t)
        while policies.feed.unlearned:
            before = algo.num_env_steps
            algo.training_step()
            sizes.append(algo.num_env_steps - before)
    assert set(sizes) == {max(fragment, num)}
    num_late = sum(size for i, size in enumerate(sizes) if sum(sizes[: i + 1]) >= first)
    assert algo.learner._weights_seq_no == int(num_late * algo._updates_per_step + 1e-6)


@pytest.mark.parametrize("num_before", [0, 6])
@pytest.mark.parametrize("algorithm", ["DQN", "SAC", "MADDPG", "MASAC", "QMIX"])
def test_what_came_before_learning_begins_brings_no_updates(
    algorithm: str, num_before: int
) -> None:
    """However much comes at once: in one batch as in batches of the smallest size."""
    learning = {"DQN": 32, "SAC": 32, "MADDPG": 50, "MASAC": 50, "QMIX": 4}[algorithm]
    policies: Any = make_policies(plan_of(algorithm), pytest.fail)
    algo, (policy_id,) = policies.algo, policies.algo.config.policies

    def take(num: int) -> float:
        """Stores episodes of two steps; returns the updates that are due since the beginning."""
        observed, acted = algo.env_runner.get_spaces()[policy_id]

        def sample() -> Any:
            for _ in range(num):
                algo.env_runner.num_env_steps_sampled_lifetime += 2
                name = f"episode-{algo.num_env_steps}"
                seen, actions = (stack([s.sample() for _ in range(n)])
                                 for s, n in ((observed, 3), (acted, 2)))  # fmt: skip
                yield Trajectory(
                    name, name, policy_id, policy_id, seen, actions, np.array([0.0, 1.0]), {},
                    is_terminated=True,
                )  # fmt: skip

        algo._sample, algo.make_updates = sample, set
        algo.training_step()
        return float(algo._updates_due.get(policy_id, 0.0))

    take(num_before)
    due = take(64 - num_before)
    settings = CASES[algorithm][1]
    if algorithm in ("DQN", "SAC"):  # of 128 env steps, the fragment that ends with the 32nd, too
        assert due == (128 - learning + 4) / settings["rollout_fragment_length"]
    elif algorithm == "QMIX":
        assert due == 64 - learning + 1
    else:
        assert due == pytest.approx((128 - learning + 1) * settings["updates_per_step"])
    assert take(5) - due == pytest.approx(
        {"DQN": 10 / 4, "SAC": 10 / 4, "QMIX": 5}.get(algorithm, 10 * 0.1)
    ), "everything that comes later brings some"
