"""One PPO update: RLlib's own learner beside ours, which has the same loss and less around it.

``Box(8)``/``Discrete(5)``, a batch of 1,000 env steps in ten episodes; two agents with a policy
each, four epochs in minibatches of 500, the network's width as asked. The two take turns, on the
same episodes. `benchmarks/peers` measures other systems beside them, with `Work` of its own.

    python -m benchmarks.on_policy_update --width 256 --rounds 30

Prints the median time of an update of each, and the median of the paired ratio. A test holds that
both move the weights alike: `tests/servers/algorithms/on_policy/test_update.py`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.policy.policy import PolicySpec

from muxrl.servers.algorithms.ppo import PPOConfig

BOX, DISCRETE = spaces.Box(-1.0, 1.0, (8,), np.float32), spaces.Discrete(5)
_EPISODES, _STEPS = 10, 100


@dataclass(frozen=True)
class Work:
    """What an update is made of.

    Attributes:
        policy_of: each agent's policy.
        num_epochs: passes over the batch.
        minibatch_size: of each policy's rows.
        width: units of both layers, of the policy and of the value.
    """

    policy_of: Mapping[str, str]
    num_epochs: int
    minibatch_size: int
    width: int


def make_learner(work: Work, learner_class: type | None = None) -> Any:
    """Returns a built learner, ours unless another class is given."""
    policies = sorted(set(work.policy_of.values()))
    config = (
        PPOConfig()
        .multi_agent(
            policies={policy: PolicySpec(None, BOX, DISCRETE) for policy in policies},
            policy_mapping_fn=lambda agent_id, *args, **kwargs: work.policy_of[agent_id],
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[work.width, work.width], vf_share_layers=False
            )
        )
        .debugging(seed=0)
    )
    config.validate()
    module_spec = config.get_multi_rl_module_spec(spaces=dict.fromkeys(policies, (BOX, DISCRETE)))
    learner = (learner_class or config.get_default_learner_class())(
        config=config, module_spec=module_spec
    )
    learner.build()
    return learner


def episodes(work: Work, seed: int) -> list[SingleAgentEpisode]:
    """Returns a batch as a server hands it over: plain lists."""
    rng = np.random.default_rng(seed)
    return [
        SingleAgentEpisode(
            observations=list(rng.uniform(-1, 1, (_STEPS + 1, 8)).astype(np.float32)),
            actions=[int(action) for action in rng.integers(5, size=_STEPS)],
            rewards=list(rng.normal(size=_STEPS)),
            extra_model_outputs={
                Columns.ACTION_LOGP: [np.float32(-np.log(5))] * _STEPS,
                Columns.ACTION_DIST_INPUTS: list(np.zeros((_STEPS, 5), np.float32)),
            },
            truncated=True,
            len_lookback_buffer=0,
            agent_id=agent,
            module_id=policy,
            multi_agent_episode_id=str(number),
        )
        for number in range(_EPISODES)
        for agent, policy in work.policy_of.items()
    ]


def update_ms(learner: Any, work: Work, seed: int) -> float:
    """Returns the time of one whole update in ms."""
    data = TrainingData(episodes=episodes(work, seed))
    started = time.perf_counter()
    learner.update(
        training_data=data,
        timesteps={"num_env_steps_sampled_lifetime": 0},
        num_epochs=work.num_epochs,
        minibatch_size=work.minibatch_size,
        shuffle_batch_per_epoch=True,
    )
    learner.metrics.reduce()
    return 1e3 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    work = Work({"agent_0": "policy_0", "agent_1": "policy_1"}, 4, 500, args.width)
    learners = {
        "RLlib's learner": make_learner(work, PPOTorchLearner),
        "ours": make_learner(work),
    }
    times: dict[str, list[float]] = {name: [] for name in learners}
    for number in range(3 + args.rounds):
        for name, learner in learners.items():
            took = update_ms(learner, work, number)
            if number >= 3:  # the first ones warm up
                times[name].append(took)
    for name, mine in times.items():
        print(f"{name:16}{statistics.median(mine):7.1f} ms ({min(mine):.1f}..{max(mine):.1f})")
    ratios = [theirs / ours for theirs, ours in zip(*times.values(), strict=True)]
    low, high = np.percentile(ratios, [25, 75])
    print(f"RLlib's / ours  {statistics.median(ratios):7.2f}    ({low:.2f}..{high:.2f}, quartiles)")


if __name__ == "__main__":
    main()
