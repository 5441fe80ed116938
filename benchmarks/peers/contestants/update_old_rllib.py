"""One PPO update of RLlib 2.6.3: what its `PPO.training_step` does with a sampled batch.

It computes advantages (`Policy.postprocess_trajectory`), standardises them, and calls
`train_one_step`.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import ray
from benchmarks.peers.contestants.old_rllib import POLICY, algorithm_config
from benchmarks.peers.updates import update_arguments, write_updates
from benchmarks.peers.work import AGENTS, BATCH_ENV_STEPS
from ray.rllib.execution.rollout_ops import standardize_fields
from ray.rllib.execution.train_ops import train_one_step
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch, concat_samples

_STEPS = 100


def trajectories(seed: int) -> list[SampleBatch]:
    """Returns a batch of 1,000 env steps, as one sample for each agent and episode."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(BATCH_ENV_STEPS // _STEPS):
        for index in range(len(AGENTS)):
            observations = rng.uniform(-1, 1, (_STEPS + 1, 8)).astype(np.float32)
            made.append(
                SampleBatch(
                    {
                        SampleBatch.OBS: observations[:-1],
                        SampleBatch.NEXT_OBS: observations[1:],
                        SampleBatch.ACTIONS: rng.integers(5, size=_STEPS),
                        SampleBatch.REWARDS: rng.normal(size=_STEPS).astype(np.float32),
                        SampleBatch.TERMINATEDS: np.zeros(_STEPS, bool),
                        SampleBatch.TRUNCATEDS: np.arange(_STEPS) == _STEPS - 1,
                        SampleBatch.ACTION_LOGP: np.full(_STEPS, -np.log(5), np.float32),
                        SampleBatch.ACTION_DIST_INPUTS: np.zeros((_STEPS, 5), np.float32),
                        SampleBatch.VF_PREDS: np.zeros(_STEPS, np.float32),
                        SampleBatch.EPS_ID: np.full(_STEPS, number),
                        SampleBatch.AGENT_INDEX: np.full(_STEPS, index),
                    }
                )
            )
    return made


def main() -> None:
    args = update_arguments(argparse.ArgumentParser(description=__doc__.splitlines()[0]))
    ray.init(address="local", num_cpus=1, include_dashboard=False)
    algo = algorithm_config("PPO", args.seed).build()
    policy, took = algo.get_policy(POLICY), []
    for number in range(args.updates):
        sampled = trajectories(args.seed * args.updates + number)
        started = time.perf_counter()
        batch = concat_samples([policy.postprocess_trajectory(one) for one in sampled])
        whole = MultiAgentBatch({POLICY: batch}, BATCH_ENV_STEPS)
        train_one_step(algo, standardize_fields(whole, ["advantages"]))
        took.append(time.perf_counter() - started)
    write_updates(args.out, took)


if __name__ == "__main__":
    main()
