"""DQN and SAC make as many updates for many simulations as for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.servers.resumable import REPLAY, plan_of

from muxrl.protocol.messages import StartEpisode, Step
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
    policies.algo.note_batch(32)  # none is due before so many
    assert not policies.algo._updates_due
    policies.algo.env_runner.num_env_steps_sampled_lifetime = 32
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
    first, fragment = algo._learns_from_env_step, algo.config.get_rollout_fragment_length()
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
        (chosen, version) = policies.acting.act(pending)
        for step, own in zip(pending, chosen, strict=True):
            step.finish(own, version)
        store.finish_frame()
        t, played = t + 1, played + num * bool(t)
        while policies.feed.unlearned:
            before = algo.num_env_steps
            algo.training_step()
            sizes.append(algo.num_env_steps - before)
    assert set(sizes) == {max(fragment, num)}
    num_late = sum(size for i, size in enumerate(sizes) if sum(sizes[: i + 1]) >= first)
    assert algo.learner._weights_seq_no == int(num_late * algo._updates_per_step + 1e-6)
