"""The config of one policy server, as the user writes it and as it is resolved.

`ServerConfig` is the YAML side: patterns, defaults, free-form algorithm settings.
`ServerPlan` is what a server process is started with: every agent, policy and group by name,
with its spaces. The orchestrator resolves one into the other before any process starts, and
passes on nothing but plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from muxrl.protocol.spaces import Space

WhileLearning = Literal["auto", "serve", "wait"]


@dataclass
class ResourcesConfig:
    """What a server's process reserves on Ray, and its threads."""

    num_cpus: float = 0.5
    """Ray CPUs reserved; logical, for placement only."""
    num_gpus: float = 0.0
    """Ray GPUs reserved; the learner uses one if this is above 0."""
    num_torch_threads: int = 1
    """Threads of torch inside the process; more than one only helps on idle cores."""


@dataclass
class LimitsConfig:
    """What a server refuses, and when it gives up waiting."""

    max_episodes: int = 1024
    """Open episodes at one time; one more is refused with 429."""
    max_connections: int = 500
    """Open connections at one time; one more is refused with 503."""
    max_message_bytes: int | None = None
    """Longest frame or body accepted; null: what the declared spaces can need, 64 MiB at most."""
    max_abs_reward: float | None = 1e12
    """Largest reward of an agent in a step, up or down; null: what is finite. Beyond it a number is
    a mistake, or will spoil what is learned."""
    max_abs_observation: float | None = 1e15
    """Largest number in an observation or a global state, up or down, likewise; Boxes of real
    numbers only. Milliseconds since 1970 are 2e12."""
    episode_timeout_s: float = 1800.0
    """An episode without a message for this long is closed as truncated. An idle HTTP connection is
    kept for as long."""
    tombstone_s: float = 2700.0
    """For how long an ended episode is remembered, to answer a repeated end; the last 100,000."""


@dataclass
class RestartsConfig:
    """How often a process that died, raised or is silent is started again before the run ends;
    `simulation.restarts` has the same keys."""

    max: int = 3
    """Restarts within `within_s`; with one more the run ends. 0: with the first loss."""
    within_s: float = 600.0
    """Seconds in which restarts are counted."""


