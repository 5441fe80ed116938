"""RLlib 2.60 in one process: one PPO for all six agents, as its multi-agent pages set it up.

https://docs.ray.io/en/releases-2.60.0/rllib/multi-agent-envs.html. Its env runner steps all
simulations as one vector, in the learner's process, which plays and learns in turn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ray
from benchmarks.peers.simulation import TimedZeroCost
from benchmarks.peers.updates import UpdateLog, add_arguments
from benchmarks.peers.work import BATCH_ENV_STEPS, HIDDEN, MINIBATCH, PPO_EPOCHS
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env


def play(folder: Path, num_simulations: int, seed: int) -> None:
    """Plays and learns until the process is ended."""
    register_env("timed", lambda _: ParallelPettingZooEnv(TimedZeroCost(str(folder))))
    config = (
        PPOConfig()
        .environment("timed")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=num_simulations)
        .multi_agent(
            policies={"shared"}, policy_mapping_fn=lambda agent_id, *args, **kwargs: "shared"
        )
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=list(HIDDEN), vf_share_layers=False)
        )
        .training(
            train_batch_size_per_learner=BATCH_ENV_STEPS,
            minibatch_size=MINIBATCH,
            num_epochs=PPO_EPOCHS,
        )
        .debugging(seed=seed, log_sys_usage=False)
    )
    log = UpdateLog(folder / "metrics", "ppo_0")
    algo = config.build_algo()
    while True:
        result = algo.train()
        # RLlib samples and learns in turn: if the learner had rows, it had all sampled ones.
        if result["learners"]["shared"]["num_module_steps_trained"]:
            log.add(result["num_env_steps_sampled_lifetime"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    args = parser.parse_args()
    if args.servers != 1:
        parser.error(f"it is one algorithm, and --servers is {args.servers}; make it 1")
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    play(args.folder, args.simulations, args.seed)


if __name__ == "__main__":
    main()
