"""``muxrl league``: train members in rounds against an archive of their past.

Trains the members of a league in rounds, each a sweep, against an archive of their past, and rates
them after each round.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from muxrl.orchestrator.commands.terminal import quiet, table_console
from muxrl.orchestrator.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "config",
        metavar="LEAGUE",
        help="a YAML file, or the name of a packaged league; with --resume a league's directory",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="replaces a value, such as rounds=10 or experiment.seed=1",
    )
    parser.add_argument(
        "--league-dir", type=Path, metavar="DIR", help="where results go; default: a new one"
    )
    parser.add_argument("--address", help='Ray cluster to join, such as "auto"')
    parser.add_argument(
        "--resume", action="store_true", help="go on with the league in the directory LEAGUE"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the league, prints where its report is, and returns the exit code."""
    with quiet():
        from muxrl.orchestrator.league.load import load_league
        from muxrl.orchestrator.league.runner import resume_league, start_league
        from muxrl.orchestrator.supervise.ray_session import begin_early

    overrides = list(args.overrides)
    if args.address:
        overrides.append(f"address={args.address}")
    console = table_console()
    if args.resume:
        result = resume_league(Path(args.config), overrides, console=console)
    else:
        config = load_league(args.config, overrides)
        begin_early(config.address)
        result = start_league(config, args.league_dir, console=console)
    lines = [f"league directory: {result.league_dir}"]
    if result.num_rounds:
        lines.append(f"report: {result.league_dir / 'report.html'}")
    if result.exit_code != ExitCode.DONE:
        lines.append(f"go on with: muxrl league {result.league_dir} --resume")
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    return result.exit_code
