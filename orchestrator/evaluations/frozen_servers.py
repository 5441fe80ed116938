"""A run's servers as an evaluation serves them: from a checkpoint, and none of them learns."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from muxrl.orchestrator.config import Experiment, ExperimentConfig
from muxrl.orchestrator.errors import CannotEvaluate, NotARunDirectory
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder
from muxrl.protocol.patterns import match
from muxrl.protocol.spaces import Box, Space, bounds
from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.config import EXTERNAL as OWN_PROCESS
from muxrl.servers.config import ServerConfig, algorithm_label
from muxrl.servers.fixed_names import POOL, is_fixed
from muxrl.servers.lookup import find
from muxrl.servers.setting_values import AlgorithmProblem

RANDOM = "random"
"""Stands, in `replace`, for uniformly random actions."""
_SCRIPT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*").fullmatch


def frozen_servers(
    folder: RunDirectory,
    config: ExperimentConfig,
    checkpoint: str,
    replaced: Mapping[str, str],
    should_explore: bool,
) -> dict[str, ServerConfig]:
    """Returns the servers of an experiment, with all that learned frozen.

    Args:
        folder: of the run.
        config: of the run.
        checkpoint: name of the folder under the run's ``checkpoints``.
        replaced: by server, what acts instead; see `evaluate_run`.
        should_explore: whether stochastic policies are sampled.

    Raises:
        CannotEvaluate: with a sentence for each server that has no such checkpoint.
    """
    servers: dict[str, ServerConfig] = {}
    problems: list[str] = []
    for server_id, server in config.servers.items():
        instead = replaced.get(server_id)
        try:
            if instead == RANDOM:
                servers[server_id] = ServerConfig(
                    algorithm="RANDOM", agents=server.agents, action_bounds=server.action_bounds
                )
            elif instead is not None and _SCRIPT(instead) and not Path(instead).exists():
                servers[server_id] = ServerConfig(
                    algorithm="SCRIPTED",
                    agents=server.agents,
                    action_bounds=server.action_bounds,
                    label=instead.partition(":")[2],
                    settings={"policy": instead},
                )
            elif instead is not None:
                agents = _agents_of(folder, server_id)
                servers[server_id] = _other(server, Path(instead), should_explore, agents)
            elif is_fixed(server.algorithm):
                servers[server_id] = dataclasses.replace(
                    on_free_port(server),
                    label=label_of(server),
                    settings=with_members(server, config, folder, checkpoint),
                )
            elif server.algorithm == OWN_PROCESS:
                servers[server_id] = on_free_port(server) if server.command else server
            else:
                path = _checkpoint(folder, server_id, checkpoint)
                servers[server_id] = freeze(
                    server, path, server.algorithm, should_explore=should_explore
                )
        except (AlgorithmProblem, CannotEvaluate) as error:
            problems.append(f"server {server_id!r}: {error}")
    if problems:
        raise CannotEvaluate("; ".join(problems))
    return servers


def with_members(
    server: ServerConfig, config: ExperimentConfig, folder: RunDirectory, checkpoint: str
) -> dict[str, Any]:
    """Returns a fixed server's settings; what a run brings to a pool is opened from checkpoints.

    These are the members that the pool had when the checkpoint was written.
    """
    if server.algorithm.upper() != POOL:
        return server.settings
    checkpoints = CheckpointFolder(folder.checkpoints)
    found = checkpoints.snapshots(config.checkpoint.keep_every_env_steps)
    moment = (checkpoints.path / checkpoint).resolve().name  # its env steps
    kept = [str(n) for n in found if not moment.isdecimal() or n <= int(moment)]
    members: dict[str, Any] = {}
    for entry, member in server.settings["members"].items():
        source = member.get("live", member.get("snapshots"))
        if source is None:
            members[entry] = member
            continue
        names = kept[-member.get("last", 5) :] if "snapshots" in member else []
        for name in names or [checkpoint]:
            members[f"{entry}@{name}" if names else entry] = {
                "algorithm": "FROZEN",
                "checkpoint": str(_checkpoint(folder, source, name).absolute()),
                "policies": member.get("policies", {}),
                "should_explore": server.settings.get("should_explore", True),
                "weight": member.get("weight", 1.0) / max(1, len(names)),
            }
    return {**server.settings, "members": members}


def _checkpoint(folder: RunDirectory, server_id: str, name: str) -> Path:
    checkpoints = CheckpointFolder(folder.checkpoints)
    path = checkpoints.of_server(server_id, name)
    if path is None:
        raise CannotEvaluate(
            f"run {folder.name!r} has no checkpoint {name!r} of it; "
            f"{checkpoints.saved_text(server_id)}"
        )
    return path


def _other(
    server: ServerConfig, path: Path, should_explore: bool, agents: Sequence[str]
) -> ServerConfig:
    """Returns a server that plays from a checkpoint of another one, with that one's groups.

    Args:
        server: whose place it takes.
        path: of the checkpoint.
        should_explore: see `freeze`.
        agents: of the server, as far as they are known.
    """
    checkpoint = Checkpoint.open(path)
    about, algorithm = checkpoint.about, checkpoint.algorithm
    groups, noted = about["groups"], about["agents"]
    policies: dict[str, list[str]] = {}
    if len({agent["policy"] for agent in noted.values()}) > 1:  # else the only one acts for all
        teams = groups if find(algorithm).seating.forms_teams else {}
        mine = agents or match(server.agents, list(noted))[0]
        policies = policies_of(about, [agent for agent in mine if agent in noted], teams)
    return dataclasses.replace(
        freeze(server, path, algorithm, should_explore=should_explore),
        action_bounds=_bounds_of(noted, server.action_bounds),
        label=algorithm_label(algorithm),
        groups=groups,
        policies=policies,
    )


def _agents_of(folder: RunDirectory, server_id: str) -> Sequence[str]:
    """Returns the agents that a server had in a run, none if the run has not written them."""
    try:
        return folder.read_plan().servers[server_id].agents
    except (NotARunDirectory, KeyError):
        return ()


def _bounds_of(noted: Mapping[str, Any], otherwise: list[float]) -> list[float]:
    """Returns `action_bounds` with which agents act in a checkpoint's spaces."""
    spaces = [msgspec.convert(agent["action_space"], Space) for agent in noted.values()]
    boxes = [space for space in spaces if isinstance(space, Box)]
    lows, highs = set[float](), set[float]()
    for box in boxes:
        low, high = bounds(box)
        lows |= set(low.ravel().tolist())
        highs |= set(high.ravel().tolist())
    if not len(lows) == len(highs) == 1:
        return otherwise
    found = [lows.pop(), highs.pop()]
    return found if all(map(math.isfinite, found)) else []


