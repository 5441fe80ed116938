"""Opens a finished run to be played again, by servers that do not learn."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from muxrl.orchestrator.config import Experiment, ExperimentConfig, prepare
from muxrl.orchestrator.config.checks import EXTERNAL
from muxrl.orchestrator.config.shadows import acting
from muxrl.orchestrator.errors import CannotEvaluate, ConfigError, NotARunDirectory
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import read_status
from muxrl.orchestrator.storage.checkpoints import LAST, CheckpointFolder
from muxrl.orchestrator.user_modules import add_user_folders
from muxrl.protocol.patterns import match
from muxrl.protocol.spaces import Box, Space, bounds
from muxrl.protocol.suggestions import listed
from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.config import EXTERNAL as OWN_PROCESS
from muxrl.servers.config import ServerConfig, algorithm_label
from muxrl.servers.fixed_names import POOL, is_fixed
from muxrl.servers.lookup import find
from muxrl.servers.setting_values import AlgorithmProblem

RANDOM = "random"
"""Stands for uniformly random actions in `replace`."""
_SCRIPT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*").fullmatch


def open_run(run: Path) -> tuple[RunDirectory, ExperimentConfig]:
    """Opens a run whose simulation muxrl makes.

    Raises:
        CannotEvaluate: there is no such run, it never began, or its simulation is external.
    """
    try:
        folder = RunDirectory.open(run)
        config = folder.read_config()
    except NotARunDirectory as error:
        raise CannotEvaluate(str(error)) from error
    except FileNotFoundError as error:
        raise CannotEvaluate(f"run {str(run)!r} has no config.yaml: it never began") from error
    if config.simulation.env == EXTERNAL:
        raise CannotEvaluate(
            f"the simulation of run {folder.name!r} is external, so muxrl cannot start it; serve "
            "the run's checkpoints with the algorithm FROZEN and connect your simulation"
        )
    add_user_folders(_folders(folder))
    return folder, config


def _folders(folder: RunDirectory) -> list[str]:
    """Returns the folders where the run was launched, which may have the simulation's module."""
    status = read_status(folder)
    return list(status.folders) if status else []


def prepared(frozen: ExperimentConfig, folder: RunDirectory) -> Experiment:
    """Resolves the experiment of a run that was opened.

    Raises:
        ConfigError: as for `prepare`; if a module is missing, it also says where the run was
            launched.
    """
    folders = _folders(folder)
    try:
        return prepare(frozen, needs_stop=False)
    except ConfigError as error:
        if not any(isinstance(cause, ModuleNotFoundError) for cause in _causes(error)):
            raise
        gone = [path for path in folders if not Path(path).is_dir()]
        launched = (
            f"the run was launched in {listed(folders)}"
            if folders
            else "the run has no record of the folder in which it was launched"
        )
        raise ConfigError(
            [
                *error.problems,
                f"{launched}{' (not there any more)' if gone else ''}; start muxrl in the folder "
                "that has the module",
            ],
            str(folder.path),
        ) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


@dataclass(frozen=True)
class Player:
    """A server that acts for some agents, and does not learn."""

    server: ServerConfig = field(hash=False)  # holds dicts; players are still compared by it
    """The server's config."""
    label: str = ""
    """Name of the player in tables."""
    home: str = ""
    """The role for which it was trained or written, whose agents the server has."""
    run: Path | None = None
    """The run that trained the policies, or None; tells players with the same label apart."""
    resume_from: str = ""
    """Checkpoint from which a user's own process continues."""
    should_explore: bool = False
    """Whether a user's own process draws its actions."""


def seated(experiment: Experiment, players: Mapping[str, Player]) -> Experiment:
    """Returns an experiment that has only the servers of these players."""
    servers = {}
    for server_id, player in players.items():
        plan = experiment.servers[server_id]
        servers[server_id] = replace(plan, resume_from=player.resume_from)
    return replace(experiment, servers=servers)


