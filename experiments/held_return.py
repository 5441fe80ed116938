"""Small games for a team: what its greedy policy earns again and again while it learns.

Game and greedy policy are both deterministic, so one evaluation episode says all. An untrained
network may play the best actions by chance; what counts is what is *held* over the second half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config import load_config
from muxrl.orchestrator.runs.in_process import serve


@dataclass(frozen=True)
class Outcome:
    """Greedy joint returns of one run, by env steps."""

    algorithm: str
    seed: int
    returns: dict[int, float]

    @property
    def held(self) -> float | None:
        """The return of every evaluation in the second half, None if they differ."""
        late = list(self.returns.values())[len(self.returns) // 2 :]
        return late[0] if len(set(late)) == 1 else None


def train(
    config_name: str,
    algorithm: str,
    seed: int,
    *,
    env_steps: int,
    interval: int,
    overrides: Sequence[str] = (),
) -> Outcome:
    """Trains one team through a server and evaluates it on the way.

    Args:
        config_name: an experiment with one server, "team".
        algorithm: of that server.
        seed: of the experiment.
        env_steps: budget.
        interval: env steps between two evaluations.
        overrides: of the config, as on the command line.
    """
    config = load_config(
        config_name, [f"servers.team.algorithm={algorithm}", f"seed={seed}", *overrides]
    )
    returns: dict[int, float] = {}
    with serve(config) as served, served.client() as client:
        num = config.simulation.num_envs_per_process
        loop = EnvLoop([served.simulation() for _ in range(num)], client)
        while loop.num_env_steps < env_steps:
            goal = loop.num_env_steps + interval
            loop.run(should_stop=lambda goal=goal: loop.num_env_steps >= goal)  # type: ignore[misc]
            served.check()
            returns[loop.num_env_steps] = sum(served.evaluate(1)[0].returns.values())
    return Outcome(algorithm, seed, returns)
