"""The keys of a league's YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.orchestrator.sweeps.schema import ParameterConfig
from muxrl.servers.config import ServerConfig
from muxrl.servers.declared import AboveZero, KeysOf


@dataclass
class MemberConfig:
    """Who trains, in which role, against whom."""

    role: str = ""
    """The role that it plays."""
    server: Annotated[dict[str, Any], KeysOf(ServerConfig)] = field(default_factory=dict)
    """Keys of its server, such as `settings`, on top of the base's server of the role's name, if
    that learns."""
    meets: list[str] = field(default_factory=lambda: ["*"])
    """Members whose past it meets, as names or patterns."""
    first_round: AboveZero[int] = 1
    """The first round in which it trains."""
    every_rounds: AboveZero[int] = 1
    """It trains in each of so many rounds from then on."""
    is_fresh: bool = False
    """Whether each round begins with new weights, as an exploiter; false: with its last ones."""


@dataclass
class OpponentsConfig:
    """The POOL that plays the other roles while a member trains."""

    draw: Literal["weights", "recency", "hard", "even", "nash", "alpha_rank"] = "weights"
    """As POOL's; "recency": the newest of a member's k entries is as likely as k of its oldest;
    "nash" (of zero sum), "alpha_rank": as often as in that solution of the games so far."""
    win_above: float = 0.0
    """As POOL's."""
    should_explore: bool = True
    """As POOL's, for all entries."""
    last: AboveZero[int | None] = None
    """How many entries of each member, newest first; null: all."""
    also: dict[str, Any] = field(default_factory=dict)
    """Further members of every POOL, such as `{chance: {algorithm: RANDOM}}`."""


@dataclass
class ExploitConfig:
    """Population-based training: after a round the worst member of a role takes over the best one's
    weights and settings, these changed by a step."""

    role: str = ""
    """Of the members that are ranked, by their ratings; "": nobody is."""
    every_rounds: AboveZero[int] = 1
    """After each of so many rounds."""
    parameters: dict[str, ParameterConfig] = field(default_factory=dict)
    """Key of a member's server (`settings.lr`) to its values: from `choice` a neighbour, within the
    limits of the others 0.8 or 1.25 times as much. What a member does not say is drawn at first."""


@dataclass
class LeagueConfig:
    """Members that train in rounds, each round against the archive of those before."""

    name: str = ""
    """Name of the league and of its directories; "": the file's."""
    base: str = ""
    """Experiment of all rounds, as a sweep's `base`."""
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    """An experiment's keys, in addition to `base`; its `stop` is for each member and round."""
    roles: dict[str, list[str]] = field(default_factory=dict)
    """Role to its agents, as a sweep's; empty: each server of the experiment is one."""
    interchangeable: list[str] = field(default_factory=list)
    """Roles whose members can play each other's part."""
    members: dict[str, MemberConfig] = field(default_factory=dict)
    """Name to who trains."""
    opponents: OpponentsConfig = field(default_factory=OpponentsConfig)
    """Whom they meet."""
    archive_every_rounds: AboveZero[int] = 1
    """Last checkpoints of each of so many rounds enter the archive."""
    rounds: AboveZero[int] = 5
    """How many."""
    exploit: ExploitConfig = field(default_factory=ExploitConfig)
    """Population-based training."""
    num_episodes: AboveZero[int] = 50
    """Of each game by which members are rated; greedy or sampled as in evaluations."""
    max_concurrent: AboveZero[int | None] = None
    """As a sweep's."""
    leagues_dir: str = "leagues"
    """Parent of the league directories."""
    address: str = ""
    """Ray cluster to join, such as "auto"; "": this machine."""
