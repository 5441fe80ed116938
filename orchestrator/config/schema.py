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
    """The spaces of one agent of an external simulation."""

    observation_space: _Space = field(default_factory=dict)
    """Space of the agent's observations, such as {type: box, shape: [4]} or {type: discrete, n:
    2}."""
    action_space: _Space = field(default_factory=dict)
    """Space of the agent's actions."""


@dataclass
class GatewayConfig:
    """The one address at which an external simulation reaches all servers."""

    host: str = "127.0.0.1"
    """Address on which the gateway listens."""
    port: Port = 0
    """TCP port on which the gateway listens; 0: a free port, which is written to the run's
    `gateway.json`."""
    token: Secret[str] = ""
    """Bearer token that simulations must send; "": none (allowed on loopback only)."""


@dataclass
class SimulationConfig:
    """The simulation in which all agents act."""

    env: str = ""
    """The environment: 'gymnasium:ENV_ID', 'pettingzoo:ENV_ID', 'open_spiel:GAME', or
    'package.module:callable' of a PettingZoo (parallel or AEC), Gymnasium or RLlib multi-agent
    environment. 'external': a program that you start, or that `command` starts."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment; an RLlib class gets them as its config. "{index}" in a text
    becomes the number of the environment's copy: 0, 1, ... over all training processes, then over
    the evaluation's. So "{5000 + 2*index}" gives each copy a port."""
    metrics: dict[str, str] = field(default_factory=dict)
    """Maps keys of the infos to how an episode's numbers become one [metric](concepts.md#metrics):
    last, sum, mean, max or min. Not for 'external'."""
    parameters: Adjustable[dict[str, Any]] = field(default_factory=dict)
    """Numbers, by name, that each episode gets in `reset(options=...)`
    ([curriculum](concepts.md#curriculum))."""
    respawn: Literal["refuse", "same_id", "same_step", "new_ids"] = "refuse"
    """Whether an agent that has ended may come back in the same episode. "same_id": under its id,
    in a later step (in any step of an external simulation). "same_step": at once; the observation
    in the step in which it ends is the first one of its next life. "new_ids": under an id that the
    environment has not declared, in the place of an ended agent of its kind. A team has ended once
    its last member has. Refused with `use_lstm` (except by MAPPO for groups) and in turn-based
    environments."""
    on_bad_value: Adjustable[Literal["stop", "episode"]] = "stop"
    """What happens when a server refuses a number that is not finite or exceeds the server's
    `limits`. "stop": the simulation's process ends, and is restarted as `restarts` allows.
    "episode": the episode is closed without that step, and counted; after 20 such episodes in a row
    the process ends."""
    record: Free[Annotated[float, _SHARE]] = 0.0
    """Share of the training episodes that is [recorded](concepts.md#what-was-played), from 0 to 1.
    Not for 'external'."""
    num_processes: Adjustable[AboveZero[int]] = 1
    """Number of simulation processes."""
    num_envs_per_process: Adjustable[AboveZero[int]] = 1
    """Number of environments in each process, whose steps travel in one message."""
    vector_env: bool = False
    """Whether `env` makes one [vector environment](environments.md#vector-environments) with all
    `num_envs_per_process` copies."""
    num_cpus: Free[NotNegative[float]] = 0.5
    """Logical CPUs that each process reserves in a sweep or on a cluster; they do not limit it."""
    inference_mode: Adjustable[Any] = "remote"
    """Where training actions are chosen. "remote": on the servers; "local": [in the
    simulations](client.md#local-inference), with the servers' networks; or a mapping of server ids
    to these. Not for 'external'."""
    update_interval_s: Adjustable[NotNegative[float | None]] = 0.0
    """With inference_mode "local": least time between two pulls of a server's weights, in seconds;
    null: they are pulled only when a server starts."""
    restarts: Free[RestartsConfig] = field(default_factory=RestartsConfig)
    """How often each simulation process, and the evaluation's, is restarted."""
    agents: NotInResults[dict[str, ExternalAgentConfig]] = field(default_factory=dict)
    """Maps the name of an agent, or of several as "driver_{0..9}", to its spaces; only for
    'external'."""
    state_size: NotInResults[AboveZero[int | None]] = None
    """Length of the global state that the simulation sends; null: it sends none. Only for
    'external'."""
    gateway: Free[GatewayConfig] = field(default_factory=GatewayConfig)
    """The address that the simulation connects to; only for 'external'."""
    command: Free[list[str]] = field(default_factory=list)
    """Only for 'external': [program and arguments](external.md#started-with-the-run), which the run
    starts `num_processes` times. Empty: you start the simulation."""


