"""One PPO update by our learner or by RLlib 2.60's: see `benchmarks/on_policy_update.py`."""

from __future__ import annotations

import argparse

import torch
from benchmarks.on_policy_update import Work, make_learner, update_ms
from benchmarks.peers.updates import update_arguments, write_updates
from benchmarks.peers.work import AGENTS, HIDDEN, MINIBATCH, PPO_EPOCHS
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("whose", choices=["ours", "rllib"])
    args = update_arguments(parser)
    torch.set_num_threads(1)
    work = Work(dict.fromkeys(AGENTS, "shared"), PPO_EPOCHS, MINIBATCH, HIDDEN[0])
    learner = make_learner(work, PPOTorchLearner if args.whose == "rllib" else None)
    numbers = range(args.seed * args.updates, (args.seed + 1) * args.updates)
    write_updates(args.out, [update_ms(learner, work, number) / 1e3 for number in numbers])


if __name__ == "__main__":
    main()
