"""The config of one policy server, as the user writes it and as it is resolved.

`ServerConfig` is the YAML side: patterns, defaults, free-form algorithm settings.
`ServerPlan` is what a server process is started with: every agent, policy and group by name,
with its spaces. The orchestrator makes plans of configs before any process starts; processes get
plans only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from muxrl.protocol.spaces import Space
from muxrl.servers.declared import (
    AboveZero,
    Adjustable,
    Check,
    Free,
    NotInResults,
    NotNegative,
    Secret,
    between,
)

WhileLearning = Literal["auto", "serve", "wait"]
Port = NotNegative[Annotated[int, between(0, 65_535, "must be at most 65535; 0 takes a free port")]]
_LAG = Check(
    lambda batches: batches >= 1,
    "must be at least 1; for no lag at all set while_learning: wait",
    (("minimum", 1),),
)
EXTERNAL = "EXTERNAL"
"""The algorithm of a server that runs in a separate process, with code of its own."""
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass
class ResourcesConfig:
    """What a server's process reserves, and its threads."""

    num_cpus: NotNegative[float] = 0.5
    """Logical CPUs reserved in a sweep or on a cluster, for placement only."""
    num_gpus: NotNegative[float] = 0.0
    """GPUs, or a part of one; above 0 learning uses one, and acting where it is faster."""
    num_torch_threads: AboveZero[int] = 1
    """Threads of torch; more than one helps only on idle cores."""


@dataclass
class LimitsConfig:
    """What a server refuses, and when it gives up waiting."""

    max_episodes: AboveZero[int] = 1024
    """Open episodes; one more is refused with 429."""
    max_connections: AboveZero[int] = 500
    """Open connections; one more is refused with 503."""
    max_message_bytes: AboveZero[int | None] = None
    """Longest frame or body; null: what the declared spaces can need, 64 MiB at most."""
    max_abs_reward: AboveZero[float | None] = 1e12
    """Largest absolute reward of an agent in a step; null: any finite one."""
    max_abs_observation: AboveZero[float | None] = 1e15
    """Largest absolute number in a real Box of an observation, or in a global state; null: any
    finite one."""
    episode_timeout_s: AboveZero[float] = 1800.0
    """Silence after which an episode is truncated, and an HTTP connection closed; a run's own
    pauses, for evaluations and checkpoints, do not count."""
    tombstone_s: NotNegative[float] = 2700.0
    """How long an ended episode is remembered, to answer a repeated end; the last 100,000."""


@dataclass
class RestartsConfig:
    """How often a process that died, raised or is silent is restarted; so
    `servers.SERVER.restarts`."""

    max: NotNegative[int] = 3
    """Restarts within `within_s`; one more ends the run."""
    within_s: AboveZero[float] = 600.0
    """Seconds in which restarts are counted."""


