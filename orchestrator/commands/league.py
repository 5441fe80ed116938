"""``muxrl league``: train members in rounds against an archive of their earlier policies.

Trains the members of a league in rounds against an archive of their earlier policies, and rates all
of them after each round. Each round is a sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.terminal import quiet, table_console
from muxrl.orchestrator.errors import ConfigError, ExitCode


@command(is_long=True, says="always", needs=("servers", "tune"))
def league(
    config: str,
    overrides: Sequence[str] = (),
    *,
    league_dir: Path | None = None,
    address: str | None = None,
    resume: bool = False,
) -> int:
    """Runs the league, prints where its report is, and returns the exit code.

    Args:
        config (LEAGUE): a YAML file, or the name of a packaged league; with --resume a league's
            directory.
        overrides (key=value): replaces a value, such as rounds=10 or experiment.seed=1.
        league_dir (DIR): directory for the results; default: a new one.
        address: Ray cluster to join, such as "auto".
        resume: continue the league in the directory LEAGUE.
    """
    if resume and league_dir is not None:
        raise ConfigError(
            ["--league-dir is for a new league; with --resume, LEAGUE is the directory"]
        )
    with quiet():
        from muxrl.orchestrator.league.load import load_league
        from muxrl.orchestrator.league.runner import resume_league, start_league
        from muxrl.orchestrator.supervise.fork_server import early

    overrides = [*overrides, *([f"address={address}"] if address else [])]
    console = table_console()
    if resume:
        result = resume_league(Path(config), overrides, console=console)
    else:
        loaded = load_league(config, overrides)
        with early(loaded.address):
            result = start_league(loaded, league_dir, console=console)
    lines = [f"league directory: {result.league_dir}"]
    if result.num_rounds:
        lines.append(f"report: {result.league_dir / 'report.html'}")
    if result.exit_code != ExitCode.DONE:
        lines.append(f"continue with: muxrl league {result.league_dir} --resume")
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    return result.exit_code
