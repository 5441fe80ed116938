"""What a best response in a small game of OpenSpiel's returns, and a run's own policy, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from muxrl.client.adapters.simulation import SimulationError
from muxrl.orchestrator.comparisons.findings.compared_runs import ComparedRun
from muxrl.orchestrator.config.parameters import of_evaluations
from muxrl.orchestrator.measure.exact_games import ExactGame
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder
from muxrl.servers.fixed_policies import find_fixed
from muxrl.servers.fixed_policies.loaded_policies import LoadedPolicy, load_checkpoint
from muxrl.servers.setting_values import AlgorithmProblem


@dataclass(frozen=True)
class Exact:
    """Expected returns among the same others; `own` is None of what gives no probabilities."""

    best_response: float
    own: float | None

    @property
    def gain(self) -> float | None:
        """Of the best response over the run's own policy."""
        return None if self.own is None else self.best_response - self.own


def exact_response(
    run: ComparedRun, agent: str, checkpoint: str, *, should_explore: bool
) -> Exact | None:
    """Returns what a best response of an agent is worth; None where it is not computed.

    It is of a small sequential game of OpenSpiel's whose other agents are at random, or have
    policies that give probabilities. Where agents swap sides, it is the mean over these.

    Args:
        run: whose policies play.
        agent: that responds.
        checkpoint: of the run, by name.
        should_explore: whether policies are sampled; else they take their likeliest action.
    """
    kind, _, name = run.config.simulation.env.partition(":")
    given = of_evaluations(run.config)
    sides = [one for one in given.values() if isinstance(one, Mapping) and "sides" in one]
    agents = sorted(run.server_of)  # by seat: player_0, player_1
    if kind != "open_spiel" or len(given) > len(sides) or len(agents) != 2 or len(sides) > 1:
        return None
    own = agents.index(agent)
    policies: list[LoadedPolicy | None] = [None, None]
    is_known = True
    try:
        game = ExactGame(name, **run.config.simulation.kwargs)
        for seat, each in enumerate(agents):
            try:
                policies[seat] = _policy(run, each, checkpoint)
            except AlgorithmProblem:
                if seat != own:
                    raise
                is_known = False
        seated = [(policies, own)]
        if sides:
            seated.append((policies[::-1], 1 - own))
        values = [
            game.best_response(game.table(who, is_greedy=not should_explore), seat)
            for who, seat in seated
        ]
    except (SimulationError, AlgorithmProblem):
        return None
    best, value = np.mean(values, axis=0).tolist()
    return Exact(best, value if is_known else None)


def _policy(run: ComparedRun, agent: str, checkpoint: str) -> LoadedPolicy | None:
    """Returns an agent's policy, None for random actions.

    Raises:
        AlgorithmProblem: it is of neither kind, or has a memory of its episode.
    """
    server_id = run.server_of[agent]
    algorithm = run.config.servers[server_id].algorithm
    if algorithm.upper() == "RANDOM":
        return None
    path = CheckpointFolder(run.path / "checkpoints").of_server(server_id, checkpoint)
    if find_fixed(algorithm) is not None or path is None:
        raise AlgorithmProblem(f"server {server_id!r} has no checkpoint with policies of its own")
    policy = load_checkpoint(path)[agent]
    if policy.remembers:
        raise AlgorithmProblem(f"what agent {agent!r} does depends on what it did before")
    return policy