@dataclass
class ServerConfig:
    """One policy server: an algorithm, its agents, and how they share policies."""

    algorithm: str = ""
    """An [algorithm's](algorithms.md) name, "" for PPO, or "package.module:Class" of your own."""
    agents: NotInResults[list[str]] = field(default_factory=list)
    """Names, shell patterns such as "adversary_*", or numbers in braces, "adversary_{0..2}"."""
    shadow: str = ""
    """Server whose agents' steps it learns from, without acting; see [Shadow
    learners](algorithms.md#shadow-learners)."""
    replace_by: Adjustable[str] = ""
    """At a resume: the shadow that acts in its place from then on; it is not started any more."""
    label: NotInResults[str] = ""
    """Name in assignments and results, such as "ppo_lstm"; "": the algorithm's."""
    host: Free[str] = "127.0.0.1"
    """Address to listen on; anything but loopback requires a token."""
    port: Free[Port] = 0
    """TCP port; 0 takes any free one (see `servers.json` in the run directory)."""
    token: Secret[str] = ""
    """Bearer token that clients must send; "": none (loopback only)."""
    policies: dict[str, list[str]] = field(default_factory=dict)
    """Policy id to the agents or groups that share it, as names or patterns; empty: one policy
    "default" if all have the same spaces (MAPPO: and groups as large; HAPPO: never), else one for
    each."""
    groups: dict[str, list[str]] = field(default_factory=dict)
    """[Team](algorithms.md#teams) to its members, as names or patterns."""
    team_reward: Literal["sum", "mean"] = "sum"
    """How the members' rewards become the team's."""
    late_members: Literal["refuse", "allow"] = "refuse"
    """Whether a team may first act in an episode without all members, which take turns or join
    late. MAPPO and HAPPO, whose members stay agents, take these in any case."""
    use_global_state: bool = True
    """Whether a mixer or a central critic reads the global state, if there is one; false: the
    members' observations side by side."""
    settings: Adjustable[dict[str, Any]] = field(default_factory=dict)
    """Settings of the algorithm; see its [page](algorithms.md)."""
    action_bounds: list[float] = field(default_factory=list)
    """[lowest, highest] for Box actions without bounds; those of an integer type are none."""
    model: dict[str, Any] = field(default_factory=dict)
    """Network settings: fields of RLlib's DefaultModelConfig; with `rl_module` its model_config."""
    rl_module: str = ""
    """"package.module:Class" of your own RLModule; "": RLlib's default networks."""
    scale_observations: Literal["images", "bounded", "none"] = "images"
    """What is scaled to 0..1 by the bounds of its space: "images": Boxes of uint8 in three
    dimensions; "bounded": all numbers with bounds on both sides, up to a million."""
    normalize_observations: bool = False
    """Whether each number of the observations is normalised by its running mean and deviation in
    training, within ±10; see [Algorithms](algorithms.md#scaled-and-normalised)."""
    frame_stack: int = 1
    """How many of an agent's last observations a network reads; see [Stacked
    frames](algorithms.md#stacked-frames)."""
    normalize_rewards: bool = False
    """Whether an on-policy algorithm divides rewards by the running deviation of the discounted
    return, within ±10. Reported returns are raw."""
    while_learning: Adjustable[WhileLearning] = "auto"
    """"wait" holds simulations during an update, "serve" acts with the last weights, "auto" waits
    for on-policy algorithms."""
    max_policy_lag: Adjustable[Annotated[int, _LAG]] = 1
    """With "serve": batches that may be complete or in learning before acting has to wait."""
    callbacks: Adjustable[str] = ""
    """"package.module:Class" with `shape_rewards`, `on_episode` or `on_update`; see
    [callbacks](own-trainer.md#callbacks)."""
    initialize_from: str = ""
    """Run directory (the server of the same id) or folder of a checkpoint, for the [first
    weights](algorithms.md#checkpoints)."""
    initialize_policies: dict[str, str] = field(default_factory=dict)
    """Policy id to that of this checkpoint, where names differ."""
    initialize_only: Literal["all", "actor"] = "all"
    """"actor" leaves critics and mixers fresh; targets begin as what they follow."""
    on_server_loss: Adjustable[Literal["wait", "random", "stop"]] = "wait"
    """"wait": simulations wait until it is restarted from the newest checkpoint; "random": its
    agents act at random meanwhile; "stop": the run ends."""
    restarts: Free[RestartsConfig] = field(default_factory=RestartsConfig)
    """How often it is restarted."""
    resources: Free[ResourcesConfig] = field(default_factory=ResourcesConfig)
    """Placement and threads."""
    limits: Free[LimitsConfig] = field(default_factory=LimitsConfig)
    """Refusals and expiry."""

    command: Adjustable[list[str]] = field(default_factory=list)
    """Program and arguments of a [server of your own](own-trainer.md#a-process-of-its-own);
    "{address}" becomes where it has to listen."""
    address: Free[str] = ""
    """"host:port" of one that runs already."""

    def __post_init__(self) -> None:
        self.algorithm = self.algorithm or (EXTERNAL if self.command or self.address else "PPO")


