"""Behaviour cloning: first weights for a server, from episodes that somebody else played.

::

    muxrl evaluate RUN --record played.parquet       # or a run's own episodes/ (simulation.record)
    python clone.py played.parquet CHECKPOINT OUT    # of a server of any run: whose networks learn
    muxrl launch CONFIG servers.main.initialize_from=OUT

For policies that draw Discrete actions, such as PPO's. What else is in the checkpoint stays.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
import tree
from ray.rllib.core import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from torch.nn.functional import cross_entropy

from muxrl.orchestrator.records.played import read_episodes
from muxrl.servers.fixed_policies.loaded_policies import load_checkpoint

MODULES = "learner_group/learner/rl_module"  # where RLlib has them


def clone(
    records: list[Path], checkpoint: Path, out: Path, epochs: int = 50, lr: float = 0.003
) -> dict[str, float]:
    """Writes a checkpoint whose policies do what agents of the same names did; returns losses."""
    policies = load_checkpoint(checkpoint)
    folder = shutil.copytree(checkpoint, out) / MODULES
    played: dict[str, list[tuple[Any, int]]] = {}
    losses = {}
    for path in records:
        for rows, _ in read_episodes(path):
            for row in rows:
                if row["agent"] in policies and row["action"] is not None:
                    policy_id, seen = policies[row["agent"]].reads(row["observation"])
                    played.setdefault(policy_id, []).append((seen, row["action"]))
    modules = MultiRLModule.from_checkpoint(folder.absolute())
    for policy_id, module in modules.items():
        if policy_id not in played:
            continue
        seen, actions = zip(*played[policy_id], strict=True)
        inputs = tree.map_structure(lambda *x: torch.stack([*map(torch.as_tensor, x)]), *seen)
        targets = torch.tensor(actions)
        optimizer = torch.optim.Adam(module.parameters(), lr)
        for _ in range(epochs):
            for rows in torch.randperm(len(targets)).split(256):
                batch = tree.map_structure(lambda x, rows=rows: x[rows], inputs)
                logits = module.forward_train({Columns.OBS: batch})[Columns.ACTION_DIST_INPUTS]
                loss = cross_entropy(logits, targets[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        losses[policy_id] = loss.item()
        module.save_to_path(folder.absolute() / policy_id)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    print(clone(args.records, args.checkpoint, args.out))
