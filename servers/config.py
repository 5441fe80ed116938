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
    """What a server's process reserves, and its number of threads."""

    num_cpus: NotNegative[float] = 0.5
    """Logical CPUs that the process reserves in a sweep or on a cluster; they do not limit it."""
    num_gpus: NotNegative[float] = 0.0
    """GPUs that the process reserves, or a fraction of one; above 0 the server learns on a GPU, and
    acts on it where that is faster."""
    num_torch_threads: AboveZero[int] = 1
    """Number of PyTorch's threads; more than one helps only if cores are idle."""


@dataclass
class LimitsConfig:
    """What a server [refuses](protocol.md#limits), and after how long it gives up on a silent
    client."""

    max_episodes: AboveZero[int] = 1024
    """Largest number of open episodes; another one is refused (429)."""
    max_connections: AboveZero[int] = 500
    """Largest number of open connections; another one is refused (503)."""
    max_message_bytes: AboveZero[int | None] = None
    """Longest WebSocket frame or HTTP body, in bytes; null: as long as the declared spaces can
    need, at most 64 MiB."""
    max_abs_reward: AboveZero[float | None] = 1e12
    """Largest absolute value of an agent's reward in one step; null: any finite reward."""
    max_abs_observation: AboveZero[float | None] = 1e15
    """Largest absolute value of a number in a global state, or in a Box of real numbers of an
    observation; null: any finite number."""
    episode_timeout_s: AboveZero[float] = 1800.0
    """Seconds without a message after which an episode is truncated, and an HTTP connection closed;
    the run's own pauses do not count."""
    tombstone_s: NotNegative[float] = 2700.0
    """Seconds for which an ended episode is remembered, so that a repeated end gets the same
    answer."""


@dataclass
class RestartsConfig:
    """How often a process is restarted that has died, has raised an exception or does not
    answer."""

    max: NotNegative[int] = 3
    """Number of restarts within `within_s`; if another one is needed, the run ends."""
    within_s: AboveZero[float] = 600.0
    """Length, in seconds, of the period in which restarts are counted."""


@dataclass
class ServerConfig:
    """One policy server: its algorithm, its agents, and how they share policies."""

    algorithm: str = ""
    """Name of an [algorithm](algorithms.md), or "package.module:Class" of your own; "": PPO, or
    with `command` or `address` EXTERNAL."""
    agents: NotInResults[list[str]] = field(default_factory=list)
    """The agents that the server acts for: names, or patterns such as "adversary_*" and
    "adversary_{0..2}"."""
    shadow: str = ""
    """Id of a server from whose agents' steps this server [learns](algorithms.md#shadow-learners),
    without acting itself."""
    replace_by: Adjustable[str] = ""
    """For a resumed run: id of a shadow that acts in place of this server, which is no longer
    started."""
    label: NotInResults[str] = ""
    """Name of the server in assignments and results, such as "ppo_lstm"; "": the name of its
    algorithm."""
    host: Free[str] = "127.0.0.1"
    """Address on which the server listens."""
    port: Free[Port] = 0
    """TCP port on which the server listens; 0: a free port, which is written to the run's
    `servers.json`."""
    token: Secret[str] = ""
    """Bearer token that clients must send; "": none (allowed on loopback only)."""
    policies: dict[str, list[str]] = field(default_factory=dict)
    """Maps policy ids to the agents or groups that share the policy, as names or patterns. Empty:
    all share one policy "default" if they have the same spaces (with MAPPO: and equally large
    groups; with HAPPO: never), otherwise each has a policy of its own."""
    groups: dict[str, list[str]] = field(default_factory=dict)
    """Maps the name of each [team](algorithms.md#teams) to its members, as names or patterns."""
    team_reward: Literal["sum", "mean"] = "sum"
    """Whether a team's reward is the sum or the mean of its members' rewards."""
    late_members: Literal["refuse", "allow"] = "refuse"
    """Whether a [team](algorithms.md#teams)'s first step in an episode may lack members that take
    turns or join late."""
    use_global_state: bool = True
    """Whether a mixer or a central critic reads the [global state](algorithms.md#teams), if there
    is one; false: it reads the members' observations side by side."""
    settings: Adjustable[dict[str, Any]] = field(default_factory=dict)
    """Settings of the algorithm; the algorithm's [page](algorithms.md) lists them."""
    action_bounds: list[float] = field(default_factory=list)
    """[lowest, highest]: bounds for Box actions wherever their space has none. The limits of an
    integer type do not count as bounds of the space."""
    model: dict[str, Any] = field(default_factory=dict)
    """Settings of the networks: the fields of RLlib's DefaultModelConfig, or with `rl_module` the
    module's model_config."""
    rl_module: str = ""
    """"package.module:Class" of your own RLModule; "": the default networks of RLlib."""
    scale_observations: Literal["images", "bounded", "none"] = "images"
    """Which observations are scaled to 0..1 by the bounds of their space. "images": Boxes of uint8
    with three dimensions. "bounded": these, and all other numbers with bounds on both sides, none
    beyond ±1,000,000."""
    normalize_observations: bool = False
    """Whether each number of an observation is [normalised](algorithms.md#scaled-and-normalised) by
    its running mean and standard deviation in training, and clipped to ±10."""
    frame_stack: int = 1
    """How many of an agent's last observations a network [reads at
    once](algorithms.md#stacked-frames)."""
    normalize_rewards: bool = False
    """Whether an on-policy algorithm divides rewards by the running standard deviation of the
    discounted return, and clips them to ±10."""
    while_learning: Adjustable[WhileLearning] = "auto"
    """What happens during an update. "wait": simulations wait; "serve": agents act with the last
    weights; "auto": "wait" for on-policy algorithms, "serve" for others."""
    max_policy_lag: Adjustable[Annotated[int, _LAG]] = 1
    """With while_learning "serve": how many batches may be
    [ahead](concepts.md#learning-while-serving) of the learner; with one more, simulations wait."""
    callbacks: Adjustable[str] = ""
    """"package.module:Class" of your own [callbacks](own-trainer.md#callbacks)."""
    initialize_from: str = ""
    """Where the [first weights](algorithms.md#checkpoints) come from: a run directory (its server
    with the same id) or the folder of a server's checkpoint."""
    initialize_policies: dict[str, str] = field(default_factory=dict)
    """Maps policy ids of this server to those of that checkpoint, where the two differ."""
    initialize_only: Literal["all", "actor"] = "all"
    """Which weights of that checkpoint are taken. "actor": only those that act; critics and mixers
    begin with new weights."""
    on_server_loss: Adjustable[Literal["wait", "random", "stop"]] = "wait"
    """What happens when the server is lost. "wait": simulations wait until it is restarted;
    "random": its agents act at random until then; "stop": the run ends."""
    restarts: Free[RestartsConfig] = field(default_factory=RestartsConfig)
    """How often the server is restarted: the keys of `simulation.restarts`."""
    resources: Free[ResourcesConfig] = field(default_factory=ResourcesConfig)
    """What the server's process reserves, and its number of threads."""
    limits: Free[LimitsConfig] = field(default_factory=LimitsConfig)
    """What the server refuses, and when it gives up waiting."""

    command: Adjustable[list[str]] = field(default_factory=list)
    """Program and arguments that start a [server of your own](own-trainer.md#a-process-of-its-own);
    "{address}" in an argument becomes the address to listen on."""
    address: Free[str] = ""
    """"host:port" of a server of your own that runs already."""

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
