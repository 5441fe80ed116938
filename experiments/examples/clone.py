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

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from muxrl.orchestrator.records.played import read_episodes
from muxrl.servers.checkpoints.checkpoint import STATE_FILE, Checkpoint
from muxrl.servers.checkpoints.state_file import write_state
from muxrl.servers.fixed_policies.frozen import open_policies, plan_of
from muxrl.servers.fixed_policies.loaded_policies import load_checkpoint


def clone(
    records: list[Path], checkpoint: Path, out: Path, epochs: int = 50, lr: float = 0.003
) -> dict[str, float]:
    """Writes a checkpoint whose policies do what agents of the same names did; returns losses."""
    policies = load_checkpoint(checkpoint)
    played: dict[str, list[tuple[Any, int]]] = {}
    for path in records:
        for rows, _ in read_episodes(path):
            for row in rows:
                if row["agent"] in policies and row["action"] is not None:
                    policy_id, seen = policies[row["agent"]].reads(row["observation"])
                    parts = seen if isinstance(seen, dict) else {"obs": seen}
                    played.setdefault(policy_id, []).append((parts, row["action"]))
    saved = Checkpoint.open(checkpoint)
    frozen, state = open_policies(saved, {}), saved.read_state()
    actors = frozen.make_inference(plan_of(saved.about))
    actors.put("state", state["trainers"])
    losses = {}
    for policy_id, pairs in played.items():
        trainer: Any = actors.learners[policy_id]
        network = trainer.network()
        seen = {k: torch.tensor(np.array([one[k] for one, _ in pairs])) for k in pairs[0][0]}
        mask = seen.pop("action_mask", torch.ones(len(pairs), 1))
        inputs = [seen[key] for key in trainer.acting_keys if key in seen]
        targets = torch.tensor([action for _, action in pairs])
        optimizer = torch.optim.Adam(network.parameters(), lr)
        for _ in range(epochs):
            for rows in torch.randperm(len(targets)).split(256):
                logits = network(*(one[rows] for one in inputs))
                loss = cross_entropy(logits.masked_fill(mask[rows] == 0, -1e30), targets[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        losses[policy_id] = loss.item()
    actors.publish()
    state["trainers"], state["networks"] = actors.get("state"), actors.get("networks")
    state["weights"] = actors.get("weights")
    write_state(shutil.copytree(checkpoint, out) / STATE_FILE, state)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    print(clone(args.records, args.checkpoint, args.out))