@dataclass
class ServerConfig:
    """One policy server: an algorithm, its agents, and how they share policies."""

    algorithm: str = "PPO"
    """Name of an algorithm: PPO, A2C, MAPPO, HAPPO, DQN, SAC, IMPALA, APPO, QMIX, VDN, QPLEX,
    IQL, MASAC, MADDPG; or of one that does not learn: RANDOM, SCRIPTED, FROZEN."""
    agents: list[str] = field(default_factory=list)
    """Agents served: names, shell patterns such as "adversary_*", or numbers counted in braces,
    "adversary_{0..2}"."""
    label: str = ""
    """Name in assignments and results, "" for the algorithm's own: "ppo_lstm", say, to tell two
    settings of PPO apart."""
    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback demands a token."""
    port: int = 0
    """TCP port; 0 takes any free one, published in the run directory."""
    token: str = ""
    """Bearer token that clients must present; "" asks for none (loopback only)."""
    policies: dict[str, list[str]] = field(default_factory=dict)
    """Policy id to the agents (or groups) that share it, as names or patterns; empty: one
    policy "default" if the spaces of all are alike, else one for each agent or group; HAPPO has
    one for each agent in any case."""
    groups: dict[str, list[str]] = field(default_factory=dict)
    """Team name to its members, as names or patterns; for algorithms that learn jointly, and for
    MAPPO and HAPPO, whose members of a group earn the team's reward and share its state."""
    team_reward: Literal["sum", "mean"] = "sum"
    """How the members' rewards become the team's."""
    late_members: Literal["refuse", "allow"] = "refuse"
    """What happens where a team acts for the first time in an episode without all of its members:
    "refuse" names the one that is missing; "allow" is for members that take turns or join late."""
    use_global_state: bool = True
    """Whether a mixer or a central critic sees the global state, where the simulation has one or
    its agents observe it (key "state"); false: the members' observations side by side, which
    spares the simulation from computing its state."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the algorithm's own RLlib config, by attribute name."""
    action_bounds: list[float] = field(default_factory=list)
    """[lowest, highest] in place of the bounds that its agents' Box actions lack, on one side or
    both: policies act within them. Empty: they have bounds, or the algorithm needs none."""
    model: dict[str, Any] = field(default_factory=dict)
    """Network settings: fields of RLlib's DefaultModelConfig; with `rl_module` what it reads."""
    rl_module: str = ""
    """Import path "package.module:Class" of your own RLModule, "" for RLlib's default networks;
    with your own, `model` is its model_config."""
    scale_observations: Literal["images", "bounded", "none"] = "images"
    """What is scaled to 0..1 by the bounds of its space before a network reads it: "images" (a Box
    of uint8 in three dimensions), "bounded": every Box with bounds on both sides, or "none"."""
    normalize_observations: bool = False
    """Whether a network reads observations less their running mean, by their running standard
    deviation, within ±10. Training episodes alone count; the statistics are part of a checkpoint
    and of an exported policy."""
    frame_stack: int = 1
    """Observations that a network reads at once: an agent's last so many in its episode, vectors
    end to end and images by channel, with its first one for those that are missing. Action masks
    and the global state are not stacked."""
    normalize_rewards: bool = False
    """Whether rewards are divided by the running standard deviation of the discounted return,
    within ±10, before PPO, A2C, MAPPO or HAPPO learns from them. Returns are shown as they come."""
    while_learning: WhileLearning = "auto"
    """"wait" holds simulations while an update runs (hardly any policy lag), "serve" goes on acting
    with the last weights; "auto": wait for on-policy, serve for off-policy algorithms."""
    max_policy_lag: int = 1
    """With "serve": batches that may be complete or in learning before acting has to wait."""
    initialize_from: str = ""
    """Run directory (its last checkpoint's server of the same id) or folder of a checkpoint, whose
    weights the policies begin with; all else begins anew. "": no such weights."""
    initialize_policies: dict[str, str] = field(default_factory=dict)
    """With `initialize_from`: policy id to the one there that it begins with, where names differ.
    Several may begin with one."""
    initialize_only: Literal["all", "actor"] = "all"
    """With `initialize_from`: "actor" takes what acts, and begins critics, mixers and targets anew:
    for a team of another size, if what acts reads no agent's id."""
    on_server_loss: Literal["wait", "random", "stop"] = "wait"
    """"wait": it is started again from the newest checkpoint, as `restarts` allows, and simulations
    wait for it; "random": its agents act at random until it is back, and the others learn on;
    "stop": the run ends."""
    restarts: RestartsConfig = field(default_factory=RestartsConfig)
    """When the run ends nevertheless."""
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    """Placement and threads."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    """Refusals and expiry."""


@dataclass(frozen=True)
class AgentPlan:
    """One agent of a server."""

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
    """Team name to members, in the order in which they enter the team's arrays."""
    state_size: int | None
    """Length of the global state that the simulation is asked for; None: it is not asked."""
    team_reward: Literal["sum", "mean"]
    settings: dict[str, Any]
    model: dict[str, Any]
    while_learning: Literal["serve", "wait"]
    max_policy_lag: int
    host: str
    port: int
    token: str
    seed: int
    resources: ResourcesConfig
    limits: LimitsConfig
    rl_module: str = ""
    """Import path of the user's own RLModule, "": the algorithm's default."""
    scale_observations: Literal["images", "bounded", "none"] = "none"
    """What is scaled to 0..1 by the bounds of its space; "none" where that makes no difference."""
    normalize_observations: bool = False
    """Whether observations are normalised by running statistics."""
    frame_stack: int = 1
    """Observations of an agent that a network reads at once."""
    normalize_rewards: bool = False
    """Whether rewards are divided by the running deviation of the discounted return."""
    late_members: Literal["refuse", "allow"] = "refuse"
    """Whether a team may act for the first time in an episode without all of its members."""
    use_global_state: bool = True
    """Whether a state that a team's members observe, if the simulation sends none, is its state."""
    samples_actions: bool = False
    """Whether it learns policies that actions can be drawn from (PPO), not only values (QMIX)."""
    resume_from: str = ""
    """Folder of a checkpoint with which it goes on: weights, optimizers, counts, replay, random
    numbers; "": it begins anew."""
    initialize_from: str = ""
    """Folder of a checkpoint whose weights its policies begin with; all else is fresh. "": none."""
    initialize_policies: dict[str, str] = field(default_factory=dict)
    """Policy to the one there that it begins with; those left out to that of their name."""
    initialize_only: Literal["all", "actor"] = "all"
    """Whether they begin with what acts alone."""
    num_restarts: int = 0
    """How often its run has started it again."""
    keep_replay_mib: int | None = 1024
    """Largest replay that its checkpoints hold; None: any."""
    agents_return: bool = False
    """Whether an agent that has ended may come back in the same episode, in a new life."""
    keeps_untrained: bool = False
    """Whether it keeps the weights that it began with, so that agents can act with them in episodes
    for evaluation, beside the learned ones."""

    @property
    def reads_state(self) -> bool:
        """Whether the simulation is asked for its global state."""
        return self.state_size is not None
