"""TorchRL 0.14.1's `InferenceServer`, one process for each policy. It acts, and nobody learns.

https://docs.pytorch.org/rl/0.14/reference/modules_inference_server.html: servers own their policy
and share memory with their clients, by the fastest of TorchRL's transports between processes. One
process steps all simulations, in lockstep. It asks all servers before it waits for the first, and a
request holds the observations of all simulations' agents; both are as in muxrl.

Unequal: the server only samples an action; requests have one fixed shape, are not checked, and
cannot leave the machine.
"""

from __future__ import annotations

import argparse
import contextlib
from functools import partial
from pathlib import Path

import numpy as np
import torch
from benchmarks.peers.simulation import TimedZeroCost
from benchmarks.peers.updates import add_arguments
from benchmarks.peers.work import AGENTS, HIDDEN, Setup
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule
from torch import nn
from torchrl.modules import MLP, ProbabilisticActor
from torchrl.modules.inference_server import InferenceServer


def policy(seed: int) -> nn.Module:
    """Makes a policy in its server's process. It is pickled, so this is a module's function."""
    torch.manual_seed(seed)
    network = MLP(8, 5, num_cells=list(HIDDEN), activation_class=nn.Tanh)
    return ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        default_interaction_type=InteractionType.RANDOM,
    )


def play(folder: Path, setup: Setup, seed: int) -> None:
    """Plays until the process is ended."""
    agents = len(AGENTS) // setup.num_servers
    shape = (setup.num_simulations, agents)
    request = TensorDict({"observation": torch.zeros(*shape, 8)})
    response = TensorDict({"action": torch.zeros(shape, dtype=torch.int64)})
    simulations = [TimedZeroCost(str(folder)) for _ in range(setup.num_simulations)]
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                InferenceServer(
                    policy_factory=partial(policy, seed + number),
                    service_backend="process",
                    transport="process_slot",
                    request_spec=request,
                    response_spec=response,
                    num_clients=1,
                    max_batch_size=1,
                )
            )
            for number in range(setup.num_servers)
        ]
        clients = [server.client() for server in servers]
        observed = np.empty((len(simulations), len(AGENTS), 8), np.float32)
        while True:
            for row, simulation in zip(observed, simulations, strict=True):
                if not simulation.agents:
                    row[:] = list(simulation.reset()[0].values())
            futures = [
                client.submit(TensorDict({"observation": torch.from_numpy(part)}))
                for client, part in zip(
                    clients, np.split(observed, setup.num_servers, 1), strict=True
                )
            ]
            actions = torch.cat([future.result()["action"] for future in futures], 1).tolist()
            for row, simulation, acts in zip(observed, simulations, actions, strict=True):
                observations, *_ = simulation.step(dict(zip(AGENTS, acts, strict=True)))
                row[:] = list(observations.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    play(args.folder, Setup(args.servers, args.simulations), args.seed)


if __name__ == "__main__":
    main()
