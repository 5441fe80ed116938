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
    """A server whose agents the role gives, with all keys of `servers.SERVER`."""

    algorithm: str = ""
    """Name of a registered algorithm; "": the name of the template, as in `qmix: {}`."""

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
    """Which templates serve which roles. Without `product` and `listed`, each template serves each
    role."""

    product: dict[str, list[str]] = field(default_factory=dict)
    """Maps roles to templates, as names or patterns ("*"); all combinations are tried."""
    listed: list[Any] = field(default_factory=list)
    """Further assignments, each a mapping of roles to templates or a canonical string."""
    exclude: list[dict[str, Any]] = field(default_factory=list)
    """Mappings of roles to a template, a pattern, or a list of these. An assignment that matches a
    whole mapping is left out."""
    require: list[dict[str, Any]] = field(default_factory=list)
    """Mappings as in `exclude`. If there are any, an assignment that matches none of them is left
    out."""


@dataclass
class ParameterConfig:
    """The values of one config key, given by exactly one of these keys."""

    grid: list[Any] | None = None
    """All values, combined with those of all other grids."""
    choice: list[Any] | None = None
    """The values of which one is drawn."""
    uniform: list[float] | None = None
    """[low, high]: a number between them is drawn uniformly."""
    loguniform: list[float] | None = None
    """[low, high]: a number between them is drawn, its logarithm uniformly."""
    randint: list[int] | None = None
    """[low, high]: a whole number is drawn, low included and high excluded."""
    quniform: list[float] | None = None
    """[low, high, step]: a number is drawn as by `uniform`, and rounded to a multiple of step."""


@dataclass
class MetricConfig:
    """The number by which trials are compared, and which the sweep's table shows."""

    of: str = "total"
    """Whose [result](sweeps.md#the-metric) counts: a server or role; or "total", all agents
    together."""
    source: Literal["evaluation", "training"] = "evaluation"
    """"evaluation": the newest evaluation, or before the first one, recent training episodes;
    "training": recent training episodes."""
    mode: Literal["max", "min"] = "max"
    """Whether the highest or the lowest result is the best."""
    name: str = RETURN
    """Which result counts, as for `checkpoint.best`."""

    @property
    def title(self) -> str:
        """Heading of the metric in tables."""
        return f"{self.name} ({self.of})"


@dataclass
class SchedulerConfig:
    """Whether trials with bad results are ended early."""

    kind: str = "none"
    """"none", or Ray Tune's [scheduler](sweeps.md#schedulers-and-searchers) "asha" or "median"."""
    grace_env_steps: AboveZero[int | None] = None
    """Env steps before which no trial is ended early; null: a tenth of `stop.env_steps`."""
    reduction_factor: Annotated[float, Check(lambda v: v > 1, "must be above 1")] = 4.0
    """For "asha": at each rung the best 1 / `reduction_factor` of the trials continue."""
    min_samples: AboveZero[int] = 3
    """For "median": number of other trials that must have got as far before a trial is compared
    with them."""


@dataclass
class SweepConfig:
    """Runs of one simulation that differ in assignments, settings and seeds."""

    name: str = ""
    """Name of the sweep and of its directories; "": the name of its file."""
    base: str = ""
    """Experiment from which all trials take the keys that the sweep does not give: a packaged
    config, or a path from the sweep's folder or the current one."""
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    """Keys of an experiment, which replace those of `base`."""
    roles: dict[str, list[str]] = field(default_factory=dict)
    """Maps the name of each [role](sweeps.md#roles-and-templates) to its agents, as names or
    patterns. Empty: the servers of `base` stay as they are."""
    algorithms: dict[str, AlgorithmTemplate] = field(default_factory=dict)
    """Maps the name of each template to the keys of the server that it makes for a role."""
    assignments: AssignmentsConfig = field(default_factory=AssignmentsConfig)
    """Which templates serve which roles."""
    parameters: dict[str, ParameterConfig] = field(default_factory=dict)
    """Maps config keys to their values: keys of the experiment (`servers.prey.settings.lr`), or of
    a template (`algorithms.qmix.settings.lr`), which hold wherever the template is used."""
    seeds: list[Seed[int]] = field(default_factory=list)
    """Seeds with which each assignment runs in each setting. Empty: the seed of the experiment."""
    num_samples: AboveZero[int] = 1
    """How many times values of `choice`, `uniform`... are drawn for each combination of grids."""
    seed: int = 0
    """Seed of the draws; all assignments get the same draws."""
    metric: MetricConfig = field(default_factory=MetricConfig)
    """The number by which trials are compared."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """Whether trials with bad results are ended early."""
    searcher: str = "random"
    """"random": all values are drawn beforehand; "optuna": values are chosen by the results of
    earlier trials."""
    max_concurrent: AboveZero[int | None] = None
    """Largest number of trials at the same time; null: as many as there are CPUs for."""
    report_interval_s: AboveZero[float] = 5.0
    """Seconds between two reports of a trial to Ray Tune."""
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Callbacks of Ray Tune: maps "package.module:name" to
    [arguments](sweeps.md#trackers-and-callbacks)."""
    calibration_s: NotNegative[float] = 10.0
    """Seconds for which `--dry-run` plays each assignment; 0: it plays none."""
    sweeps_dir: str = "sweeps"
    """Directory of the sweep directories."""
    address: str = ""
    """Address of the Ray cluster on which the trials run, such as "auto"; "": this machine."""

    @property
    def all_seeds(self) -> list[int]:
        """The seeds with which every setting runs."""
        return self.seeds or [self.experiment.seed]
