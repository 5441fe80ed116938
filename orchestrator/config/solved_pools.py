"""Turns POOL's `draw: nash` and `alpha_rank` into weights, from a table of games.

``muxrl compare --head-to-head`` writes the table. Weights are computed before a run begins and
written into its config, so a resumed run keeps them even if the table has changed.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.protocol.suggestions import listed
from muxrl.servers.fixed_names import POOL
from muxrl.servers.fixed_policies.meta_game import KINDS, MetaGame
from muxrl.servers.setting_values import AlgorithmProblem


def solved(
    config: ExperimentConfig, agents_of: Mapping[str, Sequence[str]], problems: list[str]
) -> ExperimentConfig:
    """Returns the config with a weight for each member of pools that draw by a solution of games.

    A member with a given weight keeps it. The weights of the others come from the solution, and add
    up to the number of these members; a member that the solution never plays is left out.

    Args:
        config: the experiment.
        agents_of: each server's agents.
        problems: receives a sentence for each pool whose games give no weights.
    """
    from muxrl.servers.fixed_policies.entry import PoolAlgorithm

    servers = dict(config.servers)
    for server_id, server in servers.items():
        draw = server.settings.get("draw")
        if server.algorithm.upper() != POOL or draw not in KINDS:
            continue
        try:
            whole = PoolAlgorithm(server.settings).given
        except AlgorithmProblem:
            continue  # its settings have been refused
        games, given = Path(whole["games"]).expanduser().absolute(), server.settings["members"]
        asked = {e: one for e, one in whole["members"].items() if "weight" not in given[e]}
        simulation = {"env": config.simulation.env, "kwargs": config.simulation.kwargs}
        try:
            weights = _weights(draw, asked, simulation, agents_of.get(server_id, ()), games)
        except AlgorithmProblem as problem:
            problems.append(f"server {server_id!r}: POOL's draw {draw}: {problem}")
            continue
        drawn = {e: {"weight": weights.get(e), **one} for e, one in given.items()}
        members = {entry: one for entry, one in drawn.items() if one["weight"]}
        settings = {**server.settings, "members": members, "games": str(games)}
        servers[server_id] = replace(server, settings=settings)
    return replace(config, servers=servers)


def _weights(
    draw: str,
    members: Mapping[str, Mapping[str, Any]],
    simulation: Mapping[str, Any],
    agents: Sequence[str],
    games: Path,
) -> dict[str, float]:
    if not members:
        return {}
    table: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        table = json.loads((games / "comparison.json").read_text(encoding="utf-8"))
    players = table.get("players")
    if not players:
        raise AlgorithmProblem(
            f"{str(games)!r} has no comparison.json with games between players; 'muxrl compare RUN "
            "RUN --head-to-head --out FOLDER' writes it"
        )
    if table["simulation"] != json.loads(json.dumps(simulation, default=str)):
        raise AlgorithmProblem(
            f"the games in {str(games)!r} were played in {table['simulation']}, not in {simulation}"
        )
    roles = table["roles"]
    role = next((name for name, theirs in roles.items() if {*theirs} == {*agents}), "")
    if not role or len(roles) != 2:
        raise AlgorithmProblem(
            f"needs games of two roles, one of them {listed(agents)}; those in {str(games)!r} have "
            + "; ".join(f"{name}: {listed(theirs)}" for name, theirs in roles.items())
        )
    label_of = {
        entry: next((p["player"] for p in players[role] if _is(member, p, games)), "")
        for entry, member in members.items()
    }
    if absent := [entry for entry, label in label_of.items() if not label]:
        raise AlgorithmProblem(
            f"{str(games)!r} has no games of {listed(absent)} as {role}, with the same checkpoint "
            f"and should_explore; it has {listed({p['player']: 0 for p in players[role]})}. "
            "Members with a weight need no games"
        )
    (other,), payoffs = roles.keys() - {role}, table["tables"]["payoffs"]
    own = list(dict.fromkeys(label_of.values()))
    theirs = list(dict.fromkeys(row["player"] for row in payoffs if row["role"] == other))
    returns = {(row["role"], row["player"], row["others"]): row["return"] for row in payoffs}
    cells = [[(returns[role, a, b], returns[other, b, a]) for b in theirs] for a in own]
    both = np.nan_to_num(np.array(cells, float))  # NaN: no agent of the role took part
    found = MetaGame(np.moveaxis(both, -1, 0)).weights(draw)
    if isinstance(found, str):
        raise AlgorithmProblem(found)
    share, num = dict(zip(own, found[0], strict=True)), Counter(label_of.values())
    return {e: float(len(members) * share[label] / num[label]) for e, label in label_of.items()}


def _is(member: Mapping[str, Any], player: Mapping[str, Any], games: Path) -> bool:
    """Whether a member is the player of a table: with equal settings and the same checkpoint."""
    from muxrl.servers.fixed_policies.entry import find_fixed

    fixed = find_fixed(player["algorithm"])
    if fixed is None or fixed is not find_fixed(str(member.get("algorithm"))):
        return False
    settings = {**fixed.defaults, **player["settings"]}
    if "checkpoint" in settings:
        settings["checkpoint"] = str((games / settings["checkpoint"]).resolve())
    return all(member[key] == value for key, value in settings.items())
