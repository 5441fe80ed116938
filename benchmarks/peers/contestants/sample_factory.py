"""Sample Factory 2.1.1's APPO: several policies in one multi-agent environment, asynchronously.

https://www.samplefactory.dev/07-advanced-topics/multi-policy-training/, and
``sf_examples/train_custom_multi_env.py`` in sample-factory 2.1.1. Each policy has
a process for its learner and one for its inference, and up to two processes step simulations.
Sample Factory itself decides when to wait for a learner.

Unequal: all policies have the same configuration, so the second server's A2C is an APPO with ten
epochs, too. Sample Factory draws the policy of an agent again and again; on average each policy has
as many agents as a server. Minibatches and batches count agent steps: 16 of 128, where a batch of
ours has 2,000 with three servers. By default it normalizes observations and returns, and has ELU
activations. The networks are as ours: 256x256 each for policy and value.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gymnasium
from benchmarks.peers.simulation import TimedZeroCost
from benchmarks.peers.updates import UpdateLog, add_arguments
from benchmarks.peers.work import AGENTS, BATCH_ENV_STEPS, HIDDEN, MINIBATCH, PPO_EPOCHS, Setup
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner


class Simulation(gymnasium.Env[Any, Any]):
    """The simulation with lists by agent; starts the next episode by itself.

    Args:
        name, env_config, render_mode: passed by Sample Factory to all environments.
        cfg: also passed by it; the file of steps goes into its `train_dir`.
    """

    is_multiagent = True
    num_agents = len(AGENTS)

    def __init__(self, name: str, cfg: Any, env_config: Any, render_mode: Any) -> None:
        self._simulation = TimedZeroCost(cfg.train_dir)
        self.observation_space = self._simulation.observation_space(AGENTS[0])
        self.action_space = self._simulation.action_space(AGENTS[0])

    def reset(self, **kwargs: Any) -> Any:
        """Returns observations and infos."""
        return self._lists(self._simulation.reset()[0]), [{} for _ in AGENTS]

    def step(self, actions: Any) -> Any:
        """Returns observations, rewards, terminations, truncations and infos."""
        played = self._simulation.step(dict(zip(AGENTS, actions, strict=True)))
        lists = [self._lists(one) for one in played[:4]]
        if not self._simulation.agents:
            lists[0] = self.reset()[0]
        return *lists, [{} for _ in AGENTS]

    def _lists(self, by_agent: dict[str, Any]) -> list[Any]:
        return [by_agent[agent] for agent in AGENTS]


class Watch(AlgoObserver):
    """Logs what each policy has trained on, with agent steps converted to env steps."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self._logs = [UpdateLog(folder / "metrics", server.name) for server in setup.servers]
        self._agents = len(AGENTS) // setup.num_servers

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """See `AlgoObserver.on_training_step`."""
        for policy, agent_steps in runner.env_steps.items():
            if agent_steps:
                self._logs[policy].add(agent_steps // self._agents)


def config(folder: Path, setup: Setup, seed: int) -> Any:
    """Returns the configuration of a whole run, as Sample Factory's command line makes it."""
    workers = min(2, setup.num_simulations)
    batch_agent_steps = BATCH_ENV_STEPS * len(AGENTS) // setup.num_servers
    settings = {
        "env": "timed",
        "experiment": "peers",
        "train_dir": folder,
        "seed": seed,
        "device": "cpu",
        "num_policies": setup.num_servers,
        "num_workers": workers,
        "num_envs_per_worker": setup.num_simulations // workers,
        "worker_num_splits": min(2, setup.num_simulations // workers),
        "batch_size": MINIBATCH,
        "num_batches_per_epoch": round(batch_agent_steps / MINIBATCH),
        "num_epochs": PPO_EPOCHS,
        "use_rnn": False,
        "actor_critic_share_weights": False,
    }
    told = [f"--{name}={value}" for name, value in settings.items()]
    told += ["--encoder_mlp_layers", *map(str, HIDDEN)]
    return parse_full_cfg(parse_sf_args(told)[0], told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    args = parser.parse_args()
    setup = Setup(args.servers, args.simulations)
    register_env("timed", Simulation)
    _, runner = make_runner(config(args.folder, setup, args.seed))
    runner.register_observer(Watch(args.folder, setup))
    sys.exit(runner.init() or runner.run())


if __name__ == "__main__":
    main()