@dataclass(frozen=True)
class FrozenRun:
    """The policies of a run at a checkpoint, none of which learns."""

    folder: RunDirectory
    config: ExperimentConfig
    should_explore: bool
    """Whether stochastic policies are sampled; value-based policies are greedy in any case."""
    checkpoint: str = LAST
    """Name of the folder under the run's ``checkpoints``; a pool has its members of that time."""

    def player(self, server_id: str, agents: Sequence[str]) -> Player:
        """Returns the player for agents of a server, as they were in the run.

        Args:
            server_id: of the server.
            agents: the server's agents that are played, by name or pattern.

        Raises:
            CannotEvaluate: there is no such checkpoint, or a team has members besides `agents`.
            AlgorithmProblem: the checkpoint cannot be read.
        """
        server, explores = self.config.servers[server_id], self.should_explore
        server = replace(server, agents=list(agents))
        if is_fixed(server.algorithm):
            return Player(replace(on_free_port(server), settings=self.settings_of(server)))
        path = self._path(server_id, self.checkpoint)
        if server.algorithm == OWN_PROCESS and not _can_import(path):
            own = on_free_port(server) if server.command else server
            return Player(own, resume_from=str(path.absolute()), should_explore=explores)
        return Player(from_checkpoint(server, path, agents, should_explore=explores))

    def players(self, replaced: Mapping[str, str]) -> dict[str, Player]:
        """Returns the player for each server that acts.

        Args:
            replaced: by server: what acts instead; see `evaluate_run`.

        Raises:
            CannotEvaluate: with a sentence for each server that has no such checkpoint.
        """
        players: dict[str, Player] = {}
        problems: list[str] = []
        for server_id in acting(self.config):
            server = self.config.servers[server_id]
            agents = self._agents_of(server_id) or server.agents
            try:
                if server_id in replaced:
                    found = _other(server, replaced[server_id], agents, self.should_explore)
                else:
                    found = self.player(server_id, agents)
                found.server.label = label_of(found.server)
                players[server_id] = found
            except (AlgorithmProblem, CannotEvaluate) as error:
                problems.append(f"server {server_id!r}: {error}")
        if problems:
            raise CannotEvaluate("; ".join(problems))
        return players

    def settings_of(self, server: ServerConfig) -> dict[str, Any]:
        """Returns a fixed server's settings; a pool's live members are replaced by checkpoints."""
        if server.algorithm.upper() != POOL:
            return server.settings
        checkpoints = CheckpointFolder(self.folder.checkpoints)
        found = checkpoints.snapshots(self.config.checkpoint.keep_every_env_steps)
        moment = (checkpoints.path / self.checkpoint).resolve().name  # named by its env steps
        kept = [str(n) for n in found if not moment.isdecimal() or n <= int(moment)]
        members: dict[str, Any] = {}
        for entry, member in server.settings["members"].items():
            source = member.get("live", member.get("snapshots"))
            if source is None:
                members[entry] = member
                continue
            names = kept[-member.get("last", 5) :] if "snapshots" in member else []
            for name in names or [self.checkpoint]:
                members[f"{entry}@{name}" if names else entry] = {
                    "algorithm": "FROZEN",
                    "checkpoint": str(self._path(source, name).absolute()),
                    "policies": member.get("policies", {}),
                    "should_explore": server.settings.get("should_explore", True),
                    "weight": member.get("weight", 1.0) / max(1, len(names)),
                }
        return {**server.settings, "members": members}

    def _path(self, server_id: str, name: str) -> Path:
        checkpoints = CheckpointFolder(self.folder.checkpoints)
        path = checkpoints.of_server(server_id, name)
        if path is None:
            raise CannotEvaluate(
                f"run {self.folder.name!r} has no checkpoint {name!r} of this server; "
                f"{checkpoints.saved_text(server_id)}"
            )
        return path

    def _agents_of(self, server_id: str) -> Sequence[str]:
        """Returns the agents that a server had; () if the run has not written them."""
        try:
            return list(self.folder.read_plan().servers[server_id].agents)
        except (NotARunDirectory, KeyError):
            return ()


def _other(
    server: ServerConfig, instead: str, agents: Sequence[str], should_explore: bool
) -> Player:
    """Returns the player that replaces a server; see `evaluate_run`."""
    if instead == RANDOM:
        return Player(random_server(server, agents))
    if not _SCRIPT(instead) or Path(instead).exists():
        how: Any = {"should_explore": should_explore, "is_its_own": False}
        return Player(from_checkpoint(server, Path(instead), agents, **how))
    other = ServerConfig(
        algorithm="SCRIPTED",
        agents=list(agents),
        action_bounds=server.action_bounds,
        label=instead.partition(":")[2],
        settings={"policy": instead},
    )
    return Player(other)


