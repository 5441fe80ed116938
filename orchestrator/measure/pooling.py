"""May runs be pooled: as seeds of one experiment, or side by side in one simulation?"""

from __future__ import annotations

import contextlib

from muxrl.orchestrator.config.experiment_settings import conflicts, experiment_settings
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.records.recorded_run import RecordedRun


def differences(first: RecordedRun, other: RecordedRun, *keys: str) -> list[str]:
    """Returns in which settings two runs differ, and whether they were evaluated by two rules.

    Args:
        first, other: of them; configs that cannot be read are passed over.
        keys: with which the names of the settings begin, see `experiment_settings`.
    """
    explore = [run.should_explore for run in (first, other)]
    if None not in explore and explore[0] != explore[1]:
        names = ["sampled" if one else "greedy" for one in explore]
        return [f"evaluated actions are {names[0]} against {names[1]}"]
    with contextlib.suppress(FileNotFoundError, ConfigError):
        ours, theirs = (
            {k: v for k, v in experiment_settings(run.config).items() if k.startswith(keys)}
            for run in (first, other)
        )
        return conflicts(ours, theirs)
    return []
