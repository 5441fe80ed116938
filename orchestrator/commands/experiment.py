"""``muxrl launch``, ``check`` and ``serve``: an experiment from its config."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from muxrl.orchestrator import exit_codes
from muxrl.orchestrator.commands.quiet import quiet
from muxrl.orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from muxrl.orchestrator.config import Experiment, ExperimentConfig


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the three commands and their arguments."""
    experiment = argparse.ArgumentParser(add_help=False)
    experiment.add_argument(
        "config", metavar="CONFIG", help="a YAML file, or the name of a packaged config (tag)"
    )
    experiment.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="replaces a value of the config, such as seed=3 or servers.qmix.settings.lr=0.001",
    )
    launch = commands.add_parser(
        "launch",
        parents=[experiment],
        help="start the servers and simulations of an experiment",
        description="Starts the servers and simulations of an experiment and watches over them.",
    )
    launch.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="where results go; default: a new one"
    )
    launch.add_argument("--address", help='Ray cluster to join, such as "auto"')
    launch.add_argument("--no-progress", action="store_true", help="show no live display")
    launch.set_defaults(execute=_launch)
    check = commands.add_parser(
        "check",
        parents=[experiment],
        help="say what is wrong with a config, or show what would run",
        description="Says what is wrong with a config, or shows what would run; starts nothing.",
    )
    check.set_defaults(execute=_check)
    serve = commands.add_parser(
        "serve",
        parents=[experiment],
        help="run one server of an experiment in the foreground",
        description="Runs one server of an experiment in the foreground, until Ctrl-C.",
    )
    serve.add_argument("--server", required=True, metavar="NAME", help="id of the server")
    serve.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="where its checkpoint goes when it ends; default: none is written",
    )
    serve.set_defaults(execute=_serve)


def _launch(args: argparse.Namespace) -> int:
    experiment = _prepare(_load(args), needs_stop=True)
    from rich.console import Console

    from muxrl.orchestrator.runs.whole_run import run_experiment

    result = run_experiment(
        experiment, args.run_dir, show_progress=not args.no_progress, console=Console()
    )
    if result.problem:
        sys.stderr.write(f"muxrl: {result.problem}\n")
    return result.exit_code


def _serve(args: argparse.Namespace) -> int:
    from muxrl.orchestrator.config.problems import listed
    from muxrl.orchestrator.runs.ray_session import ONE_THREAD, ray_session
    from muxrl.protocol.suggestions import did_you_mean

    os.environ.update(ONE_THREAD)  # before numpy is imported

    config = _load(args)
    if args.server not in config.servers:
        hint = did_you_mean(args.server, config.servers)
        raise ConfigError(
            [
                f"there is no server {args.server!r}"
                f"{hint or f'; the servers are {listed(config.servers)}'}"
            ]
        )
    experiment = _prepare(config, needs_stop=False)
    from muxrl.servers.server import serve_forever

    # RLlib hands weights over through Ray; a server that does not learn needs none.
    is_fixed = args.server in experiment.fixed_servers
    with contextlib.nullcontext() if is_fixed else ray_session(num_cpus=1):
        return serve_forever(experiment.servers[args.server], args.run_dir)


def _check(args: argparse.Namespace) -> int:
    from muxrl.orchestrator.commands.seat_table import print_seats
    from muxrl.orchestrator.config import to_yaml

    experiment = _prepare(_load(args), needs_stop=True, may_run_checkpoints=False)
    sys.stdout.write(to_yaml(experiment.config))
    print_seats(experiment)
    return exit_codes.DONE


def _load(args: argparse.Namespace) -> ExperimentConfig:
    from muxrl.orchestrator.config import load_config

    config = load_config(args.config, args.overrides)
    if getattr(args, "address", None):
        config.address = args.address
    return config


def _prepare(
    config: ExperimentConfig, *, needs_stop: bool, may_run_checkpoints: bool = True
) -> Experiment:
    from muxrl.orchestrator.config import prepare

    with quiet():
        return prepare(config, needs_stop=needs_stop, may_run_checkpoints=may_run_checkpoints)
