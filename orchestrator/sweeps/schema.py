"""The keys of a sweep's YAML."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from muxrl.orchestrator.config.schema import RETURN, ExperimentConfig
from muxrl.servers.config import ServerConfig


@dataclass
class AlgorithmTemplate(ServerConfig):
    """A server without agents: they come from the role. It has all keys of `servers.SERVER`."""

    algorithm: str = ""
    """Name of a registered algorithm; "" takes the template's own name: `qmix: {}`."""

    def server(self, name: str, agents: list[str]) -> ServerConfig:
        """Returns a server of these agents, set as this template, which is called `name`."""
        values = {f.name: copy.deepcopy(getattr(self, f.name)) for f in fields(ServerConfig)}
        values |= {"algorithm": self.algorithm or name, "agents": agents, "label": name}
        return ServerConfig(**values)


@dataclass
class AssignmentsConfig:
    """Which template serves which role; without `product` and `listed` each serves each."""

    product: dict[str, list[str]] = field(default_factory=dict)
    """Role to the templates it may get, as names or patterns ("*"): every combination is tried."""
    listed: list[Any] = field(default_factory=list)
    """Assignments by themselves: mappings of role to template, or canonical strings."""
    exclude: list[dict[str, Any]] = field(default_factory=list)
    """Combinations to leave out: mappings of role to a template, a pattern or a list of them. An
    assignment is left out if all of a mapping is true of it."""
    require: list[dict[str, Any]] = field(default_factory=list)
    """The reverse: only combinations that match at least one of these mappings are kept."""


@dataclass
class ParameterConfig:
    """Values of one config key: exactly one of these."""

    grid: list[Any] | None = None
    """Each of these values, combined with those of all other grids."""
    choice: list[Any] | None = None
    """Drawn from these values."""
    uniform: list[float] | None = None
    """Drawn evenly from [low, high]."""
    loguniform: list[float] | None = None
    """Drawn from [low, high], evenly in the logarithm."""
    randint: list[int] | None = None
    """A whole number drawn from [low, high], high left out, as in Ray Tune."""
    quniform: list[float] | None = None
    """Drawn evenly from [low, high] and rounded to a multiple of the third, [low, high, step]."""


@dataclass
class MetricConfig:
    """The number by which trials are compared while the sweep goes on, and in its table."""

    of: str = "total"
    """A server or role: the mean return over its agents; "total": the sum over all agents."""
    source: Literal["evaluation", "training"] = "evaluation"
    """Evaluation episodes, or recent training episodes with their exploration. Where nothing has
    been evaluated, training returns take their place."""
    mode: Literal["max", "min"] = "max"
    """What is better."""
    name: str = RETURN
    """"return"; or in its place a key of `simulation.metrics`, or "episode_length": with `of` a
    server or role the mean over those of its agents that have it, else that of the episode; with
    "total" that of the episode, else the mean over all agents."""

    @property
    def title(self) -> str:
        """For a table's heading."""
        return f"{self.name} ({self.of})"


@dataclass
class SchedulerConfig:
    """Whether trials that look bad are ended early."""

    kind: str = "none"
    """"none": every trial runs to its end; "asha", "median": Ray Tune's schedulers of that name."""
    grace_env_steps: int | None = None
    """Env steps before a trial may be ended; null: a tenth of the budget."""
    reduction_factor: float = 4.0
    """For asha: at each rung the best one in so many goes on."""
    min_samples: int = 3
    """For median: trials that must have got as far before one is compared with them."""


@dataclass
class SweepConfig:
    """A table of runs of one simulation that differ in assignment, settings and seed."""

    name: str = ""
    """Name of the sweep and of its directories; "" takes the file's."""
    base: str = ""
    """Experiment that all trials start from: the name of a packaged config, or a path, taken from
    the sweep's folder or the current one. "" if `experiment` says it all."""
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    """An experiment's keys, on top of `base`."""
    roles: dict[str, list[str]] = field(default_factory=dict)
    """Role to its agents, as names or patterns. Each role gets a server of its name; servers of
    the base whose agents are all in roles give way to it. Empty: the base's servers stay."""
    algorithms: dict[str, AlgorithmTemplate] = field(default_factory=dict)
    """Template name to what a server of a role is set to."""
    assignments: AssignmentsConfig = field(default_factory=AssignmentsConfig)
    """Which templates serve which roles."""
    parameters: dict[str, ParameterConfig] = field(default_factory=dict)
    """Key to its values: a key of an experiment (`servers.prey.settings.lr`), or of a template
    (`algorithms.qmix.settings.lr`), which counts only where the template is used."""
    seeds: list[int] = field(default_factory=list)
    """Seeds of the experiment, each with each assignment and setting; empty: the base's seed."""
    num_samples: int = 1
    """How often `choice`, `uniform`... are drawn, for each combination of grids."""
    seed: int = 0
    """From it come the draws; the same sample has the same draws under every assignment."""
    metric: MetricConfig = field(default_factory=MetricConfig)
    """What is compared."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """Which trials are ended early."""
    searcher: str = "random"
    """"random": all is drawn before the start; "optuna": later draws learn from earlier trials."""
    max_concurrent: int | None = None
    """Trials at the same time; null: as many as there are CPUs for. With a number,
    a local Ray declares as many CPUs as that takes."""
    report_interval_s: float = 5.0
    """Seconds between two reports of a trial to Tune."""
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Ray Tune's callbacks, as "package.module:name" with the arguments that each is made with:
    `{"ray.air.integrations.mlflow:MLflowLoggerCallback": {experiment_name: tag}}`."""
    calibration_s: float = 10.0
    """Seconds that `--dry-run` plays with each assignment, to estimate the sweep's time; 0: not."""
    sweeps_dir: str = "sweeps"
    """Directory in which every sweep gets a directory of its own."""
    address: str = ""
    """Ray cluster to join, such as "auto"; "" starts a local one."""

    @property
    def all_seeds(self) -> list[int]:
        """With each of which every setting runs."""
        return self.seeds or [self.experiment.seed]
