"""The keys of an experiment's YAML. The keys of a server are in `muxrl.servers.config`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from muxrl.orchestrator.config.spaces import find_space_problem
from muxrl.servers.config import Port, RestartsConfig, ServerConfig
from muxrl.servers.declared import (
    AboveZero,
    Adjustable,
    Check,
    Form,
    Free,
    NotInResults,
    NotNegative,
    Secret,
    between,
)

T = TypeVar("T")
_MAX_SEED = 2**32 - 1
Seed = NotNegative[Annotated[T, between(0, _MAX_SEED, f"must be at most {_MAX_SEED}")]]
_Space = Annotated[dict[str, Any], Form(find_space_problem)]
_Number = Annotated[float, Check(lambda v: not math.isnan(v), "must be a number")]
_SHARE = between(0, 1, "must be a share, from 0 to 1")


@dataclass
class ExternalAgentConfig:
    """Spaces of one agent of an external simulation; "driver_{0..9}" stands for ten of them."""

    observation_space: _Space = field(default_factory=dict)
    """Such as {type: box, shape: [4]} or {type: discrete, n: 2}."""
    action_space: _Space = field(default_factory=dict)
    """Likewise."""


@dataclass
class GatewayConfig:
    """The one address of all servers for an external simulation."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback requires a token."""
    port: Port = 0
    """TCP port; 0 takes any free one (see `gateway.json` in the run directory)."""
    token: Secret[str] = ""
    """Bearer token that simulations must send; "": none (loopback only)."""


@dataclass
class SimulationConfig:
    """The simulation of all agents."""

    env: str = ""
    """'package.module:callable' of a PettingZoo (parallel or AEC), Gymnasium or RLlib multi-agent
    environment, 'gymnasium:ENV_ID', 'pettingzoo:ENV_ID', 'open_spiel:GAME', or 'external': you
    start it, or `command`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment; an RLlib class gets them as its config. "{index}" is the copy's
    number, from 0 over all training processes, then the evaluation's; "{5000 + 2*index}" is a port
    for each."""
    metrics: dict[str, str] = field(default_factory=dict)
    """Key of the infos to what counts of an episode: last, sum, mean, max or min. See
    [Metrics](concepts.md#metrics); not for 'external'."""
    parameters: Adjustable[dict[str, Any]] = field(default_factory=dict)
    """What `reset(options=...)` gets in each episode. See [Curriculum](concepts.md#curriculum)."""
    respawn: Literal["refuse", "same_id", "same_step", "new_ids"] = "refuse"
    """How agents come back in the episode in which they ended: "refuse": not; "same_id": in a later
    step, of 'external' in any; "same_step": the observation in the step of their end is the next
    life's first; "new_ids": under undeclared ids, in the place of agents of their kind that have
    ended. A team ends with its last member. Not for LSTMs, nor in turn-based environments."""
    on_bad_value: Adjustable[Literal["stop", "episode"]] = "stop"
    """What a number ends that is not finite, or beyond `limits`: the simulation's process (see
    `restarts`), or the episode, which is closed before that step and counted."""
    record: Free[Annotated[float, _SHARE]] = 0.0
    """Share of training episodes that is kept; see [What was
    played](concepts.md#what-was-played). Not for 'external'."""
    num_processes: Adjustable[AboveZero[int]] = 1
    """Simulation processes."""
    num_envs_per_process: Adjustable[AboveZero[int]] = 1
    """Environments of each process; they share every message."""
    vector_env: bool = False
    """Whether `env` makes one environment of all `num_envs_per_process` copies. See [Vector
    environments](environments.md#vector-environments)."""
    num_cpus: Free[NotNegative[float]] = 0.5
    """Logical CPUs that each process reserves in a sweep or on a cluster, for placement only."""
    inference_mode: Adjustable[Any] = "remote"
    """Who chooses training actions: "remote": servers; "local": simulations; or a dict by server.
    Not for 'external'. See [Local inference](client.md#local-inference)."""
    update_interval_s: Adjustable[NotNegative[float | None]] = 0.0
    """With "local": least time between two pulls of weights; null: only at a server's start."""
    restarts: Free[RestartsConfig] = field(default_factory=RestartsConfig)
    """Of each simulation process, and of the evaluation."""
    agents: NotInResults[dict[str, ExternalAgentConfig]] = field(default_factory=dict)
    """Agent, or several as "driver_{0..9}", to its spaces; only for 'external'."""
    state_size: NotInResults[AboveZero[int | None]] = None
    """Length of the global state; only for 'external'. null: none is sent."""
    gateway: Free[GatewayConfig] = field(default_factory=GatewayConfig)
    """Only for 'external'."""
    command: Free[list[str]] = field(default_factory=list)
    """Only for 'external': program and arguments, started `num_processes` times with the run.
    {gateway} becomes the gateway's address, http://host:port, and {index} 0, 1, ... Empty: you
    start it."""


