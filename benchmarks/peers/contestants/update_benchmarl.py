"""One update of BenchMARL's IPPO: its experiment, watched by a callback.

Measures the time from the sampled batch to the end of training on it, without sampling. All agents
share one policy, which is BenchMARL's default. A minibatch has env steps, each of which holds all
six agents: 21 env steps have about as many rows as a minibatch of 128 of the other systems.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.peers.updates import update_arguments, write_updates
from benchmarks.peers.work import AGENTS, BATCH_ENV_STEPS, HIDDEN, MINIBATCH, PPO_EPOCHS
from benchmarl.algorithms import IppoConfig
from benchmarl.environments.pettingzoo.common import PettingZooClass
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from torch import nn
from torchrl.envs import EnvBase, PettingZooWrapper

from muxrl.experiments.simulations.zero_cost import ZeroCost


class ZeroCostTask(PettingZooClass):
    """The simulation as a user's own task, as BenchMARL documents it."""

    def __init__(self) -> None:
        super().__init__("ZERO_COST", {"max_cycles": 100})

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        """Makes the simulation."""
        return lambda: PettingZooWrapper(
            env=ZeroCost(), return_state=False, categorical_actions=True, seed=seed, device=device
        )

    def supports_continuous_actions(self) -> bool:
        """Returns False, as actions are discrete."""
        return False

    def supports_discrete_actions(self) -> bool:
        """Returns True, as actions are discrete."""
        return True


class Watch(Callback):
    """Records how long each training takes."""

    def __init__(self) -> None:
        super().__init__()
        self.took: list[float] = []
        self._began = 0.0

    def on_batch_collected(self, batch: Any) -> None:
        """Starts the clock, as the batch has been sampled."""
        self._began = time.perf_counter()

    def on_train_end(self, training_td: Any, group: str) -> None:
        """Stops the clock, as the only group has been trained."""
        self.took.append(time.perf_counter() - self._began)


def main() -> None:
    args = update_arguments(argparse.ArgumentParser(description=__doc__.splitlines()[0]))
    torch.set_num_threads(1)
    config = ExperimentConfig.get_from_yaml()
    told = {
        "on_policy_collected_frames_per_batch": BATCH_ENV_STEPS,
        "on_policy_n_envs_per_worker": 1,
        "on_policy_n_minibatch_iters": PPO_EPOCHS,
        "on_policy_minibatch_size": MINIBATCH // len(AGENTS),
        "max_n_frames": args.updates * BATCH_ENV_STEPS,
        "evaluation": False,
        "loggers": [],
        "create_json": False,
        "prefer_continuous_actions": False,
    }
    for name, value in told.items():
        assert hasattr(config, name), name
        setattr(config, name, value)
    model = MlpConfig.get_from_yaml()
    model.num_cells, model.activation_class = list(HIDDEN), nn.Tanh
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        config.save_folder = folder
        Experiment(
            task=ZeroCostTask(),
            algorithm_config=IppoConfig.get_from_yaml(),
            model_config=model,
            critic_model_config=model,
            seed=args.seed,
            config=config,
            callbacks=[watch],
        ).run()
    write_updates(args.out, watch.took)


if __name__ == "__main__":
    main()