def policies_of(
    about: Mapping[str, Any], agents: Sequence[str], teams: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Returns which of these agents, or of their teams, a checkpoint's policies act for.

    Args:
        about: the checkpoint's note, with its ``agents``.
        agents: some of these.
        teams: by name, their members; none where a policy acts for one agent.
    """
    team_of = {member: team for team, members in teams.items() for member in members}
    policies: dict[str, list[str]] = {}
    for agent in agents:
        seats = policies.setdefault(about["agents"][agent]["policy"], [])
        seat = team_of.get(agent, agent)
        if seat not in seats:
            seats.append(seat)
    return policies


def from_checkpoints(experiment: Experiment, folder: RunDirectory, checkpoint: str) -> Experiment:
    """Has servers that are processes of their own go on from a checkpoint; none of them trains."""
    servers = {
        s: dataclasses.replace(plan, resume_from=str(_checkpoint(folder, s, checkpoint).absolute()))
        if plan.algorithm == OWN_PROCESS
        else plan
        for s, plan in experiment.servers.items()
    }
    return dataclasses.replace(experiment, servers=servers)


def freeze(
    server: ServerConfig, checkpoint: Path, trained_by: str | None, *, should_explore: bool
) -> ServerConfig:
    """Returns a server that acts for the same agents with the policies of a checkpoint.

    Args:
        server: the one that learned.
        checkpoint: its folder.
        trained_by: the algorithm, None if unknown.
        should_explore: whether stochastic policies are sampled; value-based ones are greedy in
            any case.

    Raises:
        AlgorithmProblem: there is no such algorithm.
    """
    can_sample = trained_by is None or find(trained_by).samples_actions
    return ServerConfig(
        algorithm="FROZEN",
        agents=server.agents,
        action_bounds=server.action_bounds,
        label=label_of(server),
        policies=server.policies,
        groups=server.groups,
        settings={
            "checkpoint": str(checkpoint.absolute()),
            "should_explore": should_explore and can_sample,
        },
        use_global_state=server.use_global_state,
        late_members=server.late_members,
        resources=dataclasses.replace(server.resources, num_gpus=0.0),  # none may be here
        limits=server.limits,
    )


def on_free_port(server: ServerConfig) -> ServerConfig:
    """Returns a server with fixed policies as muxrl serves it again, for itself alone.

    The run's own port may be taken by the next run, and no one else should connect.
    """
    return dataclasses.replace(server, host="127.0.0.1", port=0, token="")


def label_of(server: ServerConfig) -> str:
    """Returns what stands for a server in assignments: the algorithm that trained its policies.

    Raises:
        AlgorithmProblem: its checkpoint cannot be read.
    """
    if server.label or server.algorithm.upper() != "FROZEN":
        return server.label or algorithm_label(server.algorithm, server.command)
    trained_by = Checkpoint.open(Path(server.settings.get("checkpoint", ""))).algorithm
    return algorithm_label(trained_by)
