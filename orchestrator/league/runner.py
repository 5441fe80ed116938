"""Runs a league from its first round to its last, and resumes it at any point.

In a round the members train (in a sweep, which can resume its trials), then the games are played,
then the report is written. The files tell how far the league has come.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from muxrl.orchestrator.config.load import secrets, to_yaml
from muxrl.orchestrator.config.merge import dotted
from muxrl.orchestrator.config.overrides import Overrides
from muxrl.orchestrator.errors import ExitCode
from muxrl.orchestrator.league.directory import LeagueDirectory
from muxrl.orchestrator.league.games import play_games
from muxrl.orchestrator.league.load import load_resumed_league
from muxrl.orchestrator.league.population import League, make_league
from muxrl.orchestrator.league.report import print_ratings, write_league_report
from muxrl.orchestrator.league.rounds import make_round
from muxrl.orchestrator.league.schema import LeagueConfig
from muxrl.orchestrator.storage.json_files import write_text
from muxrl.orchestrator.storage.process import Process
from muxrl.orchestrator.supervise.signals import are_signals_claimed, claim_signals, interruptible
from muxrl.orchestrator.sweeps.plan import SweepPlan, make_plan
from muxrl.orchestrator.sweeps.result import print_result
from muxrl.orchestrator.sweeps.runner import resume_sweep, start_sweep, sweep_ray
from muxrl.orchestrator.sweeps.schema import SweepConfig


@dataclass(frozen=True)
class LeagueResult:
    """How a league has ended: `num_rounds` of `config.rounds` rounds are complete."""

    league_dir: Path
    config: LeagueConfig
    num_rounds: int
    exit_code: int


def check_league(config: LeagueConfig, *, is_check: bool = False) -> tuple[League, SweepPlan]:
    """Returns a league and the plan of its first round.

    Args:
        config: the league.
        is_check: see `make_plan`.

    Raises:
        ConfigError: with a sentence for each thing that is wrong.
    """
    league = make_league(config)
    first = make_round(league, None, 1)
    return league, make_plan(first, is_check=is_check)


def start_league(
    config: LeagueConfig, league_dir: Path | None = None, *, console: Console | None = None
) -> LeagueResult:
    """Runs a league.

    Args:
        config: the league.
        league_dir: the league's directory, which must not exist yet; None makes one under
            `leagues_dir`.
        console: shows progress; None: nothing is shown.

    Raises:
        ConfigError: with all problems of the league; nothing was started.
        RunFailed: Ray did not start.
        OSError: the directory exists already, or cannot be made.
    """
    league, plan = check_league(config)
    path = league_dir and league_dir.resolve()
    folder = LeagueDirectory.make(path, Path(config.leagues_dir).resolve(), config.name)
    write_text(folder.config_file, to_yaml(config))
    with folder.locked():
        return _run(league, folder, plan, console)


def resume_league(
    league_dir: Path, overrides: Overrides = (), *, console: Console | None = None
) -> LeagueResult:
    """Continues a league from the trial or games at which it ended.

    Args:
        league_dir: the league's directory.
        overrides: more rounds, and keys that do not change the earlier rounds.
        console: shows progress; None: nothing is shown.

    Raises:
        NotALeagueDirectory: the folder is not a league's.
        SweepIsRunning: another process runs the league.
        ConfigError, RunFailed: as for `start_league`.
    """
    folder = LeagueDirectory.open(league_dir)
    with folder.locked():
        config = load_resumed_league(folder.config_file, overrides)
        league, plan = check_league(config)
        write_text(folder.config_file, to_yaml(config))
        return _run(league, folder, plan, console)


def _run(
    league: League, folder: LeagueDirectory, plan: SweepPlan, console: Console | None
) -> LeagueResult:
    say: Any = (console or Console(quiet=True)).print
    say(f"league directory: {folder.path}", soft_wrap=True, highlight=False)
    num_rounds, num_reported, code = 0, 0, int(ExitCode.DONE)
    is_left = not folder.is_trained(league.config.rounds)
    with interruptible(), sweep_ray(plan) if is_left else contextlib.nullcontext():
        claim_signals()  # Ray has taken them
        folder.write_owner(Process.here(ends_on_sigterm=are_signals_claimed()))
        for number in range(1, league.config.rounds + 1):
            if not folder.is_trained(number):
                say(f"round {number} of {league.config.rounds}", highlight=False)
                code = _train(league, folder, number, console)
                if code != ExitCode.DONE:
                    break
            if folder.games(number) is None:
                play_games(league, folder, number)
                write_league_report(league, folder, number)
                num_reported = number
                if console is not None:
                    print_ratings(league, folder, number, console)
            num_rounds = number
    if num_rounds > num_reported:  # the process was killed before it wrote the report
        write_league_report(league, folder, num_rounds)
    return LeagueResult(folder.path, league.config, num_rounds, code)


def _train(league: League, folder: LeagueDirectory, number: int, console: Console | None) -> int:
    path = folder.round(number)
    if folder.sweep(number) is None:
        shutil.rmtree(path, ignore_errors=True)  # left by a process that was killed
        result = start_sweep(make_round(league, folder, number), path, console=console)
    else:
        how = {"max_concurrent": league.config.max_concurrent, "address": league.config.address}
        of_round = secrets(asdict(make_round(league, folder, number)), SweepConfig)
        given = {dotted(key_path): token for key_path, token in of_round.items()}
        result = resume_sweep(path, how | given, console=console)
    if result.exit_code != ExitCode.DONE and console is not None:
        print_result(result, console)
    return result.exit_code
