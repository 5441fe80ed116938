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
    """One member of a league: the role that it plays, its server, and whom it trains against."""

    role: str = ""
    """Role that the member plays."""
    server: Annotated[dict[str, Any], KeysOf(ServerConfig)] = field(default_factory=dict)
    """Keys of the member's server, such as `settings`. They replace those of the base's server that
    has the role's name, if that server learns."""
    meets: list[str] = field(default_factory=lambda: ["*"])
    """Members, as names or patterns, against whose archived checkpoints it trains."""
    first_round: AboveZero[int] = 1
    """First round in which the member trains."""
    every_rounds: AboveZero[int] = 1
    """From the first round on, the member trains once in this number of rounds; 1: in each."""
    is_fresh: bool = False
    """Whether the member begins each round with new weights, as an exploiter does; false: with
    those that it had at the end of its last round."""


@dataclass
class OpponentsConfig:
    """The POOL that plays the other roles while a member trains."""

    draw: Literal["weights", "recency", "hard", "even", "nash", "alpha_rank"] = "weights"
    """How the opponent of an episode is drawn. "weights", "hard" and "even" as by POOL. "recency":
    the newest of a member's k entries is k times as likely as the oldest one. "nash" (for returns
    with a constant sum) and "alpha_rank": each entry as often as that solution of the games so far
    plays it."""
    win_above: float = 0.0
    """POOL's setting of this name: an opponent was beaten in an episode if the summed return of its
    agents was below this."""
    should_explore: bool = True
    """POOL's setting of this name, for all entries: whether they sample actions as in training."""
    last: AboveZero[int | None] = None
    """How many of each member's entries, from the newest, can be drawn; null: all."""
    also: dict[str, Any] = field(default_factory=dict)
    """Further members of every POOL, such as `{chance: {algorithm: RANDOM}}`."""


@dataclass
class ExploitConfig:
    """Population-based training: after a round the worst member of a role takes over the weights
    and settings of the best one, and the settings are changed by a step."""

    role: str = ""
    """Role whose members are ranked, by their ratings; "": no member takes over anything."""
    every_rounds: AboveZero[int] = 1
    """A member takes over weights once in this number of rounds; 1: after each."""
    parameters: dict[str, ParameterConfig] = field(default_factory=dict)
    """Maps keys of a member's server (`settings.lr`) to their values. A step goes to a neighbouring
    value of `choice`; with the other kinds it multiplies the value by 0.8 or 1.25, within their
    limits. A value that a member does not give is drawn at the beginning."""


@dataclass
class LeagueConfig:
    """Members that train in rounds, in each round against the archive of the rounds before."""

    name: str = ""
    """Name of the league and of its directories; "": the name of its file."""
    base: str = ""
    """Experiment from which all rounds take the keys that the league does not give, as with a
    sweep's `base`."""
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    """Keys of an experiment, which replace those of `base`; its `stop` holds for each member in
    each round."""
    roles: dict[str, list[str]] = field(default_factory=dict)
    """Maps the name of each role to its agents, as in a sweep; empty: each server of the experiment
    is a role."""
    interchangeable: list[str] = field(default_factory=list)
    """Roles whose members can also play each other's roles."""
    members: dict[str, MemberConfig] = field(default_factory=dict)
    """Maps the name of each member to its role, its server and whom it trains against."""
    opponents: OpponentsConfig = field(default_factory=OpponentsConfig)
    """The POOL that plays the other roles while a member trains."""
    archive_every_rounds: AboveZero[int] = 1
    """The last checkpoints of a round enter the archive once in this number of rounds; 1: after
    each."""
    rounds: AboveZero[int] = 5
    """Number of rounds."""
    exploit: ExploitConfig = field(default_factory=ExploitConfig)
    """Population-based training."""
    num_episodes: AboveZero[int] = 50
    """Episodes of each game by which members are rated; policies sample or take the likeliest
    action, as in evaluations."""
    max_concurrent: AboveZero[int | None] = None
    """Largest number of trials at the same time; null: as many as there are CPUs for."""
    leagues_dir: str = "leagues"
    """Directory in which league directories are made."""
    address: str = ""
    """Address of the Ray cluster on which the runs are placed, such as "auto"; "": this machine."""
