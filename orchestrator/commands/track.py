"""``muxrl track``: tell trackers of a finished run or sweep, from its files.

Tells trackers all that a finished run has recorded, and hands them its report. Each trial of a
sweep is a run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.errors import ConfigError


@command()
def track(run: Path, trackers: Sequence[str]) -> None:
    """Tells one tracker after another.

    Args:
        run (RUN|SWEEP): directory of a run or a sweep that is over.
        trackers (TRACKER): as the config names them, such as wandb, or your own as
            package.module:Tracker.
    """
    from muxrl.orchestrator.config.trackers import find_problems
    from muxrl.orchestrator.manage.feed_tracker import feed, runs_in

    if problems := list(find_problems(trackers)):
        raise ConfigError(problems)
    for folder in runs_in(run):
        for name in trackers:
            num_rows, known_as = feed(folder, name)
            as_what = f" as {known_as}" if known_as else ""
            sys.stdout.write(f"{name}: {num_rows:,} rows of {folder.path}{as_what}\n")
            sys.stdout.flush()