@dataclass
class StopConfig:
    """When a run ends: as soon as one of these conditions holds."""

    env_steps: AboveZero[int | None] = None
    """Env steps of all environments together. Episodes that are open then are played to their ends,
    for `checkpoint.hold_s` seconds at most. In a vector environment, in an external simulation, or
    without `checkpoint.at_end` they are cut."""
    time_s: AboveZero[float | None] = None
    """Seconds since the first env step; if a simulation is lost before it, since then."""
    iterations: AboveZero[int | None] = None
    """Training iterations that every learning server has made."""
    episode_return: dict[str, _Number] = field(default_factory=dict)
    """Maps server ids to returns. Each of these servers' mean return, over its agents and the last
    100 training episodes in which they took part, must be at least its value; it needs 20 of these
    episodes."""
    metric_at_least: dict[str, _Number] = field(default_factory=dict)
    """Maps metrics to values, such as {win: 0.9}. The mean of each metric over the last 100
    training episodes that had it must be at least its value; it needs 20 of them. If an episode has
    no value as a whole, the mean over all agents counts."""
    metric_at_most: dict[str, _Number] = field(default_factory=dict)
    """Maps metrics to values, such as {travel_s: 300}, as `metric_at_least` does; each mean must be
    at most its value."""


@dataclass
class EvaluationConfig:
    """How the servers are measured: each is compared with random agents in its place."""

    interval_env_steps: AboveZero[int | None] = None
    """Env steps between evaluations, during which training waits; null: only the one at the end."""
    num_episodes: AboveZero[int] = 20
    """Episodes that an evaluation during the run plays under each condition (all agents as learned;
    those of one server random)."""
    final_num_episodes: NotNegative[int] = 100
    """Episodes that the evaluation at the end plays under each condition; 0: there is none."""
    max_episode_steps: AboveZero[int] = 27_000
    """Env steps after which an evaluation episode is truncated."""
    num_envs: AboveZero[int | None] = None
    """Environments in the evaluation's process; null: `simulation.num_envs_per_process`, but at
    most 8 (with `vector_env` 1)."""
    should_compare_untrained: bool | None = None
    """Whether the evaluation at the end also plays each server's untrained policies in its place;
    null: it does, unless the simulation is external."""
    should_explore: bool = False
    """Whether stochastic policies (PPO, SAC) sample their actions; false: they take the likeliest
    action."""
    seed: Seed[int | None] = None
    """Seed of the first episode of each evaluation; null: it follows from the run's `seed`."""
    parameters: Adjustable[dict[str, Any]] = field(default_factory=dict)
    """Values of `simulation.parameters` in evaluations, by name: a number, or what it is drawn
    from."""


TOTAL = "total"
"""Stands in place of a server, and means all agents together."""
RETURN = "return"
"""Stands in place of a metric's name, and means the return."""


@dataclass
class BestConfig:
    """Which checkpoints are kept for their results in evaluations."""

    of: str = TOTAL
    """Whose [result](sweeps.md#the-metric) counts: a server, or in a sweep a role; or "total", all
    agents together."""
    keep: AboveZero[int] = 1
    """How many of the best checkpoints are kept, as checkpoints/best, checkpoints/best-2, ..."""
    name: str = RETURN
    """Which result counts: "return", a [metric](sweeps.md#the-metric) of the simulation,
    "episode_length" or "truncated"."""
    mode: Literal["max", "min"] = "max"
    """Whether the highest or the lowest result is the best."""


