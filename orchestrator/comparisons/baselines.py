"""Fixed policies played alone: random ones in all roles, each scripted one among random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from muxrl.orchestrator.comparisons.arena import Arena, Player, random_player
from muxrl.orchestrator.comparisons.findings.contestants import Contestant, server_of_role
from muxrl.orchestrator.comparisons.findings.findings import Baseline
from muxrl.orchestrator.comparisons.findings.roles import Subject
from muxrl.orchestrator.reports.statistics import mean_interval
from muxrl.servers.config import ServerConfig


def find_scripts(
    contestants: Sequence[Contestant],
    roles: Mapping[str, tuple[str, ...]],
    of_sweep: Mapping[str, Sequence[ServerConfig]],
) -> dict[str, list[Player]]:
    """Returns, by role, the scripted policies that a run or a sweep has in it."""
    found: dict[str, dict[str, Player]] = {}
    for contestant in contestants:
        for role, agents in roles.items():
            _, server = server_of_role(contestant.runs[0], agents)
            if server.algorithm.upper() == "SCRIPTED":
                label = contestant.played[role]
                found.setdefault(role, {}).setdefault(label, Player(label, role, server))
    for role, servers in of_sweep.items():
        for server in servers:
            player = Player(server.label, role, server)
            found.setdefault(role, {}).setdefault(server.label, player)
    return {role: list(players.values()) for role, players in found.items()}


def play_baselines(
    arena: Arena,
    subjects: Sequence[Subject],
    roles: Mapping[str, tuple[str, ...]],
    scripts: Mapping[str, Sequence[Player]],
    seeds: Sequence[int],
) -> tuple[Baseline, ...]:
    """Plays random policies in all roles, then each scripted one among random ones.

    Args:
        arena: of the runs' simulation.
        subjects: whose returns are measured.
        roles: role to its agents.
        scripts: role to scripted policies; those of one label play together.
        seeds: one for each episode.
    """
    random = {role: random_player(role, agents) for role, agents in roles.items()}
    played = [("random", arena.play_at_random(seeds))]
    by_label: dict[str, dict[str, Player]] = {}
    for role, players in scripts.items():
        for player in players:
            by_label.setdefault(player.label, {})[role] = player
    for theirs in by_label.values():
        seating = {**random, **theirs}
        name = " | ".join(f"{player.label} {role}" for role, player in seating.items())
        played.append((name, arena.play(seating, seeds)))
    baselines = []
    for name, by_agent in played:
        returns = {}
        for subject in subjects:
            values = subject.returns(by_agent)
            values = values[np.isfinite(values)]
            if len(values):
                returns[subject.key] = mean_interval([values])
        baselines.append(Baseline(name, returns, len(seeds)))
    return tuple(baselines)
