"""``muxrl report``: write table and picture of a run, or of several seeds together.

Reports on what a run recorded, whether it ended, was cut short or crashed.
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
        out (DIR): where the report goes; default: into the run, if it is one.
        over_seeds: intervals of several runs speak of training again with other seeds; the default.
        over_episodes: they speak of these runs' policies, in other episodes.
    """
    from muxrl.orchestrator.errors import ConfigError
    from muxrl.orchestrator.records.run_directory import RunDirectory
    from muxrl.orchestrator.reports.report import combine_runs, print_report, write_report

    if len(runs) > 1 and out is None:
        raise ConfigError(
            ["several runs need --out DIR, since their report belongs to none of them"]
        )
    if out is None:
        print_report(write_report(RunDirectory.open(runs[0])))
    else:
        print_report(combine_runs(runs, out, over_episodes=over_episodes))