@dataclass
class StopConfig:
    """When a run ends: at the first of these."""

    env_steps: AboveZero[int | None] = None
    """Steps of all environments together. Then open episodes are played to their ends, for
    checkpoint.hold_s at most; in a vector environment, an external simulation, or without
    checkpoint.at_end they are cut."""
    time_s: AboveZero[float | None] = None
    """Seconds since the first env step, or since a simulation was lost before it."""
    iterations: AboveZero[int | None] = None
    """Training iterations of every server."""
    episode_return: dict[str, _Number] = field(default_factory=dict)
    """Server to return; the run ends when all reach theirs: the mean over the server's agents and
    the last 100 training episodes that they were in, at least 20."""
    metric_at_least: dict[str, _Number] = field(default_factory=dict)
    """Metric to value, such as {win: 0.9}; likewise, of the episode, else the mean over all
    agents."""
    metric_at_most: dict[str, _Number] = field(default_factory=dict)
    """The same for metrics that should fall, such as {travel_s: 300}."""


@dataclass
class EvaluationConfig:
    """How the servers are measured: each against random agents in its place."""

    interval_env_steps: AboveZero[int | None] = None
    """Env steps between evaluations; null: only at the end. Training waits for each."""
    num_episodes: AboveZero[int] = 20
    """Episodes of an evaluation during the run, for each condition."""
    final_num_episodes: NotNegative[int] = 100
    """Episodes of the evaluation at the end; 0: none."""
    max_episode_steps: AboveZero[int] = 27_000
    """Env steps after which an evaluation episode is truncated."""
    num_envs: AboveZero[int | None] = None
    """Environments in the evaluation's process; null: `simulation.num_envs_per_process`, up to 8
    (with `vector_env` one)."""
    should_compare_untrained: bool | None = None
    """Whether the evaluation at the end also plays each server's untrained policies. null: unless
    the simulation is external."""
    should_explore: bool = False
    """Whether stochastic policies (PPO, SAC) are sampled; false: their likeliest action."""
    seed: Seed[int | None] = None
    """Seed of each evaluation's first episode. null: from the run's `seed`, so that runs of one
    seed play the same episodes, and others do not."""
    parameters: Adjustable[dict[str, Any]] = field(default_factory=dict)
    """Those of `simulation.parameters` that are others here: a number, or what is drawn. See
    [Curriculum](concepts.md#curriculum)."""


TOTAL = "total"
"""Stands in place of a server, and means all agents together."""
RETURN = "return"
"""Stands in place of a metric's name, and means the return."""


@dataclass
class BestConfig:
    """Which checkpoints are kept for their evaluations."""

    of: str = TOTAL
    """A server (in a sweep also a role): the mean over its agents; "total": the sum over all."""
    keep: AboveZero[int] = 1
    """How many: checkpoints/best, checkpoints/best-2 and so on."""
    name: str = RETURN
    """"return", a key of `simulation.metrics`, "episode_length" or "truncated"; see
    [Sweeps](sweeps.md#the-metric)."""
    mode: Literal["max", "min"] = "max"
    """What is better."""


