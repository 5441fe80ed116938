"""The keys of an experiment's YAML. Servers have their own part in `muxrl.servers.config`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from muxrl.servers.config import RestartsConfig, ServerConfig


@dataclass
class ExternalAgentConfig:
    """Spaces of one agent of a simulation that muxrl does not start; with "driver_{0..9}" in its
    place, of ten alike ones."""

    observation_space: dict[str, Any] = field(default_factory=dict)
    """Plain form of the space, such as {type: box, shape: [4]} or {type: discrete, n: 2}."""
    action_space: dict[str, Any] = field(default_factory=dict)
    """Plain form of the space."""


@dataclass
class GatewayConfig:
    """Where an external simulation finds all servers at one address."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback demands a token."""
    port: int = 0
    """TCP port; 0 takes any free one, printed and published in the run directory."""
    token: str = ""
    """Bearer token that simulations must present; "" asks for none (loopback only)."""


@dataclass
class SimulationConfig:
    """The one simulation in which all agents live."""

    env: str = ""
    """'package.module:callable' of a PettingZoo (parallel or AEC), Gymnasium or RLlib
    multi-agent environment, 'gymnasium:ENV_ID', 'pettingzoo:ENV_ID', or 'external': someone
    else starts it."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments with which the environment is made. In them "{index}" is the number of the copy,
    from 0 over all processes that train, then the evaluation's; "{5000 + 2*index}" is a port of its
    own."""
    metrics: dict[str, str] = field(default_factory=dict)
    """Key of the simulation's infos to how an episode's numbers become one: last, sum, mean, max or
    min. See [Metrics](concepts.md#metrics); not for 'external', which sends them with the end."""
    respawn: Literal["refuse", "same_id", "same_step", "new_ids"] = "refuse"
    """How agents of an RLlib environment come back after their end in the same episode, to a new
    life: "refuse": not at all; "same_id": in a later step; "same_step": the observation in the step
    of their end is the first of the next life; "new_ids": under ids that it has not declared, which
    take the places of declared ones of their kind that have ended. Not for joint algorithms."""
    on_bad_value: Literal["stop", "episode"] = "stop"
    """What a value that a server refuses, a NaN say, ends: "stop": the simulation's process, which
    `restarts` count; "episode": the episode, which is closed before that step, and counted."""
    num_processes: int = 1
    """Simulation processes that run at the same time."""
    num_envs_per_process: int = 1
    """Environments that each of these plays in lockstep: they share every message."""
    num_cpus: float = 0.5
    """Ray CPUs reserved by each process; logical, for placement only."""
    inference_mode: Any = "remote"
    """Who chooses the actions of training episodes: "remote": the servers; "local": the
    simulations, with the servers' networks; or server to one of these, "remote" for those left out.
    Not for 'external'. See [Local inference](client.md#local-inference)."""
    update_interval_s: float | None = 0.0
    """With "local": least time between two pulls of weights; null: none are pulled after the first,
    but of a server that was started again."""
    restarts: RestartsConfig = field(default_factory=RestartsConfig)
    """For each simulation process, and for the evaluation."""
    agents: dict[str, ExternalAgentConfig] = field(default_factory=dict)
    """Agent to its spaces, many alike ones as "driver_{0..9}"; only for 'external', other
    simulations are asked."""
    state_size: int | None = None
    """Length of the global state that is sent; only for 'external', null: none is."""
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    """Only for 'external'."""
    command: list[str] = field(default_factory=list)
    """Only for 'external': program and arguments of the simulation, `num_processes` of which are
    started with the run and ended with it. In them {gateway} stands for the gateway's address,
    http://host:port, and {index} for 0, 1, ... Empty: someone else starts it."""


@dataclass
class StopConfig:
    """When a run ends: at the first of these that is reached."""

    env_steps: int | None = None
    """Steps of all environments together; null: not used. No episode begins after them, and open
    ones are played to their ends, for checkpoint.hold_s at most."""
    time_s: float | None = None
    """Seconds since the first env step; null: not used."""
    iterations: int | None = None
    """Training iterations that every server has made; null: not used."""
    episode_return: dict[str, float] = field(default_factory=dict)
    """Server to the return it must reach; the run ends when all have. It is the live table's: the
    sum over the server's agents (summary.md shows their mean), mean of the last 100 training
    episodes, of which there must have been 20."""
    metric_at_least: dict[str, float] = field(default_factory=dict)
    """Metric to the value that it must reach, such as {win: 0.9}; the run ends when all have. Mean
    of the last 100 training episodes, 20 of which must have it: that of the episode, else the mean
    over all agents."""
    metric_at_most: dict[str, float] = field(default_factory=dict)
    """The same for metrics that are to fall, such as {travel_s: 300}."""


