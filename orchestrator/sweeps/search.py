"""Which trial Tune runs next: one of the sweep's table, or one from a searcher that learns.

Tune would draw the trials itself, and resumes an experiment from its last snapshot. Here the table
is the sweep's: known before the start, the same on every machine, and a finished trial stays
finished. A searcher that learns from earlier trials, such as optuna, adds new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ray.tune.search import Searcher

from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.sweeps.assignments import RoleAssignment
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.parameters import active, given, multiple, multiples
from muxrl.orchestrator.sweeps.plan import SweepPlan, by_setting, name_trial
from muxrl.orchestrator.sweeps.schema import ParameterConfig
from muxrl.orchestrator.sweeps.trial import METRIC, tune_config
from muxrl.protocol.assignment import file_name

ROLES_KEY = "(assignment)"
"""Beside parameters, what a searcher chooses: the number of the assignment."""


class Trials(Protocol):
    """The sweep's table, which is told of new trials."""

    folder: SweepDirectory
    records: list[TrialRecord]

    def add(self, records: Sequence[TrialRecord]) -> None:
        """Adds trials."""

    def refuse(self, records: Sequence[TrialRecord], cause: str) -> None:
        """Adds trials that cannot be run: a simulation may refuse its arguments."""


class TableSearch(Searcher):
    """Hands out the trials of a table that are not finished, in their order.

    Args:
        plan: the sweep's.
        table: its trials.
    """

    def __init__(self, plan: SweepPlan, table: Trials) -> None:
        super().__init__(metric=METRIC, mode=plan.config.metric.mode)
        self._table = table
        self._waiting = [one for one in table.records if not one.is_finished and one.assignment]
        self._record_of: dict[str, TrialRecord] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Returns the next trial as Tune's config, "FINISHED" after the last."""
        self._waiting = self._waiting or self._next()
        if not self._waiting:
            return Searcher.FINISHED
        record = self._record_of[trial_id] = self._waiting.pop(0)
        folder = self._table.folder
        return tune_config(record, folder.run_of(record) or folder.new_run(record.id))

    def _next(self) -> list[TrialRecord]:
        """Returns further trials; none after the last."""
        return []

    def on_trial_complete(
        self, trial_id: str, result: dict | None = None, error: bool = False
    ) -> None:
        """Does nothing: nothing is learned of it."""

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: `trials.jsonl` holds all there is."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing, likewise."""


Point = dict[str, Any]
"""What a suggestion is: the number of its assignment, and the parameters which that one uses."""
Spaces = Sequence[dict[str, ParameterConfig]]
"""For each assignment the parameters that it uses."""


class LearningSearch(TableSearch):
    """Adds what optuna suggests, as one trial for each seed.

    It is told the mean of the seeds' metrics when all of them are known; if one of these trials
    failed, the suggestion counts as failed. It hears what ran and nothing else, whether that ended
    before the sweep was resumed or after.
    """

    def __init__(self, plan: SweepPlan, table: Trials) -> None:
        super().__init__(plan, table)
        self._plan = plan
        config, earlier = plan.config, table.records
        self._seeds = config.all_seeds
        self._num_trials = len(earlier)
        self._width = len(str(max(0, config.num_samples * len(self._seeds) - 1)))
        groups = by_setting(earlier)
        self._num_suggestions = len(groups)
        self._group_of = {record.id: group for group in groups for record in group}
        self._metrics: dict[str, float | None] = {
            record.id: record.metric
            for record in earlier
            if record.is_finished or not record.assignment  # its simulation refused it
        }
        """Of each trial that is over."""
        known = [
            (self._point(group[0]), self._mean(group)) for group in groups if self._is_over(group)
        ]
        spaces = [active(config.parameters, set(r.values())) for r in plan.role_assignments]
        seed = derive_seed(config.seed, "searcher")
        self._optuna = Optuna(spaces, config.metric.mode, known, seed)

    def _next(self) -> list[TrialRecord]:
        """Returns the trials of the next suggestion that can be run."""
        while self._num_suggestions < self._plan.config.num_samples:
            point = self._optuna.suggest(self._num_suggestions)
            self._num_suggestions += 1
            roles = self._plan.role_assignments[point[ROLES_KEY]]
            parameters = {key: value for key, value in point.items() if key != ROLES_KEY}
            try:
                assignment = self._plan.assignment(roles, parameters)
            except ConfigError as error:
                self._optuna.tell(point, None)
                records = self._make_records("refused", "", roles, parameters)
                self._table.refuse(records, "; ".join(error.problems))
                continue
            records = self._make_records(file_name(assignment), assignment, roles, parameters)
            self._group_of |= {record.id: records for record in records}
            self._table.add(records)
            return list(records)
        return []

    def _make_records(
        self, name: str, assignment: str, roles: RoleAssignment, parameters: dict[str, Any]
    ) -> list[TrialRecord]:
        """Returns one trial for each seed."""
        first, self._num_trials = self._num_trials, self._num_trials + len(self._seeds)
        return [
            TrialRecord(
                name_trial(first + i, self._width, name, seed), assignment, roles, parameters, seed
            )
            for i, seed in enumerate(self._seeds)
        ]

    def on_trial_complete(
        self, trial_id: str, result: dict | None = None, error: bool = False
    ) -> None:
        """Takes in the metric of a trial."""
        record = self._record_of[trial_id]
        group = self._group_of[record.id]
        self._metrics[record.id] = None if error or not result else result.get(METRIC)
        if self._is_over(group):
            self._optuna.tell(self._point(record), self._mean(group))

    def _is_over(self, group: Sequence[TrialRecord]) -> bool:
        return all(record.id in self._metrics for record in group)

    def _mean(self, group: Sequence[TrialRecord]) -> float | None:
        values = [v for record in group if (v := self._metrics[record.id]) is not None]
        return sum(values) / len(values) if len(values) == len(group) else None

    def _point(self, record: TrialRecord) -> Point:
        return {ROLES_KEY: self._plan.role_assignments.index(record.roles), **record.parameters}


