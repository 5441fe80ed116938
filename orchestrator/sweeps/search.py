"""Tune is handed the sweep's own trials, one after another; a searcher that learns adds new ones.

Tune would draw the trials itself, and resumes an experiment from its last snapshot. Here the table
is the sweep's: known before the start, the same on every machine, and a finished trial stays
finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.tune.search import Searcher

from muxrl.orchestrator.sweeps.directory import SweepDirectory
from muxrl.orchestrator.sweeps.suggestions import Suggestions
from muxrl.orchestrator.sweeps.trial import METRIC, tune_config
from muxrl.orchestrator.sweeps.trial_record import TrialSpec


class TableSearch(Searcher):
    """Hands out trials in their order; asks `more` when there are none left.

    Args:
        specs: the trials to run.
        folder: where their run directories will lie.
        metric: Tune's name of the metric.
        mode: "max" or "min".
        more: makes further trials, None for none.
        columns: the parameters that Tune's table shows.
    """

    def __init__(
        self,
        specs: Sequence[TrialSpec],
        folder: SweepDirectory,
        metric: str,
        mode: str,
        more: Suggestions | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        super().__init__(metric=metric, mode=mode)
        self._columns = columns
        self._specs = list(specs)
        self._folder = folder
        self._more = more
        self._spec_of: dict[str, TrialSpec] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Returns the next trial as Tune's config, "FINISHED" after the last."""
        if not self._specs and self._more is not None:
            self._specs += self._more.next()
        if not self._specs:
            return Searcher.FINISHED
        spec = self._specs.pop(0)
        self._spec_of[trial_id] = spec
        return tune_config(spec, self._folder.new_run(spec.trial_id), self._columns)

    def on_trial_complete(
        self, trial_id: str, result: dict | None = None, error: bool = False
    ) -> None:
        """Hands the metric on to the searcher that learns."""
        spec = self._spec_of.get(trial_id)
        if self._more is not None and spec is not None:
            self._more.complete(spec, None if error or not result else result.get(METRIC))

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: `trials.jsonl` holds all there is."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing, likewise."""