@dataclass
class EvaluationConfig:
    """How the servers are measured: each one against random agents in its place."""

    interval_env_steps: int | None = None
    """Env steps between evaluations during the run, at its multiples; null: only at the end.
    Training waits for each, so that it is of the weights of that point."""
    num_episodes: int = 20
    """Episodes of an evaluation during the run, with and without each server."""
    final_num_episodes: int = 100
    """Episodes of the evaluation at the end; 0: there is none."""
    num_envs: int | None = None
    """Environments in the evaluation's one process; null: as many as simulations have,
    `simulation.num_envs_per_process`, up to 8. They are made for the first evaluation, which for
    that at the end is after those of the simulations are closed."""
    should_compare_untrained: bool | None = None
    """Whether the evaluation at the end plays each server's untrained policies in its place, too:
    as many more episodes as with random agents. null: unless the simulation is external."""
    should_explore: bool = False
    """Whether stochastic policies (PPO, A2C) are sampled as in training; false: their likeliest
    action. Value-based ones (QMIX) are greedy in any case, deterministic ones
    (MADDPG) without noise."""
    seed: int = 10_000
    """Seed of the first episode; every evaluation plays the same ones."""


TOTAL = "total"
"""In place of a server: all agents together."""
RETURN = "return"
"""In place of a metric's name."""


@dataclass
class BestConfig:
    """Which checkpoints are kept for what was measured in the run's own evaluations."""

    of: str = TOTAL
    """A server: the mean return over its agents decides, in a sweep also a role; "total": over all
    agents."""
    keep: int = 1
    """How many: checkpoints/best, checkpoints/best-2 and so on."""
    name: str = RETURN
    """"return"; or in its place a key of `simulation.metrics`, or "episode_length": with `of` a
    server or role the mean over those of its agents that have it, else that of the episode; with
    "total" that of the episode, else the mean over all agents."""
    mode: Literal["max", "min"] = "max"
    """What is better."""


@dataclass
class CheckpointConfig:
    """When checkpoints of all servers are written; see [Reliability](reliability.md)."""

    at_end: bool = True
    """Whether one is written when the run ends, however it ends."""
    interval_s: float | None = 600.0
    """Seconds between checkpoints during the run; null: not used."""
    interval_env_steps: int | None = None
    """Env steps between checkpoints during the run; null: not used."""
    keep_last: int = 2
    """How many of them are kept; older ones are deleted."""
    best: BestConfig | None = None
    """Which ones are kept, too, for the returns of their evaluations, all agents as learned: one is
    then written before each evaluation. null: none."""
    replay_max_mib: int | None = 1024
    """Largest replay that a server's checkpoint holds; a larger one is left out, and a resumed run
    fills it again. null: any."""
    hold_s: float = 10.0
    """For how long simulations may play their episodes to the end before all servers save; those
    that are not over by then pause between two steps, and go on afterwards."""


@dataclass
class TimeoutsConfig:
    """How long the run waits for its own processes."""

    start_s: float = 120.0
    """For the servers to listen, from when their processes were asked for. Simulations wait for a
    lost server for start_s and report_s together."""
    report_s: float = 60.0
    """For the report that every process gives about once a second. One that is silent for longer
    is killed, and started again as its `restarts` allow."""
    step_s: float = 1800.0
    """For one step or reset of a simulation. A process whose environment does not return from it
    is killed, and started again as `simulation.restarts` allows. Servers close an episode that is
    idle for longer than `limits.episode_timeout_s`."""
    make_env_s: float = 600.0
    """For one environment to be made, which may start a simulator."""
    update_s: float = 600.0
    """For an update of a learner: simulations that wait for it, its last one when learning ends,
    and the one before a checkpoint."""
    save_s: float = 300.0
    """For a server's checkpoint to be written, once its update is over."""
    stop_s: float = 45.0
    """For the servers to end."""


@dataclass
class ExperimentConfig:
    """One run: a simulation, the servers that learn from it, and when to stop."""

    name: str = ""
    """Name of the experiment and of its run directories; "" takes the config file's."""
    seed: int = 0
    """From it come the seeds of all servers and simulations."""
    runs_dir: str = "runs"
    """Directory in which every run gets a directory of its own."""
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    """The environment and how many of it run."""
    servers: dict[str, ServerConfig] = field(default_factory=dict)
    """Server id to its algorithm and agents; every agent belongs to exactly one server."""
    stop: StopConfig = field(default_factory=StopConfig)
    """When the run ends."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """How the servers are measured."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """When checkpoints are written."""
    timeouts: TimeoutsConfig = field(default_factory=TimeoutsConfig)
    """How long processes are waited for."""
    metrics_interval_s: float = 1.0
    """Seconds between two rows of metrics."""
    trackers: list[str] = field(default_factory=lambda: ["tensorboard"])
    """Who gets the metrics, too: "tensorboard", "wandb", "mlflow", or a class of your own as
    "package.module:name"; see [Monitoring](monitoring.md#trackers)."""
    watch: bool = False
    """Whether a live page of the run is served on this machine while it goes on; its address is
    printed. In a sweep's `experiment` it is the sweep's page. See `muxrl watch`."""
    address: str = ""
    """Ray cluster to join, such as "auto" or "ray://head:10001"; "" starts a local one."""
