"""RLlib's algorithms learn on a policy server, as often as their batches say."""

from __future__ import annotations

from typing import Any

import pytest
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.learner.torch.torch_learner import TorchLearner

from muxrl.client.env_loop import EnvLoop
from muxrl.experiments.studies.case_table import evaluated, held, train
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import serve
from muxrl.servers.config import ServerConfig

pytestmark = [pytest.mark.learning, pytest.mark.usefixtures("rllib")]


class MyPPO(PPOConfig):
    pass


class MyDQN(DQNConfig):
    pass


class MySAC(SACConfig):
    pass


class MyIMPALA(IMPALAConfig):
    pass


class MyAPPO(APPOConfig):
    pass


_REPLAY = {
    "num_steps_sampled_before_learning_starts": 100,
    "train_batch_size_per_learner": 16,
    "training_intensity": 4,
    "replay_buffer_config": {"capacity": 1_000},
}


@pytest.mark.parametrize(
    ("algorithm", "settings", "least"),
    [
        (MyPPO, {"train_batch_size_per_learner": 100, "minibatch_size": 100, "num_epochs": 3}, 18),
        (MyDQN, _REPLAY, 20),
        (MySAC, _REPLAY, 20),
        (MyIMPALA, {"train_batch_size_per_learner": 100}, 6),
        (MyAPPO, {"train_batch_size_per_learner": 100}, 6),
    ],
)
def test_it_learns(
    algorithm: type, settings: dict[str, Any], least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_updates, apply = 0, TorchLearner.apply_gradients

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal num_updates
        num_updates += 1
        return apply(self, *args, **kwargs)

    monkeypatch.setattr(TorchLearner, "apply_gradients", counted)
    server = ServerConfig(
        f"{__name__}:{algorithm.__name__}",
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
            loop.run(should_stop=lambda: loop.num_env_steps >= 700)
        served.check()
        served.servers["s"].finish_training(60.0)
        assert served.servers["s"].status().weights_seq_no > 0
    assert num_updates >= least


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("algorithm", "settings", "env_steps"),
    [
        (
            "RLLIB_PPO",
            {
                "train_batch_size_per_learner": 1_000,
                "minibatch_size": 125,
                "num_epochs": 6,
                "lr": 0.001,
            },
            20_000,
        ),
        pytest.param(
            "RLLIB_DQN",
            {
                "lr": 0.001,
                "training_intensity": 8,
                "num_steps_sampled_before_learning_starts": 500,
                "epsilon": [[0, 1.0], [2_500, 0.05]],
                "target_network_update_freq": 200,
            },
            10_000,
            marks=pytest.mark.night,  # a minute; by day MyDQN learns
        ),
    ],
)
def test_it_balances_the_pole(algorithm: str, settings: dict[str, Any], env_steps: int) -> None:
    """Twice in a row, greedily; random actions balance it for 22 steps."""
    config = ExperimentConfig(
        "x",
        seed=0,
        simulation=SimulationConfig("gymnasium:CartPole-v1", num_envs_per_process=4),
        servers={"s": ServerConfig(algorithm, agents=["agent"], settings=settings)},
    )
    is_enough = held(lambda figures: figures["return"] > 120)
    measured = train(config, env_steps, 1_000, evaluated(20), is_enough=is_enough)
    *_, before, last = measured.values()  # the last is measured again after training
    assert min(before["return"], last["return"]) > 120, measured