def algorithm_label(name: str, command: Sequence[str] = ()) -> str:
    """Returns an algorithm's name in results: of an import path the part after the colon.

    Args:
        name: of the algorithm.
        command: starts an external process; it may name a class, which then gives the name.
    """
    if name.upper() == EXTERNAL:
        name = next(filter(_CLASS.fullmatch, command), name)
    return name.rpartition(":")[2]


@dataclass(frozen=True)
class AgentPlan:
    """One agent of a server: its policy, spaces and team."""

    policy_id: str
    observation_space: Space
    action_space: Space
    group: str | None = None


@dataclass(frozen=True)
class ServerPlan:
    """One policy server, resolved: everything that its process needs."""

    server_id: str
    algorithm: str
    agents: dict[str, AgentPlan]
    groups: dict[str, tuple[str, ...]]
    """Team name to members, in the order of the team's arrays."""
    state_size: int | None
    """Length of the global state that the server reads from the simulation; None: it reads none."""
    team_reward: Literal["sum", "mean"] = "sum"
    settings: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    while_learning: WhileLearning = "serve"
    """"auto": the server's process decides."""
    max_policy_lag: int = 1
    host: str = ""
    port: int = 0
    token: str = ""
    seed: int = 0
    shadow: str = ""
    """Id of the server that acts for its agents, whose steps it learns from; "": it acts itself."""
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    command: list[str] = field(default_factory=list)
    """Command that starts an external process; [] for none."""
    address: str = ""
    """"host:port" of a process that runs already; "" for none."""
    callbacks: str = ""
    """Import path of a class whose methods are called with episodes and updates; "" for none."""
    rl_module: str = ""
    """Import path of the user's own RLModule; "": the algorithm's default."""
    scale_observations: Literal["images", "bounded", "none"] = "none"
    """What is scaled to 0..1 by the bounds of its space; "none" if that would change nothing."""
    normalize_observations: bool = False
    """Whether observations are normalised by running statistics."""
    frame_stack: int = 1
    """Number of an agent's observations that a network reads at once."""
    normalize_rewards: bool = False
    """Whether rewards are divided by the running deviation of the discounted return."""
    late_members: Literal["refuse", "allow"] = "refuse"
    """Whether a team's first step in an episode may lack some of its members."""
    use_global_state: bool = True
    """Whether a team may use a state that its members observe, if the simulation sends none."""
    samples_actions: bool = False
    """Whether it learns policies that actions can be drawn from (PPO), not just values (QMIX)."""
    resume_from: str = ""
    """Folder of the checkpoint to resume from, with weights, optimizers, counts, replay and random
    numbers; "": it begins anew."""
    initialize_from: str = ""
    """Folder of a checkpoint with the first weights of its policies, and nothing else; "": none."""
    initialize_policies: dict[str, str] = field(default_factory=dict)
    """By policy: the policy of that checkpoint to begin with; default: the one of the same name."""
    initialize_only: Literal["all", "actor"] = "all"
    """Whether that checkpoint's critics are taken as well, or only the weights that act."""
    num_restarts: int = 0
    """How often the run has restarted the server."""
    keep_replay_mib: int | None = 1024
    """Largest replay that a checkpoint may hold, in MiB; None: any size."""
    agents_return: bool = False
    """Whether an agent that has ended may come back in the same episode, as a new life."""
    keeps_untrained: bool = False
    """Whether it keeps the weights that it began with, so that agents can act with them in
    evaluation episodes, beside the learned ones."""

    @property
    def shown_algorithm(self) -> str:
        """The algorithm's name in tables; for an external process the class in its command."""
        is_own = self.algorithm == EXTERNAL
        return algorithm_label(EXTERNAL, self.command) if is_own else self.algorithm
