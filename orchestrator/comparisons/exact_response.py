"""What a best response in a small game of OpenSpiel's returns, and a run's own policy, exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from muxrl.client.adapters.simulation import SimulationError
from muxrl.orchestrator.config.parameters import of_evaluations
from muxrl.orchestrator.errors import CannotEvaluate
from muxrl.orchestrator.evaluations.frozen import with_members
from muxrl.orchestrator.measure.exact_games import ExactGame
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder
from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.fixed_names import FROZEN, POOL, RANDOM, SCRIPTED
from muxrl.servers.fixed_policies.frozen import plan_of
from muxrl.servers.fixed_policies.loaded_policies import (
    LoadedPolicy,
    load_checkpoint,
    load_policies,
)
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
    run: RecordedRun, agent: str, checkpoint: str, *, should_explore: bool
) -> Exact | None:
    """Returns what a best response of an agent is worth; None where it is not computed.

    It is of a small sequential game of OpenSpiel's whose other agents are at random, or have
    policies that give probabilities, also a pool of such, drawn by their weights. Where agents swap
    sides, it is the mean over these.

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
    players = [[_Player(None)], [_Player(None)]]
    is_known = True
    try:
        game = ExactGame(name, **run.config.simulation.kwargs)
        for seat, each in enumerate(agents):
            try:
                players[seat] = list(_players(run, each, checkpoint, should_explore))
            except AlgorithmProblem:
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


class _Player(NamedTuple):
    """Who may act in a seat, and how often it is drawn for an episode; None: at random."""

    policy: LoadedPolicy | None
    weight: float = 1.0
    is_greedy: bool = False


def _players(
    run: RecordedRun, agent: str, checkpoint: str, should_explore: bool
) -> Iterator[_Player]:
    """Yields who plays an agent.

    Raises:
        AlgorithmProblem: there is no such policy, or it has a memory of its episode.
        CannotEvaluate: a pool's member has no such checkpoint.
    """
    server_id = run.server_of[agent]
    server = run.config.servers[server_id]
    path = CheckpointFolder(run.path / "checkpoints").of_server(server_id, checkpoint)
    settings = with_members(server, run.config, RunDirectory(run.path), checkpoint)
    members = [{**settings, "algorithm": server.algorithm}]
    if server.algorithm.upper() == POOL:
        members = list(settings["members"].values())
    for member in members:
        name, weight = member["algorithm"].upper(), member.get("weight", 1.0)
        is_greedy = not member.get("should_explore", False)
        if name == RANDOM:
            yield _Player(None, weight)
            continue
        if path is None or name == SCRIPTED:
            raise AlgorithmProblem(f"server {server_id!r} has no checkpoint with its policies")
        if name == FROZEN:
            plan = plan_of(Checkpoint.open(path).about)
            policy = load_policies(plan, **{"policies": {}, **member})[agent]
        else:
            policy, is_greedy = load_checkpoint(path)[agent], not should_explore
        if policy.remembers:
            raise AlgorithmProblem(f"what agent {agent!r} does depends on what it did before")
        yield _Player(policy, weight, is_greedy)
