"""Real servers follow action masks: a strict game raises at the first step that ignores one."""

from __future__ import annotations

from statistics import fmean

import pytest
from tests.nights import at_night

from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.experiments.simulations.locked_doors import oracle_return, random_return
from muxrl.orchestrator.config import load_config
from muxrl.orchestrator.launch.in_process import serve

pytestmark = [pytest.mark.learning, pytest.mark.timeout(240)]

_SETTINGS = {
    "PPO": "settings={train_batch_size_per_learner: 300, minibatch_size: 150, num_epochs: 6, "
    "lr: 0.003, gamma: 0.9}",
    "PPO with an LSTM": "settings={train_batch_size_per_learner: 300, minibatch_size: 150, "
    "num_epochs: 6, lr: 0.003, gamma: 0.9}",
    "A2C": "settings={lr: 0.003, gamma: 0.9}",
    "MAPPO": "settings={train_batch_size_per_learner: 300, num_epochs: 6, lr: 0.003, gamma: 0.9}",
    "APPO": "settings={train_batch_size_per_learner: 300, lr: 0.003, gamma: 0.9}",
    "DQN": "settings={lr: 0.003, gamma: 0.9, epsilon: [[0, 1.0], [1000, 0.05]], "
    "target_network_update_freq: 200, num_steps_sampled_before_learning_starts: 300}",
    "SAC": "settings={actor_lr: 0.003, critic_lr: 0.003, alpha_lr: 0.003, gamma: 0.9, "
    "initial_alpha: 0.1, rollout_fragment_length: 4, train_batch_size: 64, "
    "num_steps_sampled_before_learning_starts: 300}",
}
# Replays learn from each step many times, and each update takes time.
_ENV_STEPS = {"DQN": 1_500, "SAC": 1_500}


_AT_NIGHT = ["PPO", "PPO with an LSTM", "A2C", "MAPPO", "SAC", "APPO"]
"""By day DQN takes the best action of a mask; SAC draws from them in test_kinds_of_actions.py."""


@pytest.mark.parametrize("name", at_night(_SETTINGS, _AT_NIGHT))
def test_no_masked_action_is_ever_taken_and_the_best_allowed_one_is_learned(name: str) -> None:
    overrides = [
        "simulation.kwargs.is_strict=true",
        "servers.s.agents=['*']",
        f"servers.s.algorithm={name.split()[0]}",
        f"servers.s.{_SETTINGS[name]}",
    ]
    if "LSTM" in name:
        overrides.append("servers.s.model={use_lstm: true, lstm_cell_size: 32, max_seq_len: 10}")
    with serve(load_config("doors", overrides)) as served, served.client() as client:
        untrained = _mean(served.evaluate(30, should_explore=True))
        loop = EnvLoop([served.simulation() for _ in range(4)], client)
        loop.run(should_stop=lambda: loop.num_env_steps >= _ENV_STEPS.get(name, 5_000))
        served.check()
        greedy, sampled = (_mean(served.evaluate(100, should_explore=e)) for e in (False, True))
    assert untrained == pytest.approx(random_return(), abs=0.6)
    assert greedy == pytest.approx(oracle_return(), abs=0.35)
    assert sampled == pytest.approx(oracle_return(), abs=0.6)


def _mean(results: list[EpisodeResult]) -> float:
    return fmean(fmean(result.returns.values()) for result in results)
