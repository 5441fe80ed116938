"""Sends a run to Weights & Biases.

It is configured by its own variables: ``WANDB_API_KEY``, ``WANDB_BASE_URL``, ``WANDB_ENTITY``,
``WANDB_PROJECT``, ``WANDB_MODE``, ``WANDB_DIR``. ``WANDB_MODE=offline`` writes files for a later
``wandb sync``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import wandb

from muxrl.orchestrator.trackers.tracker import TrackedRun

_MOST_TAG_CHARS = 64
"""The server's limit for the length of a tag."""
_STEP = "env_steps"


class WeightsAndBiases:
    """One run at Weights & Biases; the assignment is a tag, a sweep a group."""

    def start(self, run: TrackedRun) -> str:
        """Begins a run, or continues it.

        Returns:
            The id of the run at Weights & Biases.
        """
        is_tag = 0 < len(run.assignment) <= _MOST_TAG_CHARS
        self._run = wandb.init(
            project=None if "WANDB_PROJECT" in os.environ else run.project,
            dir=None if "WANDB_DIR" in os.environ else str(run.folder),
            name=run.name,
            group=run.group or None,
            tags=[run.assignment] if is_tag else None,
            config={**run.config, "assignment": run.assignment},
            id=run.known_as or None,
            resume="allow" if run.known_as else None,
            settings=wandb.Settings(console="off", save_code=False, disable_git=True),
        )
        self._run.define_metric(_STEP)
        # The default step counts calls, and never goes back.
        self._run.define_metric("*", step_metric=_STEP)
        return self._run.id

    def log(self, numbers: Mapping[str, float], env_steps: int) -> None:
        """Logs a row."""
        self._run.log({**numbers, _STEP: env_steps})

    def artifacts(self, files: Sequence[Path]) -> None:
        """Logs the report as one artifact."""
        artifact = wandb.Artifact(f"report-{self._run.id}", "report")
        for path in files:
            artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def end(self, state: str) -> None:
        """Waits until everything is written or uploaded."""
        self._run.finish(exit_code=0 if state == "done" else 1)
