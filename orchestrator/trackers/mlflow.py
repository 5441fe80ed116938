"""Sends a run to MLflow, at ``MLFLOW_TRACKING_URI`` or MLflow's default.

The default is ``mlflow.db`` and ``mlruns/`` in the folder where muxrl was started. MLflow's
experiment is ``MLFLOW_EXPERIMENT_NAME``, or has the name of the run's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a run reports only to its trackers

from mlflow import get_tracking_uri
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.validation import (
    MAX_ENTITY_KEY_LENGTH,
    MAX_METRICS_PER_BATCH,
    MAX_PARAM_VAL_LENGTH,
    MAX_PARAMS_TAGS_PER_BATCH,
    MAX_TAG_VAL_LENGTH,
)

from muxrl.orchestrator.config.merge import dotted, leaves
from muxrl.orchestrator.trackers.tracker import TrackedRun

_NO_KEY = re.compile(r"[^\w.\- :/]")
"""Characters that a key cannot have on every system."""
_STATUS = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MLflow:
    """One run in MLflow; assignment and sweep are tags, the leaves of the config parameters."""

    def start(self, run: TrackedRun) -> str:
        """Begins a run, or continues it.

        Returns:
            The id of MLflow's run.
        """
        experiment_name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project
        with _alone(get_tracking_uri()):
            self._client = MlflowClient()
            experiment_id = self._experiment(experiment_name)
        if run.known_as:
            self._run_id = run.known_as
            self._client.update_run(self._run_id, status="RUNNING")
            return self._run_id
        tags = {"assignment": run.assignment[:MAX_TAG_VAL_LENGTH]}
        if run.group:
            tags["sweep"] = run.group
        begun = self._client.create_run(experiment_id, run_name=run.name, tags=tags)
        self._run_id = begun.info.run_id
        settings = leaves(run.config)
        while batch := list(islice(settings, MAX_PARAMS_TAGS_PER_BATCH)):
            params = [Param(_key(dotted(p)), str(x)[:MAX_PARAM_VAL_LENGTH]) for p, x in batch]
            self._client.log_batch(self._run_id, params=params)
        return self._run_id

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return self._client.create_experiment(name)
            except MlflowException:  # another trial of the sweep has just made it
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return found.experiment_id

    def log(self, numbers: Mapping[str, float], env_steps: int) -> None:
        """Logs a row, with the env steps as its step."""
        now_ms = int(time.time() * 1000)
        metrics = iter([Metric(_key(k), x, now_ms, env_steps) for k, x in numbers.items()])
        while batch := list(islice(metrics, MAX_METRICS_PER_BATCH)):
            self._client.log_batch(self._run_id, metrics=batch)

    def artifacts(self, files: Sequence[Path]) -> None:
        """Logs each file under ``report/``."""
        for path in files:
            self._client.log_artifact(self._run_id, str(path), "report")

    def end(self, state: str) -> None:
        """Sets how the run ended."""
        self._client.set_terminated(self._run_id, _STATUS[state])


@contextlib.contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Keeps other processes out of an SQLite store, which MLflow makes and migrates without a lock.

    The trials of a sweep open the store at the same time.
    """
    path = uri.partition("?")[0].removeprefix("sqlite:///")
    if path == uri.partition("?")[0]:
        yield
        return
    with open(f"{path}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _key(name: str) -> str:
    return _NO_KEY.sub("_", name)[:MAX_ENTITY_KEY_LENGTH]