@dataclass
class CheckpointConfig:
    """When [checkpoints](reliability.md#checkpoints) of all servers are written."""

    at_end: bool = True
    """Whether a checkpoint is written when the run ends, for whatever reason."""
    interval_s: AboveZero[float | None] = 600.0
    """Seconds between checkpoints."""
    interval_env_steps: AboveZero[int | None] = None
    """Env steps between checkpoints."""
    keep_last: AboveZero[int] = 2
    """How many of the newest checkpoints are kept."""
    keep_every_env_steps: AboveZero[int | None] = None
    """Snapshots: a checkpoint is written at each multiple of these env steps, and is never deleted.
    Simulations stop for it where episodes end; external simulations pause within an episode."""
    best: BestConfig | None = None
    """Keeps the checkpoints with the best evaluations; a checkpoint is then written before each
    evaluation. Of every evaluation the same number of episodes counts: the smaller of
    `evaluation.num_episodes` and `evaluation.final_num_episodes` (unless this is 0)."""
    replay_max_mib: NotNegative[int | None] = 1024
    """Largest replay, in MiB, that a checkpoint contains; null: any. After a resume, a larger
    replay begins empty."""
    hold_s: NotNegative[float] = 10.0
    """Seconds for which a checkpoint waits for episodes to end; other simulations then pause
    between steps."""


@dataclass
class TimeoutsConfig:
    """How long the run waits for its own processes, in seconds."""

    start_s: AboveZero[float] = 120.0
    """For a process to start: a server, say, has to listen by then."""
    report_s: AboveZero[float] = 60.0
    """For the report that each process is asked for about once a second; a process without an
    answer is killed and restarted."""
    step_s: AboveZero[float] = 1800.0
    """For one step or reset of a simulation; a process that takes longer is killed and
    restarted."""
    make_env_s: AboveZero[float] = 600.0
    """For making one environment."""
    update_s: AboveZero[float] = 600.0
    """For one update of a server, while simulations, a checkpoint or the end of the run wait for
    it."""
    save_s: AboveZero[float] = 300.0
    """For writing a server's checkpoint, and at the end for the last copy to `storage_path`."""
    stop_s: AboveZero[float] = 45.0
    """For the servers to end at the end of the run."""


@dataclass
class ExperimentConfig:
    """One run: its simulation, the servers that learn from it, and when it stops."""

    name: NotInResults[str] = ""
    """Name of the experiment and of its run directories; "": the name of the config file."""
    base: NotInResults[str] = ""
    """A packaged config, or a file, from which all keys are taken that this experiment does not
    give."""
    seed: NotInResults[Seed[int]] = 0
    """Seed from which those of all servers and simulations are derived."""
    runs_dir: Free[str] = "runs"
    """Directory of the run directories."""
    storage_path: Free[str | None] = None
    """URI, such as s3://bucket/runs, to which the run directory is
    [copied](cluster.md#a-copy-elsewhere)."""
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    """The environment and its copies."""
    servers: dict[str, ServerConfig] = field(default_factory=dict)
    """Maps server ids to servers; every agent belongs to exactly one server."""
    stop: Free[StopConfig] = field(default_factory=StopConfig)
    """When the run ends."""
    evaluation: Free[EvaluationConfig] = field(default_factory=EvaluationConfig)
    """How the servers are measured."""
    checkpoint: Free[CheckpointConfig] = field(default_factory=CheckpointConfig)
    """When checkpoints are written."""
    timeouts: Free[TimeoutsConfig] = field(default_factory=TimeoutsConfig)
    """How long the run waits for its processes."""
    metrics_interval_s: Free[AboveZero[float]] = 1.0
    """Seconds between two rows in the files of metrics."""
    trackers: Free[list[str]] = field(default_factory=lambda: ["tensorboard"])
    """[Trackers](monitoring.md#trackers) that get the metrics: names, or "package.module:name" of
    your own."""
    watch: Free[bool] = False
    """Whether a [live page](monitoring.md#the-live-page) of the run or sweep is served."""
    address: Free[str] = ""
    """Address of the Ray cluster on which the run's processes are placed, such as "auto" or
    "ray://head:10001"; "": this machine."""