class Optuna:
    """optuna's TPE sampler.

    A suggestion depends only on its number, the seed, what is known by then and what is being
    tried, so that a sweep that is resumed draws nothing again, and goes on as if it had not been
    cut where its trials run one by one.

    Args:
        spaces: for each assignment its parameters.
        mode: "max" or "min".
        known: points, and what came of them.
        seed: of its draws.
    """

    def __init__(
        self, spaces: Spaces, mode: str, known: list[tuple[Point, float | None]], seed: int
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spaces = spaces
        self._seed = seed
        self._study = optuna.create_study(direction=f"{mode}imize")
        self._asked: list[tuple[Point, Any]] = []
        """Those without a metric yet: the sampler takes them for bad ones, and looks elsewhere."""
        for point, value in known:
            self.tell(point, value)

    def suggest(self, number: int) -> Point:
        """Returns an assignment and values of the parameters which that one uses."""
        from optuna.samplers import TPESampler

        self._study.sampler = TPESampler(
            seed=derive_seed(self._seed, str(number)), constant_liar=True
        )
        trial = self._study.ask()
        point = self._draw(trial)
        self._asked.append((point, trial))
        return point

    def tell(self, point: Point, value: float | None) -> None:
        """Takes in what came of a point, of this beginning or an earlier one; None if it failed."""
        from optuna.trial import FixedTrial, TrialState, create_trial

        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        for number, (asked, trial) in enumerate(self._asked):
            if asked == point:
                del self._asked[number]
                self._study.tell(trial, value, state)
                return
        parameters = self._spaces[point[ROLES_KEY]]
        fixed = FixedTrial({key: _number(parameters.get(key), v) for key, v in point.items()})
        self._draw(fixed)
        self._study.add_trial(
            create_trial(
                state=state,
                value=value,
                params=fixed.params,
                distributions=fixed.distributions,
            )
        )

    def _draw(self, trial: Any) -> Point:
        roles = trial.suggest_categorical(ROLES_KEY, list(range(len(self._spaces))))
        values = {key: _suggested(trial, key, p) for key, p in self._spaces[roles].items()}
        return {ROLES_KEY: roles, **values}


def _suggested(trial: Any, key: str, parameter: ParameterConfig) -> Any:
    """Returns a value of a distribution, as optuna's trial has it."""
    ((kind, values),) = given(parameter).items()
    if kind == "choice":  # by number, since a choice may be a list
        return values[trial.suggest_categorical(key, list(range(len(values))))]
    low, high = values[:2]
    if kind == "randint":
        return trial.suggest_int(key, low, high - 1)
    if kind == "quniform":
        step = values[2]
        first, last = (multiple(number, step) for number in multiples(low, high, step))
        return multiple(round(trial.suggest_float(key, first, last, step=step) / step), step)
    return trial.suggest_float(key, low, high, log=kind == "loguniform")


def _number(parameter: ParameterConfig | None, value: Any) -> Any:
    """Returns what `_suggested` asks optuna for, to get this value."""
    choices = parameter.choice if parameter is not None else None
    return value if choices is None else choices.index(value)
