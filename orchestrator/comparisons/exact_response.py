"""Computes exact returns of a best response and of a run's own policy, in small OpenSpiel games."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from muxrl.client.adapters.simulation import SimulationError
from muxrl.orchestrator.config.parameters import of_evaluations
from muxrl.orchestrator.errors import CannotEvaluate
from muxrl.orchestrator.evaluations.frozen import FrozenRun
from muxrl.orchestrator.measure.exact_games import ExactGame
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder
from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.fixed_names import FROZEN, POOL, RANDOM
from muxrl.servers.fixed_policies.frozen import plan_of
from muxrl.servers.fixed_policies.loaded_policies import LoadedPolicy, load_policies
from muxrl.servers.setting_values import AlgorithmProblem

_Player = tuple[LoadedPolicy | None, float, bool]
"""A policy, its weight, and whether it is greedy, as `ExactGame.mean_table` takes them."""
_RANDOM: _Player = (None, 1.0, False)


@dataclass(frozen=True)
class Exact:
    """Expected returns among the same others; `own` is None if the policy has no probabilities."""

    best_response: float
    own: float | None

    @property
    def gain(self) -> float | None:
        """What the best response gains over the run's own policy; None: not known."""
        return None if self.own is None else self.best_response - self.own


def exact_response(
    run: RecordedRun, agent: str, checkpoint: str, *, should_explore: bool
) -> Exact | None:
    """Returns the expected return of an agent's best response; None if it cannot be computed.

    It is computed for small sequential OpenSpiel games of two agents whose other agent is random,
    has a policy with probabilities, or has a pool of such policies, drawn by their weights. If
    agents swap sides, the result is the mean over the sides.

    Args:
        run: the run whose policies play.
        agent: the agent that responds.
        checkpoint: name of a checkpoint of the run.
        should_explore: whether policies are sampled; else they take their likeliest action.
    """
    kind, _, name = run.config.simulation.env.partition(":")
    given = of_evaluations(run.config)
    sides = [one for one in given.values() if isinstance(one, Mapping) and "sides" in one]
    agents = sorted(run.server_of)  # in order of seats: player_0, player_1
    if kind != "open_spiel" or len(given) > len(sides) or len(agents) != 2 or len(sides) > 1:
        return None
    own = agents.index(agent)
    players: list[list[_Player]] = [[_RANDOM], [_RANDOM]]
    is_known = True
    try:
        game = ExactGame(name, **run.config.simulation.kwargs)
        for seat, each in enumerate(agents):
            try:
                players[seat] = list(_players(run, each, checkpoint, should_explore))
            except (AlgorithmProblem, CannotEvaluate):
                if seat != own:
                    raise
                is_known = False
        seated = [(players, own)]
        if sides:
            seated.append((players[::-1], 1 - own))
        values = [game.best_response(game.mean_table(who), seat) for who, seat in seated]
    except (SimulationError, AlgorithmProblem, CannotEvaluate):
        return None
    best, value = np.mean(values, axis=0).tolist()
    return Exact(best, value if is_known else None)


def _players(
    run: RecordedRun, agent: str, checkpoint: str, should_explore: bool
) -> Iterator[_Player]:
    """Yields the policies that may play an agent, with the weights by which they are drawn.

    Raises:
        AlgorithmProblem: there is no such policy, or it remembers earlier steps of an episode.
        CannotEvaluate: the run has no such checkpoint, or a member of a pool has none.
    """
    server_id = run.server_of[agent]
    path = CheckpointFolder(run.path / "checkpoints").of_server(server_id, checkpoint)
    frozen = FrozenRun(RunDirectory(run.path), run.config, should_explore, checkpoint)
    agents = [agent for agent, s in run.server_of.items() if s == server_id]
    server = frozen.player(server_id, agents).server
    members = [{**server.settings, "algorithm": server.algorithm}]
    if server.algorithm.upper() == POOL:
        members = list(server.settings["members"].values())
    for member in members:
        name, weight = member["algorithm"].upper(), member.get("weight", 1.0)
        if name == RANDOM:
            yield None, weight, False
            continue
        if path is None or name != FROZEN:
            raise AlgorithmProblem(f"server {server_id!r} has no checkpoint with its policies")
        plan = plan_of(Checkpoint.open(path).about)
        policy = load_policies(plan, **{"policies": {}, **member})[agent]
        if policy.remembers:
            raise AlgorithmProblem(f"the policy of agent {agent!r} remembers earlier steps")
        yield policy, weight, not member.get("should_explore", False)
