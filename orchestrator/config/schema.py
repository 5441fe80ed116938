"""The keys of an experiment's YAML. Servers have their own part in `muxrl.servers.config`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from muxrl.servers.config import RestartsConfig, ServerConfig


@dataclass
class ExternalAgentConfig:
    """Spaces of one agent of a simulation that muxrl does not start."""

    observation_space: dict[str, Any] = field(default_factory=dict)
    """Plain form of the space, such as {type: box, shape: [4]} or {type: discrete, n: 2}."""
    action_space: dict[str, Any] = field(default_factory=dict)
    """Plain form of the space."""


@dataclass
class SimulationConfig:
    """The one simulation in which all agents live."""

    env: str = ""
    """'package.module:callable' of a PettingZoo (parallel or AEC), Gymnasium or RLlib
    multi-agent environment, 'gymnasium:ENV_ID', or 'external': someone else starts it."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments with which the environment is made."""
    num_processes: int = 1
    """Simulation processes that run at the same time."""
    num_envs_per_process: int = 1
    """Environments that each of these plays in lockstep: they share every message."""
    num_cpus: float = 0.5
    """Ray CPUs reserved by each process; logical, for placement only."""
    restarts: RestartsConfig = field(default_factory=RestartsConfig)
    """For each simulation process, and for the evaluation."""
    agents: dict[str, ExternalAgentConfig] = field(default_factory=dict)
    """Agent to its spaces; only for 'external', other simulations are asked."""
    state_size: int | None = None
    """Length of the global state that is sent; only for 'external', null: none is."""


@dataclass
class StopConfig:
    """When a run ends: at the first of these that is reached."""

    env_steps: int | None = None
    """Steps of all environments together; null: not used."""
    time_s: float | None = None
    """Seconds since the first env step; null: not used."""
    iterations: int | None = None
    """Training iterations that every server has made; null: not used."""
    episode_return: dict[str, float] = field(default_factory=dict)
    """Server to the return it must reach; the run ends when all have. It is the live table's: the
    sum over the server's agents (summary.md shows their mean), mean of the last 100 training
    episodes, of which there must have been 20."""


@dataclass
class EvaluationConfig:
    """How the servers are measured: each one against random agents in its place."""

    interval_env_steps: int | None = None
    """Env steps between evaluations during the run; null: only at the end."""
    num_episodes: int = 20
    """Episodes of an evaluation during the run, with and without each server."""
    final_num_episodes: int = 100
    """Episodes of the evaluation at the end; 0: there is none."""
    should_explore: bool = False
    """Whether stochastic policies (PPO, A2C) are sampled as in training; false: their likeliest
    action. Value-based ones (QMIX) are greedy in any case."""
    seed: int = 10_000
    """Seed of the first episode; every evaluation plays the same ones."""


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
    keep_best: bool = False
    """Whether the best one is kept, too, as checkpoints/best: one is then written before each
    evaluation, and best is the one with the highest mean return over all agents, all as learned."""
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
    tensorboard: bool = True
    """Whether metrics are written for TensorBoard, too."""
    address: str = ""
    """Ray cluster to join, such as "auto" or "ray://head:10001"; "" starts a local one."""
