"""Which trial Tune runs next: one of the sweep's table, or one from a searcher that learns.

Tune would draw the trials itself, and resumes an experiment from its last snapshot. Here the table
is the sweep's: known before the start, the same on every machine, and a finished trial stays
finished. A searcher that learns from earlier trials, such as optuna, adds new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.sweeps.assignments import RoleAssignment
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.parameters import active, given
from muxrl.orchestrator.sweeps.plan import SweepPlan, name_trial
from muxrl.orchestrator.sweeps.schema import ParameterConfig
from muxrl.orchestrator.sweeps.trial import METRIC, tune_config
from muxrl.protocol.assignment import file_name

ROLES_KEY = "(assignment)"
"""Beside parameters, what a searcher chooses: the number of the assignment."""


class TableSearch(Searcher):
    """Hands out trials in their order; asks `more` when there are none left.

    Args:
        records: the trials to run.
        folder: where their run directories will lie.
        mode: "max" or "min".
        more: makes further trials, None for none.
        columns: the parameters that Tune's table shows.
    """

    def __init__(
        self,
        records: Sequence[TrialRecord],
        folder: SweepDirectory,
        mode: str,
        more: Suggestions | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        super().__init__(metric=METRIC, mode=mode)
        self._columns = columns
        self._records = list(records)
        self._folder = folder
        self._more = more
        self._record_of: dict[str, TrialRecord] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Returns the next trial as Tune's config, "FINISHED" after the last."""
        if not self._records and self._more is not None:
            self._records += self._more.next()
        if not self._records:
            return Searcher.FINISHED
        record = self._records.pop(0)
        self._record_of[trial_id] = record
        run_dir = self._folder.run_of(record) or self._folder.new_run(record.id)
        return tune_config(record, run_dir, self._columns)

    def on_trial_complete(
        self, trial_id: str, result: dict | None = None, error: bool = False
    ) -> None:
        """Hands the metric on to the searcher that learns."""
        record = self._record_of.get(trial_id)
        if self._more is not None and record is not None:
            self._more.complete(record, None if error or not result else result.get(METRIC))

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: `trials.jsonl` holds all there is."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing, likewise."""


class Suggestions:
    """What the searcher suggests, as one trial for each seed.

    The searcher is told the mean of the seeds' metrics when all of them are known; if one of these
    trials failed, the suggestion counts as failed.

    Args:
        plan: the sweep's.
        earlier: trials of the sweep that is resumed.
        make_searcher: from the space, mode and known (point, value) pairs to Tune's searcher.
        on_new: called with new trials.
        on_refused: called with trials that cannot be run, and why: a simulation may refuse its
            arguments.
    """

    def __init__(
        self,
        plan: SweepPlan,
        earlier: Sequence[TrialRecord],
        make_searcher: Callable[..., Searcher],
        on_new: Callable[[Sequence[TrialRecord]], None],
        on_refused: Callable[[Sequence[TrialRecord], str], None],
    ) -> None:
        self._plan = plan
        self._on_new = on_new
        self._on_refused = on_refused
        config = plan.config
        self._seeds = config.seeds or [config.experiment.seed]
        self._num_left = config.num_samples - len(earlier) // len(self._seeds)
        self._num_made = len(earlier)
        self._width = len(str(max(0, config.num_samples * len(self._seeds) - 1)))
        self._suggestion_of: dict[str, str] = {}
        """Trial to the searcher's id of what it tries."""
        self._metrics: dict[str, list[float | None]] = {}
        """Suggestion to the metrics of its trials so far."""
        known = [
            (self._point(records), sum(metrics) / len(metrics))
            # The trials of a suggestion are made and written one after another.
            for i in range(0, len(earlier), len(self._seeds))
            for records in [earlier[i : i + len(self._seeds)]]
            if all(r.is_finished for r in records)
            and len(metrics := [r.metric for r in records if r.metric is not None]) == len(records)
        ]
        space: dict[str, Any] = {k: domain(p) for k, p in config.parameters.items()}
        space[ROLES_KEY] = tune.choice(list(range(len(plan.role_assignments))))
        self._searcher = make_searcher(space, config.metric.mode, known)

    def next(self) -> list[TrialRecord]:
        """Returns the trials of the next suggestion that can be run; none after the last."""
        while self._num_left > 0:
            suggestion_id = f"suggestion-{self._num_made}"
            point = self._searcher.suggest(suggestion_id)
            if not isinstance(point, dict):
                break
            self._num_left -= 1
            roles = self._plan.role_assignments[point[ROLES_KEY]]
            used = active(self._plan.config.parameters, set(roles.values()))
            parameters = {key: point[key] for key in used}
            try:
                assignment = self._plan.assignment(roles, parameters)
            except ConfigError as error:
                self._searcher.on_trial_complete(suggestion_id, error=True)
                records = self._make_records("refused", "", roles, parameters)
                self._on_refused(records, "; ".join(error.problems))
                continue
            records = self._make_records(file_name(assignment), assignment, roles, parameters)
            self._suggestion_of |= {record.id: suggestion_id for record in records}
            self._metrics[suggestion_id] = []
            self._on_new(records)
            return records
        return []

    def _make_records(
        self, name: str, assignment: str, roles: RoleAssignment, parameters: dict[str, Any]
    ) -> list[TrialRecord]:
        """Returns one trial for each seed."""
        first, self._num_made = self._num_made, self._num_made + len(self._seeds)
        return [
            TrialRecord(
                name_trial(first + i, self._width, name, seed), assignment, roles, parameters, seed
            )
            for i, seed in enumerate(self._seeds)
        ]

    def complete(self, record: TrialRecord, metric: float | None) -> None:
        """Takes in the metric of a trial, None if it failed."""
        suggestion_id = self._suggestion_of.get(record.id)
        if suggestion_id is None:  # begun before the sweep was resumed
            return
        metrics = self._metrics[suggestion_id]
        metrics.append(metric)
        if len(metrics) < len(self._seeds):
            return
        values = [value for value in metrics if value is not None]
        has_failed = len(values) < len(metrics)
        result = None if has_failed else {METRIC: sum(values) / len(values)}
        self._searcher.on_trial_complete(suggestion_id, result, error=has_failed)

    def _point(self, records: Sequence[TrialRecord]) -> dict[str, Any]:
        # Searchers want all keys, also those that an assignment does not use.
        values = {
            key: next(iter(given(p).values()))[0] for key, p in self._plan.config.parameters.items()
        }
        number = self._plan.role_assignments.index(records[0].roles)
        return {**values, **records[0].parameters, ROLES_KEY: number}


def domain(parameter: ParameterConfig) -> Any:
    """Returns Tune's form of a distribution."""
    ((kind, values),) = given(parameter).items()
    return tune.choice(values) if kind == "choice" else getattr(tune, kind)(*values)


def make_optuna(
    space: Mapping[str, Any], mode: str, known: Sequence[tuple[dict[str, Any], float]], seed: int
) -> Searcher:
    """Returns Tune's optuna (its TPE sampler), which begins with the known points."""
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return OptunaSearch(
        OptunaSearch.convert_search_space(dict(space)),
        metric=METRIC,
        mode=mode,
        seed=seed,
        points_to_evaluate=[point for point, _ in known] or None,
        evaluated_rewards=[value for _, value in known] or None,
    )
