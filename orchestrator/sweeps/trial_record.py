"""A trial of a sweep: what it is, and what is known of it so far."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from muxrl.orchestrator.records.json_files import finite
from muxrl.orchestrator.sweeps.assignments import RoleAssignment

Status = Literal["waiting", "running", "done", "stopped_early", "failed", "interrupted"]


@dataclass(frozen=True)
class TrialSpec:
    """One trial of the table."""

    trial_id: str
    """Names its directory: number, assignment, seed."""
    assignment: str
    """Canonical, by the templates' names."""
    roles: RoleAssignment
    parameters: dict[str, Any]
    seed: int


@dataclass
class TrialRecord:
    """A line of ``trials.jsonl``."""

    id: str
    assignment: str
    """As of `TrialSpec`; "" of a trial whose simulation refused its arguments."""
    roles: dict[str, str]
    """Role to the template that serves it."""
    parameters: dict[str, Any]
    seed: int
    status: Status = "waiting"
    """"stopped_early" by the scheduler; "interrupted" with the sweep."""
    run_dir: str | None = None
    """Relative to the sweep's directory; None: the trial has not begun."""
    metric: float | None = None
    """The newest value; of a trial that is done, that of its last evaluation."""
    metric_source: str = ""
    """"evaluation" or "training"."""
    env_steps: int = 0
    time_s: float = 0.0
    """Of training."""
    cpu_s: float = 0.0
    """Processor seconds of its servers and simulations."""
    cause: str = ""
    """Why it failed, in a sentence that names the log."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do: it ran to its end, or to where the scheduler ended it."""
        return self.status in ("done", "stopped_early")

    @property
    def is_over(self) -> bool:
        """Whether it is finished or has failed."""
        return self.is_finished or self.status == "failed"

    @classmethod
    def of(cls, spec: TrialSpec) -> TrialRecord:
        """Returns the record of a trial that has not begun."""
        return cls(spec.trial_id, spec.assignment, spec.roles, spec.parameters, spec.seed)

    @property
    def spec(self) -> TrialSpec:
        """What the trial is."""
        return TrialSpec(self.id, self.assignment, self.roles, self.parameters, self.seed)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrialRecord:
        """Returns the record that `to_json` wrote, once it is parsed.

        Raises:
            TypeError: a key is missing.
        """
        known = {f.name for f in fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known})

    def to_json(self) -> str:
        """Returns the record as one line."""
        return json.dumps(finite(asdict(self)), allow_nan=False)
