"""Tune is handed the sweep's own rows, one after another; a searcher that learns makes new ones.

Tune would draw the trials itself, and a resumed experiment of its own begins at its last snapshot.
Here the table is the sweep's: known before the start, the same on every machine, and a trial that
is finished stays finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from muxrl.orchestrator.config.problems import ConfigError
from muxrl.orchestrator.sweeps.assignments import Cast
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.parameters import active, kind_of
from muxrl.orchestrator.sweeps.plan import Row, SweepPlan, name_trial
from muxrl.orchestrator.sweeps.schema import ParameterConfig
from muxrl.orchestrator.sweeps.trial import METRIC, tune_config
from muxrl.protocol.assignment import file_name

CAST = "(assignment)"
"""Beside parameters, what a searcher chooses: the number of the assignment."""


class TableSearch(Searcher):
    """Hands out rows in their order; asks `more` when there are none left.

    Args:
        rows: those to run.
        folder: where their run directories will lie.
        metric: Tune's name of the metric.
        mode: "max" or "min".
        more: makes further rows, None for none.
        columns: the parameters that Tune's table shows.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        folder: SweepDirectory,
        metric: str,
        mode: str,
        more: Suggestions | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        super().__init__(metric=metric, mode=mode)
        self._columns = columns
        self._rows = list(rows)
        self._folder = folder
        self._more = more
        self._row_of: dict[str, Row] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Returns the next row as Tune's config, "FINISHED" after the last."""
        if not self._rows and self._more is not None:
            self._rows += self._more.next()
        if not self._rows:
            return Searcher.FINISHED
        row = self._rows.pop(0)
        self._row_of[trial_id] = row
        return tune_config(row, self._folder.new_run(row.trial_id), self._columns)

    def on_trial_complete(
        self, trial_id: str, result: dict | None = None, error: bool = False
    ) -> None:
        """Tells the searcher that learns what came of it."""
        row = self._row_of.get(trial_id)
        if self._more is not None and row is not None:
            self._more.complete(row, None if error or not result else result.get(METRIC))

    def save(self, checkpoint_path: str) -> None:
        """Nothing: `trials.jsonl` says it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing, likewise."""


class Suggestions:
    """Rows from a searcher that learns: what it suggests, once with each seed.

    It hears the mean of the seeds' metrics, when all of them are known; a suggestion of which a
    trial failed counts as failed.

    Args:
        plan: the sweep's.
        metric: Tune's name of the metric.
        earlier: trials of the sweep that is resumed.
        make_searcher: from the space, metric, mode, and (point, value) of what is known, to Tune's
            searcher.
        on_rows: hears of new rows.
        on_refused: hears of rows that cannot be run, and why: a simulation may refuse its
            arguments.
    """

    def __init__(
        self,
        plan: SweepPlan,
        metric: str,
        earlier: Sequence[TrialRecord],
        make_searcher: Callable[..., Searcher],
        on_rows: Callable[[Sequence[Row]], None],
        on_refused: Callable[[Sequence[Row], str], None],
    ) -> None:
        self._plan = plan
        self._on_rows = on_rows
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
            for records in _in_groups(earlier, len(self._seeds))
            if all(r.is_finished for r in records)
            and len(metrics := [r.metric for r in records if r.metric is not None]) == len(records)
        ]
        space: dict[str, Any] = {k: domain(p) for k, p in config.parameters.items()}
        space[CAST] = tune.choice(list(range(len(plan.casts))))
        self._searcher = make_searcher(space, metric, config.metric.mode, known)

    def next(self) -> list[Row]:
        """Returns the rows of one more suggestion that can be run; none after the last."""
        while self._num_left > 0:
            suggestion_id = f"suggestion-{self._num_made}"
            point = self._searcher.suggest(suggestion_id)
            if not isinstance(point, dict):
                break
            self._num_left -= 1
            roles = self._plan.casts[point[CAST]]
            used = active(self._plan.config.parameters, set(roles.values()))
            parameters = {key: point[key] for key in used}
            try:
                assignment = self._plan.assignment(roles, parameters)
            except ConfigError as error:
                self._searcher.on_trial_complete(suggestion_id, error=True)
                rows = self._rows("refused", "", roles, parameters)
                self._on_refused(rows, "; ".join(error.problems))
                continue
            rows = self._rows(file_name(assignment), assignment, roles, parameters)
            self._suggestion_of |= {row.trial_id: suggestion_id for row in rows}
            self._metrics[suggestion_id] = []
            self._on_rows(rows)
            return rows
        return []

    def _rows(
        self, name: str, assignment: str, roles: Cast, parameters: dict[str, Any]
    ) -> list[Row]:
        """One for each seed."""
        first, self._num_made = self._num_made, self._num_made + len(self._seeds)
        return [
            Row(name_trial(first + i, self._width, name, seed), assignment, roles, parameters, seed)
            for i, seed in enumerate(self._seeds)
        ]

    def complete(self, row: Row, metric: float | None) -> None:
        """Takes in what came of a row, None if it failed."""
        suggestion_id = self._suggestion_of.get(row.trial_id)
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
        record = records[0]
        values = {key: _any_value(p) for key, p in self._plan.config.parameters.items()}
        return {**values, **record.parameters, CAST: self._plan.casts.index(record.roles)}


def domain(parameter: ParameterConfig) -> Any:
    """Returns Tune's form of a distribution."""
    kind = str(kind_of(parameter))
    assert kind != "grid"
    values = getattr(parameter, kind)
    return tune.choice(values) if kind == "choice" else getattr(tune, kind)(*values)


def make_optuna(
    space: Mapping[str, Any],
    metric: str,
    mode: str,
    known: Sequence[tuple[dict[str, Any], float]],
    seed: int,
) -> Searcher:
    """Returns Tune's optuna (its TPE sampler), told of what is known already."""
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return OptunaSearch(
        OptunaSearch.convert_search_space(dict(space)),
        metric=metric,
        mode=mode,
        seed=seed,
        points_to_evaluate=[point for point, _ in known] or None,
        evaluated_rewards=[value for _, value in known] or None,
    )


def _in_groups(records: Sequence[TrialRecord], size: int) -> list[Sequence[TrialRecord]]:
    """Returns the trials of each suggestion, which are made and written one after another."""
    return [records[i : i + size] for i in range(0, len(records), size)]


def _any_value(parameter: ParameterConfig) -> Any:
    """Returns a value for a key that an assignment has no use for: searchers want them all."""
    kind = kind_of(parameter)
    assert kind is not None
    return getattr(parameter, kind)[0]
