"""The keys of a sweep's YAML."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from muxrl.orchestrator.config.schema import RETURN, ExperimentConfig, Seed
from muxrl.servers.config import ServerConfig
from muxrl.servers.declared import AboveZero, Check, NotNegative


@dataclass
class AlgorithmTemplate(ServerConfig):
    """A server without agents: they come from the role. It has all keys of `servers.SERVER`."""

    algorithm: str = ""
    """Name of a registered algorithm; "" takes the template's own name: `qmix: {}`."""

    def __post_init__(self) -> None:
        """Accepts a template without an algorithm, which `server` fills in."""

    def server(self, name: str, agents: list[str]) -> ServerConfig:
        """Returns a server for these agents with the settings of this template, which is `name`."""
        has_own = self.command or self.address
        algorithm = self.algorithm or ("" if has_own else name)
        values = {"algorithm": algorithm, "agents": agents, "label": name}
        return ServerConfig(**copy.deepcopy(vars(self)) | values)


@dataclass
class AssignmentsConfig:
    """Which template serves which role; without `product` and `listed` each serves each."""

    product: dict[str, list[str]] = field(default_factory=dict)
    """Role to its templates, as names or patterns ("*"); every combination is tried."""
    listed: list[Any] = field(default_factory=list)
    """Further assignments: mappings of role to template, or canonical strings."""
    exclude: list[dict[str, Any]] = field(default_factory=list)
    """Mappings of role to a template, a pattern or a list of them; what matches all of one is left
    out."""
    require: list[dict[str, Any]] = field(default_factory=list)
    """Likewise; what matches none is left out."""


@dataclass
class ParameterConfig:
    """Values of one config key: exactly one of these."""

    grid: list[Any] | None = None
    """Each value, combined with those of all other grids."""
    choice: list[Any] | None = None
    """Drawn from these."""
    uniform: list[float] | None = None
    """Drawn from [low, high]."""
    loguniform: list[float] | None = None
    """Drawn from [low, high], evenly in the logarithm."""
    randint: list[int] | None = None
    """A whole number from [low, high], high excluded, as in Ray Tune."""
    quniform: list[float] | None = None
    """[low, high, step]: as uniform, rounded to a multiple of step."""


@dataclass
class MetricConfig:
    """The number by which trials are compared, and shown in the sweep's table."""

    of: str = "total"
    """A server or role: the mean return over its agents; "total": the sum over all agents."""
    source: Literal["evaluation", "training"] = "evaluation"
    """Evaluation episodes (before the first evaluation, recent training episodes), or always the
    latter."""
    mode: Literal["max", "min"] = "max"
    """What is better."""
    name: str = RETURN
    """"return", a key of `simulation.metrics`, "episode_length" or "truncated"; see
    [Sweeps](sweeps.md#the-metric)."""

    @property
    def title(self) -> str:
        """Heading of the metric in tables."""
        return f"{self.name} ({self.of})"


@dataclass
class SchedulerConfig:
    """Whether trials that look bad are ended early."""

    kind: str = "none"
    """"none", or "asha", "median": Ray Tune's schedulers of that name."""
    grace_env_steps: AboveZero[int | None] = None
    """Env steps before a trial may be ended; null: a tenth of the budget."""
    reduction_factor: Annotated[float, Check(lambda v: v > 1, "must be above 1")] = 4.0
    """For asha: one in so many continues at each rung."""
    min_samples: AboveZero[int] = 3
    """For median: trials that must have got as far before one is compared with them."""


@dataclass
class SweepConfig:
    """Runs of one simulation that differ in assignment, settings and seed."""

    name: str = ""
    """Name of the sweep and of its directories; "": the file's."""
    base: str = ""
    """Experiment of all trials: a packaged config, or a path from the sweep's folder or the current
    one. "": `experiment` has all."""
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    """An experiment's keys, in addition to `base`."""
    roles: dict[str, list[str]] = field(default_factory=dict)
    """[Role](sweeps.md#roles-and-templates) to its agents, as names or patterns. Empty: the base's
    servers stay."""
    algorithms: dict[str, AlgorithmTemplate] = field(default_factory=dict)
    """Template name to the keys of a role's server."""
    assignments: AssignmentsConfig = field(default_factory=AssignmentsConfig)
    """Which templates serve which roles."""
    parameters: dict[str, ParameterConfig] = field(default_factory=dict)
    """Key to its values: of the experiment (`servers.prey.settings.lr`), or of a template where it
    is used (`algorithms.qmix.settings.lr`)."""
    seeds: list[Seed[int]] = field(default_factory=list)
    """Seeds, each with each assignment and setting; empty: the base's."""
    num_samples: AboveZero[int] = 1
    """How often `choice`, `uniform`... are drawn, for each combination of grids."""
    seed: int = 0
    """Seed of the draws, which are the same for every assignment."""
    metric: MetricConfig = field(default_factory=MetricConfig)
    """What is compared."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """Which trials are ended early."""
    searcher: str = "random"
    """"random": all is drawn before the start; "optuna": by the results of earlier trials."""
    max_concurrent: AboveZero[int | None] = None
    """Trials at the same time; null: as many as there are CPUs for."""
    report_interval_s: AboveZero[float] = 5.0
    """Seconds between a trial's reports to Tune."""
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Ray Tune's callbacks, "package.module:name" to
    [arguments](sweeps.md#trackers-and-callbacks)."""
    calibration_s: NotNegative[float] = 10.0
    """Seconds that `--dry-run` plays each assignment; 0: not."""
    sweeps_dir: str = "sweeps"
    """Parent of the sweep directories."""
    address: str = ""
    """Ray cluster to join, such as "auto"; "": this machine."""

    @property
    def all_seeds(self) -> list[int]:
        """The seeds with which every setting runs."""
        return self.seeds or [self.experiment.seed]