@dataclass
class CheckpointConfig:
    """When checkpoints of all servers are written; see [Reliability](reliability.md)."""

    at_end: bool = True
    """Whether one is written when the run ends, in any way."""
    interval_s: AboveZero[float | None] = 600.0
    """Seconds between checkpoints."""
    interval_env_steps: AboveZero[int | None] = None
    """Env steps between checkpoints."""
    keep_last: AboveZero[int] = 2
    """How many are kept."""
    keep_every_env_steps: AboveZero[int | None] = None
    """Snapshots: one is written at each multiple, where episodes end (external ones pause in their
    middle), and kept for good, also where a resumed run has another value."""
    best: BestConfig | None = None
    """Which are kept for their evaluations; one is then written before each. Of all of these as
    many episodes count, the first ones."""
    replay_max_mib: NotNegative[int | None] = 1024
    """Largest replay in a checkpoint; a resumed run fills a larger one again. null: any."""
    hold_s: NotNegative[float] = 10.0
    """Seconds in which episodes may end before servers save; then simulations pause between two
    steps."""


@dataclass
class TimeoutsConfig:
    """How long the run waits for its own processes, in seconds."""

    start_s: AboveZero[float] = 120.0
    """For the servers to listen."""
    report_s: AboveZero[float] = 60.0
    """For a process's report, due about once a second; then it is killed and restarted."""
    step_s: AboveZero[float] = 1800.0
    """For one step or reset of a simulation; likewise. See also `limits.episode_timeout_s`."""
    make_env_s: AboveZero[float] = 600.0
    """For one environment to be made."""
    update_s: AboveZero[float] = 600.0
    """For an update: while simulations wait, at the end, and before a checkpoint."""
    save_s: AboveZero[float] = 300.0
    """For a server's checkpoint."""
    stop_s: AboveZero[float] = 45.0
    """For the servers to end."""


@dataclass
class ExperimentConfig:
    """One run: a simulation, the servers that learn from it, and when to stop."""

    name: NotInResults[str] = ""
    """Name of the experiment and of its run directories; "": the config file's."""
    base: NotInResults[str] = ""
    """Experiment whose keys hold where this one says nothing."""
    seed: NotInResults[Seed[int]] = 0
    """Seed of all servers and simulations."""
    runs_dir: Free[str] = "runs"
    """Parent of the run directories."""
    storage_path: Free[str | None] = None
    """URI, such as s3://bucket/runs, for a [copy](cluster.md#a-copy-elsewhere) of the run
    directory."""
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    """The environment and its copies."""
    servers: dict[str, ServerConfig] = field(default_factory=dict)
    """Server id to its algorithm and agents; every agent belongs to exactly one server."""
    stop: Free[StopConfig] = field(default_factory=StopConfig)
    """When the run ends."""
    evaluation: Free[EvaluationConfig] = field(default_factory=EvaluationConfig)
    """How the servers are measured."""
    checkpoint: Free[CheckpointConfig] = field(default_factory=CheckpointConfig)
    """When checkpoints are written."""
    timeouts: Free[TimeoutsConfig] = field(default_factory=TimeoutsConfig)
    """How long processes are waited for."""
    metrics_interval_s: Free[AboveZero[float]] = 1.0
    """Seconds between two rows of metrics."""
    trackers: Free[list[str]] = field(default_factory=lambda: ["tensorboard"])
    """Names of [trackers](monitoring.md#trackers), or "package.module:name"."""
    watch: Free[bool] = False
    """Whether a [live page](monitoring.md#the-live-page) of the run, or sweep, is served; its
    address is printed."""
    address: Free[str] = ""
    """Ray cluster to join, such as "auto" or "ray://head:10001"; "": this machine."""
