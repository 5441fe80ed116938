"""Which trial Tune runs next: one of the sweep's table, or one from a searcher that learns.

Tune would draw the trials itself, and resumes an experiment from its last snapshot. Here the table
is the sweep's: known before the start, the same on every machine, and a finished trial stays
finished. A searcher that learns from earlier trials, such as optuna, adds new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.tune.search import Searcher

from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.sweeps.assignments import RoleAssignment
from muxrl.orchestrator.sweeps.directory import TrialRecord
from muxrl.orchestrator.sweeps.parameters import active, given, multiple, multiples
from muxrl.orchestrator.sweeps.plan import SweepPlan, by_setting, name_trial
from muxrl.orchestrator.sweeps.schema import ParameterConfig
from muxrl.orchestrator.sweeps.trial import METRIC, tune_config
from muxrl.orchestrator.sweeps.trial_log import TrialLog
from muxrl.protocol.assignment import file_name

ROLES_KEY = "(assignment)"
"""Beside parameters, what a searcher chooses: the number of the assignment."""


class TableSearch(Searcher):
    """Hands out the trials of a table that are not finished, in their order.

    Args:
        plan: the sweep's.
        table: its trials.
    """

    def __init__(self, plan: SweepPlan, table: TrialLog) -> None:
        super().__init__(metric=METRIC, mode=plan.config.metric.mode)
        self._table = table
        self._waiting = [one for one in table.records if not one.is_finished and one.assignment]

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Returns the next trial as Tune's config, "FINISHED" after the last."""
        self._waiting = self._waiting or self._next()
        if not self._waiting:
            return Searcher.FINISHED
        record = self._waiting.pop(0)
        folder = self._table.folder
        return tune_config(record, folder.run_of(record) or folder.new_run(record.id))

    def _next(self) -> list[TrialRecord]:
        """Returns further trials; none after the last."""
        return []

    def on_trial_complete(
        self, trial_id: str, result: dict | None = None, error: bool = False
    ) -> None:
        """Does nothing: the table says what came of it."""

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

    It is told the mean of the seeds' metrics when all of them are over; if one of these trials
    failed, the suggestion counts as failed. It hears what ran and nothing else, whether that ended
    before the sweep was resumed or after.
    """

    def __init__(self, plan: SweepPlan, table: TrialLog) -> None:
        super().__init__(plan, table)
        self._plan, config = plan, plan.config
        self._pending = by_setting(table.records)
        self._num_suggestions = len(self._pending)
        spaces = [active(config.parameters, set(r.values())) for r in plan.role_assignments]
        self._optuna = Optuna(spaces, config.metric.mode, derive_seed(config.seed, "searcher"))

    def _next(self) -> list[TrialRecord]:
        """Returns the trials of the next suggestion that can be run."""
        while self._num_suggestions < self._plan.config.num_samples:
            self._report()
            point = self._optuna.suggest(self._num_suggestions)
            self._num_suggestions += 1
            roles = self._plan.role_assignments[point[ROLES_KEY]]
            parameters = {key: value for key, value in point.items() if key != ROLES_KEY}
            try:
                assignment = self._plan.assignment(roles, parameters)
            except ConfigError as error:
                refused = self._make_records("refused", "", roles, parameters)
                for record in refused:
                    record.status, record.cause = "failed", "; ".join(error.problems)
                self._table.add(refused)
                continue
            records = self._make_records(file_name(assignment), assignment, roles, parameters)
            self._table.add(records)
            return list(records)
        return []

    def _make_records(
        self, name: str, assignment: str, roles: RoleAssignment, parameters: dict[str, Any]
    ) -> list[TrialRecord]:
        """Returns one trial for each seed."""
        first, seeds = len(self._table.records), self._plan.config.all_seeds
        width = len(str(max(0, self._plan.config.num_samples * len(seeds) - 1)))
        records = [
            TrialRecord(
                name_trial(first + i, width, name, seed), assignment, roles, parameters, seed
            )
            for i, seed in enumerate(seeds)
        ]
        self._pending.append(records)
        return records

    def _report(self) -> None:
        """Tells what came of the suggestions whose trials are all over by now."""
        over = [group for group in self._pending if all(record.is_over for record in group)]
        self._pending = [group for group in self._pending if group not in over]
        for group in over:
            values = [r.metric for r in group if r.is_finished and r.metric is not None]
            number = self._plan.role_assignments.index(group[0].roles)
            mean = sum(values) / len(values) if len(values) == len(group) else None
            self._optuna.tell({ROLES_KEY: number, **group[0].parameters}, mean)


class Optuna:
    """optuna's TPE sampler.

    A suggestion depends only on its number, the seed, what is known by then and what is being
    tried, so that a sweep that is resumed draws nothing again, and continues as if it had not been
    cut where its trials run one by one.

    Args:
        spaces: for each assignment its parameters.
        mode: "max" or "min".
        seed: of its draws.
    """

    def __init__(self, spaces: Spaces, mode: str, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spaces = spaces
        self._seed = seed
        self._study = optuna.create_study(direction=f"{mode}imize")
        self._asked: list[tuple[Point, Any]] = []
        """Those without a metric yet: the sampler takes them for bad ones, and looks elsewhere."""

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
        """Receives what came of a point, of this beginning or an earlier one; None if it failed."""
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
