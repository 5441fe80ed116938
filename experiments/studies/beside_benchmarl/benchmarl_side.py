"""BenchMARL's side, in a separate Python environment, with its algorithms, loop and collector.

BenchMARL's PettingZoo tasks look for `pettingzoo.mpe`, which is `mpe2` now. BenchMARL documents a
custom task class as the way to bring an environment; ours makes the same mpe2 environment as the
other side. In one respect it is kinder than BenchMARL's class, which seeds all environments of a
collector alike: here each has its own seed.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from benchmarl.algorithms import MaddpgConfig, MappoConfig, MasacConfig, Qmix, QmixConfig
from benchmarl.environments.pettingzoo.common import PettingZooClass
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from tensordict import TensorDict
from torch import nn
from torchrl.envs import EnvBase, PettingZooWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type

from muxrl.experiments.studies.beside_benchmarl.measure import (
    INTERVAL_ENV_STEPS,
    Act,
    Meter,
    Observations,
    Run,
    make_env,
)
from muxrl.experiments.studies.beside_benchmarl.settings import (
    CASES,
    EPISODE_STEPS,
    NUM_ENVS,
    TWO_LAYER,
    Case,
)

_GROUP = "agent"  # torchrl's name of the team of agent_0, agent_1, agent_2

_CONFIGS = {
    "qmix": QmixConfig,
    "mappo": MappoConfig,
    "masac": MasacConfig,
    "maddpg": MaddpgConfig,
}

HYPERNET_EMBED = 64  # our default


class Spread(PettingZooClass):
    """The task in BenchMARL's terms; all but the environment is as in its SIMPLE_SPREAD."""

    def __init__(self) -> None:
        super().__init__("SIMPLE_SPREAD", {"max_cycles": EPISODE_STEPS})

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        """Makes environments whose seeds count up from 1000 * seed."""
        seeds = itertools.count(1_000 * (seed or 0))
        return lambda: PettingZooWrapper(
            env=make_env(continuous_actions),
            return_state=self.has_state(),
            categorical_actions=True,
            seed=next(seeds),
            device=device,
        )


class TwoLayerQmix(Qmix):
    """BenchMARL's QMIX with other hypernetworks for the mixer's weights: Linear - ReLU - Linear.

    BenchMARL's hypernetworks are one linear layer, as in the paper of 2018; those of PyMARL and
    muxrl have two layers.
    """

    def get_mixer(self, group: str) -> Any:
        """Returns the mixer in a TensorDictModule."""
        module = super().get_mixer(group)
        mixer = module.module
        for name in ("hyper_w_1", "hyper_w_final"):
            linear = getattr(mixer, name)
            hidden = nn.Linear(linear.in_features, HYPERNET_EMBED)
            out = nn.Linear(HYPERNET_EMBED, linear.out_features)
            setattr(mixer, name, nn.Sequential(hidden, nn.ReLU(), out))
        return module


@dataclass
class TwoLayerQmixConfig(QmixConfig):
    """QMIX's settings, for `TwoLayerQmix`."""

    @staticmethod
    def associated_class() -> type[Qmix]:
        """Returns the algorithm that these settings configure."""
        return TwoLayerQmix


_CHANGED = {TWO_LAYER: TwoLayerQmixConfig}
"""By name of a side that differs from BenchMARL in one respect: its config."""


class Watch(Callback):
    """Measures at every interval, between two iterations of BenchMARL's loop."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.meter = Meter(case.has_continuous_actions, case.is_on_policy)
        self.num_updates = 0
        self.updating_s = self._began = 0.0

    def on_batch_collected(self, batch: Any) -> None:
        """Starts the clock of learning, as the batch has been collected."""
        self._began = time.process_time()

    def on_train_step(self, batch: Any, group: str) -> None:
        """Counts a gradient step."""
        self.num_updates += 1

    def on_train_end(self, training_td: Any, group: str) -> None:
        """Stops the clock of learning; measures if a measurement is due."""
        self.updating_s += time.process_time() - self._began
        if self.experiment.total_frames % INTERVAL_ENV_STEPS == 0:
            self.measure()
            self.meter.resume()

    def measure(self) -> None:
        """Evaluates the present policy."""
        policy = self.experiment.policy
        self.meter.measure(
            self.experiment.total_frames,
            lambda is_sampled: nullcontext(_act_by(policy, is_sampled)),
        )


def train(algorithm: str, side: str, setting: str, seed: int, env_steps: int) -> Run:
    """Trains, and evaluates on the way.

    Args:
        algorithm: a key of `CASES`.
        side: `THEIRS`, or one of `_CHANGED`.
        setting: one of the algorithm's settings.
        seed: of BenchMARL and the environments.
        env_steps: budget.
    """
    torch.set_num_threads(1)
    case = CASES[algorithm]
    given = case.settings[setting]
    algorithm_config = _CONFIGS[algorithm].get_from_yaml()
    if side in _CHANGED:
        algorithm_config = _CHANGED[side](**asdict(algorithm_config))
    _tell(algorithm_config, given.algorithm)
    config = ExperimentConfig.get_from_yaml()
    fed = "on_policy" if algorithm_config.on_policy() else "off_policy"
    told = {f"{fed}_n_envs_per_worker": NUM_ENVS, "max_n_frames": env_steps, **given.experiment}
    # BenchMARL neither evaluates nor writes, which would cost it time; `Watch` measures.
    quiet = {"evaluation": False, "loggers": [], "create_json": False}
    _tell(config, {**told, **quiet, "prefer_continuous_actions": case.has_continuous_actions})
    model = MlpConfig.get_from_yaml()
    layers = dict(given.model)
    if "activation_class" in layers:
        layers["activation_class"] = getattr(nn, layers["activation_class"])
    _tell(model, layers)
    watch = Watch(case)
    with tempfile.TemporaryDirectory() as folder:
        config.save_folder = folder
        experiment = Experiment(
            task=Spread(),
            algorithm_config=algorithm_config,
            model_config=model,
            seed=seed,
            config=config,
            callbacks=[watch],
        )
        watch.measure()
        watch.meter.resume()
        experiment.run()
    return Run(
        side,
        setting,
        seed,
        {
            name: version(name)
            for name in ("benchmarl", "torchrl", "tensordict", "torch", "numpy", "mpe2")
        },
        watch.num_updates,
        experiment.total_frames,
        watch.updating_s,
        watch.meter.points,
    )


def _tell(config: Any, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        assert hasattr(config, name), name
        setattr(config, name, value)


def _act_by(policy: Any, is_sampled: bool) -> Act:
    how = ExplorationType.RANDOM if is_sampled else ExplorationType.DETERMINISTIC

    def act(observations: Observations, state: np.ndarray) -> dict[str, Any]:
        rows = torch.from_numpy(np.stack(list(observations.values()))).unsqueeze(0)
        given = TensorDict(
            {_GROUP: TensorDict({"observation": rows}, batch_size=rows.shape[:2])}, batch_size=[1]
        )
        with torch.no_grad(), set_exploration_type(how):
            actions = policy(given)[_GROUP, "action"][0]
        return dict(zip(observations, actions.numpy(), strict=True))

    return act
