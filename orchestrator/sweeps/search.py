"""Gives Tune its next trial, from the sweep's table or from a searcher that learns.

Tune would draw the trials itself, and resume an experiment from its last snapshot. Here the sweep
has a table of trials instead: it is known before the start and the same on every machine, and a
finished trial stays finished. A searcher that learns from earlier trials, such as optuna, adds new
trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ray.tune.search import Searcher

from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.sweeps.directory import TrialRecord
from muxrl.orchestrator.sweeps.parameters import active, given, multiple, multiples
from muxrl.orchestrator.sweeps.plan import SweepPlan, by_setting, make_trial
from muxrl.orchestrator.sweeps.schema import ParameterConfig
from muxrl.orchestrator.sweeps.trial import METRIC, tune_config
from muxrl.orchestrator.sweeps.trial_log import TrialLog

ROLES_KEY = "(assignment)"
"""Key of the assignment's number, which a searcher chooses like the parameters."""


class TableSearch(Searcher):
    """Hands out the trials of a table that are not finished, in their order.

    Args:
        plan: of the sweep.
        table: of the sweep's trials.
    """

    def __init__(self, plan: SweepPlan, table: TrialLog) -> None:
        super().__init__(metric=METRIC, mode=plan.config.metric.mode)
        self._table = table
        self._waiting = [one for one in table.records if not one.is_finished and one.assignment]

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Returns the next trial as a Tune config; "FINISHED" after the last."""
        self._waiting = self._waiting or self._next()
        if not self._waiting:
            return Searcher.FINISHED
        record = self._waiting.pop(0)
        folder = self._table.folder
        return tune_config(record, folder.run_of(record) or folder.new_run(record.id))

    def _next(self) -> list[TrialRecord]:
        """Returns further trials; [] if there are none."""
        return []

    def on_trial_complete(
        self, trial_id: str, result: dict | None = None, error: bool = False
    ) -> None:
        """Does nothing, as the table has the result."""

    def save(self, checkpoint_path: str) -> None:
        """Does nothing, as `trials.jsonl` has all state."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing; see `save`."""


Point = dict[str, Any]
"""A suggestion: the number of an assignment, and values of the parameters that it uses."""
Known = tuple[Point, str, float | None]
"""A suggestion, the name of its state in optuna, and its metric if it is complete."""
Spaces = Sequence[dict[str, ParameterConfig]]
"""By number of the assignment: the parameters that it uses."""


class LearningSearch(TableSearch):
    """Adds the suggestions of optuna, each as one trial for each seed.

    optuna gets all trials of the table each time, also those from before the sweep was resumed. The
    result of a suggestion is the mean of its trials' metrics once all are over; if one of them
    failed, the suggestion has failed.
    """

    def __init__(self, plan: SweepPlan, table: TrialLog) -> None:
        super().__init__(plan, table)
        self._plan = plan
        of_assignments = (set(roles.values()) for roles in plan.role_assignments)
        self._spaces = [active(plan.config.parameters, names) for names in of_assignments]

    def _next(self) -> list[TrialRecord]:
        """Returns the trials of the next suggestion whose experiment is not refused."""
        config = self._plan.config
        while len(groups := by_setting(self._table.records)) < config.num_samples:
            seed = derive_seed(derive_seed(config.seed, "searcher"), str(len(groups)))
            point = suggest(self._spaces, config.metric.mode, seed, map(self._known, groups))
            roles = self._plan.role_assignments[point.pop(ROLES_KEY)]
            assignment = cause = ""
            try:
                assignment = self._plan.resolve(roles, point, config.all_seeds[0]).assignment
            except ConfigError as error:
                cause = "; ".join(error.problems)
            first, num = len(self._table.records), self._plan.num_trials
            made = [
                make_trial(first + i, num, assignment, roles, point, own)
                for i, own in enumerate(config.all_seeds)
            ]
            for record in made if cause else ():
                record.status, record.cause = "failed", cause
            self._table.add(made)
            if not cause:
                return made
        return []

    def _known(self, group: Sequence[TrialRecord]) -> Known:
        """Returns a suggestion with its result, from its trials."""
        number = self._plan.role_assignments.index(group[0].roles)
        point = {ROLES_KEY: number, **group[0].parameters}
        if not all(record.is_over for record in group):
            return point, "RUNNING", None
        values = [r.metric for r in group if r.is_finished and r.metric is not None]
        if len(values) < len(group):
            return point, "FAIL", None
        return point, "COMPLETE", sum(values) / len(values)


def suggest(spaces: Spaces, mode: str, seed: int, known: Iterable[Known]) -> Point:
    """Returns an assignment and values of the parameters that it uses, from optuna's TPE.

    The suggestion depends on the arguments alone. So a resumed sweep whose trials run one by one
    continues as if it had not been interrupted.

    Args:
        spaces: for each assignment its parameters.
        mode: "max" or "min".
        seed: of this draw.
        known: earlier suggestions. The sampler assumes that those still running are bad, and looks
            elsewhere.
    """
    import optuna
    from optuna.trial import FixedTrial, TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    study = optuna.create_study(sampler=sampler, direction=f"{mode}imize")
    for point, state, value in known:
        parameters = spaces[point[ROLES_KEY]]
        fixed = FixedTrial({key: _number(parameters.get(key), v) for key, v in point.items()})
        _draw(fixed, spaces)
        params, distributions = fixed.params, fixed.distributions
        study.add_trial(
            create_trial(
                state=TrialState[state], value=value, params=params, distributions=distributions
            )
        )
    return _draw(study.ask(), spaces)


def _draw(trial: Any, spaces: Spaces) -> Point:
    roles = trial.suggest_categorical(ROLES_KEY, list(range(len(spaces))))
    values = {key: _suggested(trial, key, p) for key, p in spaces[roles].items()}
    return {ROLES_KEY: roles, **values}


def _suggested(trial: Any, key: str, parameter: ParameterConfig) -> Any:
    """Returns a value of a parameter, as optuna's trial suggests it."""
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
    """Returns the value that optuna knows for this value of a parameter; see `_suggested`."""
    choices = parameter.choice if parameter is not None else None
    return value if choices is None else choices.index(value)
