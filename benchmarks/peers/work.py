"""The work that is the same for every contestant. Other systems' interpreters import it, too.

Six agents, ``Box(8)``/``Discrete(5)``, 100-step episodes of the zero-cost simulation. Every server
has one policy for its agents, with two layers of 256 units for the policy and two for the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

AGENTS = tuple(f"agent_{i}" for i in range(6))
HIDDEN = (256, 256)
BATCH_ENV_STEPS = 1_000
PPO_EPOCHS = 10
MINIBATCH = 128
EPISODE_STEPS = 100


class TeamUpdate(NamedTuple):
    """One update of a team's algorithm, on whole episodes of all agents."""

    algorithm: str
    num_episodes: int
    num_stored: int
    num_epochs: int = 1
    is_recurrent: bool = False


TEAM_UPDATES = {
    "QMIX": TeamUpdate("QMIX", num_episodes=32, num_stored=64, is_recurrent=True),
    "QMIX-mlp": TeamUpdate("QMIX", num_episodes=32, num_stored=64),
    "MAPPO": TeamUpdate("MAPPO", num_episodes=10, num_stored=10, num_epochs=4),
}
"""EPyMARL's batches. Networks have two layers of 64 units; the second one of a recurrent network
is a GRU."""


class Server(NamedTuple):
    """One policy server: its name, its algorithm, and its agents."""

    name: str
    algorithm: str
    agents: tuple[str, ...]


@dataclass(frozen=True, order=True)
class Setup:
    """How many servers share the agents, and how many simulations play."""

    num_servers: int
    num_simulations: int

    @property
    def servers(self) -> list[Server]:
        """The servers, PPO, A2C and a second PPO, with equal numbers of agents."""
        algorithms = ("PPO", "A2C", "PPO")[: self.num_servers]
        size = len(AGENTS) // self.num_servers
        return [
            Server(f"{algorithm.lower()}_{i}", algorithm, AGENTS[i * size : (i + 1) * size])
            for i, algorithm in enumerate(algorithms)
        ]

    def __str__(self) -> str:
        servers = "server" if self.num_servers == 1 else "servers"
        simulations = "simulation" if self.num_simulations == 1 else "simulations"
        return f"{self.num_servers} {servers}, {self.num_simulations} {simulations}"
