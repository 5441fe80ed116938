"""RLlib's algorithms learn on a policy server, with as many updates as their batches give."""

from __future__ import annotations

from typing import Any

import pytest
from ray.rllib.core.learner.torch.torch_learner import TorchLearner

from muxrl.client.env_loop import EnvLoop
from muxrl.experiments.studies.case_table import evaluated, held, train
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import serve
from muxrl.servers.config import ServerConfig

pytestmark = [pytest.mark.learning, pytest.mark.usefixtures("rllib")]

_RECENT = {"train_batch_size_per_learner": 100}
_REPLAY = {
    "num_steps_sampled_before_learning_starts": 100,
    "train_batch_size_per_learner": 16,
    "training_intensity": 4,
    "replay_buffer_config": {"capacity": 1_000},
}


@pytest.mark.parametrize(
    ("name", "settings", "num_env_steps", "least"),
    [
        ("PPO", _RECENT | {"minibatch_size": 100, "num_epochs": 3}, 700, 18),
        ("DQN", _REPLAY, 300, 20),
        ("SAC", _REPLAY, 300, 20),
        ("IMPALA", _RECENT, 700, 6),
        ("APPO", _RECENT, 700, 6),
    ],
)
def test_rllib_s_algorithms_make_their_updates(
    name: str,
    settings: dict[str, Any],
    num_env_steps: int,
    least: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_updates, apply = 0, TorchLearner.apply_gradients

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal num_updates
        num_updates += 1
        return apply(self, *args, **kwargs)

    monkeypatch.setattr(TorchLearner, "apply_gradients", counted)
    server = ServerConfig(
        f"ray.rllib.algorithms.{name.lower()}:{name}Config",
        agents=["agent_*"],
        settings=settings,
        while_learning="wait",
    )
    game = "muxrl.experiments.simulations.cue_game:CueGame"
    config = ExperimentConfig("x", simulation=SimulationConfig(game), servers={"s": server})
    with serve(config) as served:
        with served.client() as client:
            loop = EnvLoop(
                [served.simulation() for _ in range(2)], client, seeds=iter(range(10**6))
            )
            loop.run(should_stop=lambda: loop.num_env_steps >= num_env_steps)
        served.check()
        served.servers["s"].finish_training(60.0)
        assert served.servers["s"].status().weights_seq_no > 0
    assert num_updates >= least


@pytest.mark.night  # by day: test_each_algorithm.py
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rllib_s_ppo_learns_to_balance_the_pole() -> None:
    """Twice in a row, the greedy policy is above 120 steps; random actions reach 22."""
    settings = {"train_batch_size_per_learner": 1_000, "minibatch_size": 125, "num_epochs": 6}
    server = ServerConfig("RLLIB_PPO", agents=["agent"], settings={**settings, "lr": 0.001})
    config = ExperimentConfig(
        "x",
        seed=0,
        simulation=SimulationConfig("gymnasium:CartPole-v1", num_envs_per_process=4),
        servers={"s": server},
    )
    is_enough = held(lambda figures: figures["return"] > 120)
    measured = train(config, 20_000, 1_000, evaluated(20), is_enough=is_enough)
    *_, before, last = measured.values()  # the last one is measured once more after training
    assert min(before["return"], last["return"]) > 120, measured
