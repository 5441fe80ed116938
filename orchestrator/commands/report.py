"""``muxrl report``: write the report of a run, or of several runs that differ in seed.

Writes the report of a run from its files, whether it ended, was interrupted or crashed; or one
report of several runs that differ in seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muxrl.orchestrator.commands.command import command


@command(says="in a terminal", at_most_one=("over_seeds", "over_episodes"))
def report(
    runs: Sequence[Path],
    *,
    out: Path | None = None,
    over_seeds: bool = False,
    over_episodes: bool = False,
) -> None:
    """Writes the report and prints it.

    Args:
        runs (RUN): directories of runs that differ in seed.
        out (DIR): directory for the report; default: the run's own, if it is one run.
        over_seeds: intervals of several runs say how training with other seeds may turn out; the
            default.
        over_episodes: intervals say what the same policies may return in other episodes.
    """
    from muxrl.orchestrator.errors import ConfigError
    from muxrl.orchestrator.records.run_directory import RunDirectory
    from muxrl.orchestrator.reports.report import combine_runs, print_report, write_report

    if len(runs) > 1 and out is None:
        raise ConfigError(
            ["a report of several runs needs --out DIR: it does not belong into one of them"]
        )
    if out is None:
        print_report(write_report(RunDirectory.open(runs[0])))
    else:
        print_report(combine_runs(runs, out, over_episodes=over_episodes))