def random_server(server: ServerConfig, agents: Sequence[str]) -> ServerConfig:
    """Returns a server of uniformly random actions within the `action_bounds` of another server."""
    return ServerConfig("RANDOM", list(agents), action_bounds=server.action_bounds)


def _can_import(path: Path) -> bool:
    """Returns whether the trainer class of a user's own process can be imported here."""
    about = Checkpoint.open(path).about
    try:
        find(about.get("trainer") or "")
    except AlgorithmProblem:
        return False
    return True


def from_checkpoint(
    server: ServerConfig,
    path: Path,
    agents: Sequence[str],
    *,
    should_explore: bool,
    is_its_own: bool = True,
) -> ServerConfig:
    """Returns a server that plays from a checkpoint, with the checkpoint's policies and teams.

    Args:
        server: the server that is replaced.
        path: of the checkpoint.
        agents: the agents that it acts for, by name or pattern.
        should_explore: see `FrozenRun`.
        is_its_own: whether the checkpoint is the server's own, so that its bounds and label stay.

    Raises:
        CannotEvaluate: one of the teams has members besides `agents`.
        AlgorithmProblem: the checkpoint cannot be read.
    """
    checkpoint = Checkpoint.open(path)
    about, noted = checkpoint.about, checkpoint.about["agents"]
    learned = find(about.get("trainer") or checkpoint.algorithm)
    mine = match(agents, list(noted))[0]
    teams = _teams_of(about, mine)
    policies: dict[str, list[str]] = {}
    if len({agent["policy"] for agent in noted.values()}) > 1:  # else the only policy acts for all
        policies = policies_of(about, mine, teams if learned.seating.forms_teams else {})
    own = server.action_bounds
    return ServerConfig(
        algorithm="FROZEN",
        agents=list(agents),
        action_bounds=own if is_its_own else _bounds_of(noted, own),
        label=label_of(server) if is_its_own else algorithm_label(checkpoint.algorithm),
        policies=policies,
        groups=teams,
        settings={
            "checkpoint": str(path.absolute()),
            "should_explore": should_explore and learned.samples_actions,
        },
        use_global_state=server.use_global_state,
        late_members=server.late_members,
        resources=replace(server.resources, num_gpus=0.0),  # this machine may have none
        limits=server.limits,
    )


def _bounds_of(noted: Mapping[str, Any], otherwise: list[float]) -> list[float]:
    """Returns the `action_bounds` that give agents the action spaces of a checkpoint."""
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


def _teams_of(about: Mapping[str, Any], agents: Sequence[str]) -> dict[str, list[str]]:
    """Returns the teams of some agents of a checkpoint, which may have more agents."""
    teams: dict[str, list[str]] = {}
    for team, members in about["groups"].items():
        inside = [member for member in members if member in agents]
        if inside and len(inside) < len(members):
            raise CannotEvaluate(
                f"its team {team!r} is {', '.join(members)}, of which only {', '.join(inside)} "
                "would play; a team's policy cannot be divided"
            )
        if inside and list(members) != [team]:  # a team of one agent with its name is made anyway
            teams[team] = list(members)
    return teams


def policies_of(
    about: Mapping[str, Any], agents: Sequence[str], teams: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Returns by policy of a checkpoint the agents or teams that it acts for.

    Args:
        about: the checkpoint's note, with its ``agents``.
        agents: the agents to include.
        teams: by name: the members; empty if a policy acts for single agents.
    """
    team_of = {member: team for team, members in teams.items() for member in members}
    policies: dict[str, list[str]] = {}
    for agent in agents:
        seats = policies.setdefault(about["agents"][agent]["policy"], [])
        seat = team_of.get(agent, agent)
        if seat not in seats:
            seats.append(seat)
    return policies


def on_free_port(server: ServerConfig) -> ServerConfig:
    """Returns a server's config changed to listen on a free port of the loopback address.

    The run's port may be taken by another run, and no one else should connect.
    """
    return replace(server, host="127.0.0.1", port=0, token="", shadow="")


def label_of(server: ServerConfig) -> str:
    """Returns a server's label in assignments, by default the algorithm that trained its policies.

    Raises:
        AlgorithmProblem: the server's checkpoint cannot be read.
    """
    if server.label or server.algorithm.upper() != "FROZEN":
        return server.label or algorithm_label(server.algorithm, server.command)
    trained_by = Checkpoint.open(Path(server.settings.get("checkpoint", ""))).algorithm
    return algorithm_label(trained_by)
