"""``muxrl track``: send a finished run or sweep to trackers such as wandb.

Sends the recorded metrics and the report of a finished run to trackers. Each trial of a sweep is
sent as a run.
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
        run (RUN|SWEEP): directory of a finished run or sweep.
        trackers (TRACKER): names as in a config, such as wandb, or your own class as
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
            sys.stdout.write(f"{name}: sent {num_rows:,} rows of {folder.path}{as_what}\n")
            sys.stdout.flush()
