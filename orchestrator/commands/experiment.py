"""``muxrl launch``, ``check`` and ``serve``: an experiment from its config."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.commands.terminal import quiet, table_console
from muxrl.orchestrator.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from muxrl.orchestrator.config import Experiment, ExperimentConfig
    from muxrl.orchestrator.records.run_directory import RunDirectory
    from muxrl.servers.config import ServerPlan


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the three commands and their arguments."""
    config_help = "a YAML file, or the name of a packaged config (tag)"
    overrides_help = (
        "replaces a value of the config, such as seed=3 or servers.qmix.settings.lr=0.001"
    )
    experiment = argparse.ArgumentParser(add_help=False)
    experiment.add_argument("config", metavar="CONFIG", help=config_help)
    experiment.add_argument("overrides", nargs="*", metavar="key=value", help=overrides_help)
    launch = commands.add_parser(
        "launch",
        help="start the servers and simulations of an experiment",
        description="Starts the servers and simulations of an experiment and watches over them.",
        usage="muxrl launch CONFIG [key=value ...] [options]\n"
        "       muxrl launch --resume RUN_DIR [key=value ...] [options]",
    )
    launch.add_argument("config", nargs="?", metavar="CONFIG", help=config_help)
    launch.add_argument("overrides", nargs="*", metavar="key=value", help=overrides_help)
    launch.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="where results go; default: a new one"
    )
    launch.add_argument(
        "--resume",
        metavar="RUN_DIR",
        help="go on with a run that has ended, from its newest checkpoint; the URI of a copy "
        "(storage_path) is fetched first, to --run-dir",
    )
    launch.add_argument("--address", help='Ray cluster to join, such as "auto"')
    launch.add_argument("--no-progress", action="store_true", help="show no live display")
    launch.set_defaults(execute=_launch)
    check = commands.add_parser(
        "check",
        parents=[experiment],
        help="say what is wrong with a config, or show what would run",
        description="Says what is wrong with a config, or shows what would run; "
        "plays an episode with random actions twice, and starts nothing else.",
    )
    check.add_argument("--yaml", action="store_true", help="show the whole config instead")
    check.add_argument(
        "--report", action="store_true", help="show what a bug report needs: versions, all of this"
    )
    check.set_defaults(execute=_check)
    serve = commands.add_parser(
        "serve",
        parents=[experiment],
        help="run one server of an experiment in the foreground",
        description="Runs one server of an experiment in the foreground, until Ctrl-C. All of "
        "them, with one address for simulations and a run directory, are 'muxrl launch' of a "
        "config with 'env: external'.",
    )
    serve.add_argument("--server", metavar="NAME", help="id of the server")
    serve.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="where its checkpoint goes, every checkpoint.interval_s and when it ends; default: "
        "none is written",
    )
    serve.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint in the run's DIR"
    )
    serve.set_defaults(execute=_serve)


def _launch(args: argparse.Namespace) -> int:
    folder = None
    if args.resume is not None:
        folder, config = _load_resumed(args)
    elif args.config is None:
        raise ConfigError(["needs a CONFIG, or --resume RUN_DIR"])
    else:
        config = _load(args)
    config.address = args.address or config.address
    from muxrl.orchestrator.config.checks import check
    from muxrl.orchestrator.supervise.ray_session import begin_early

    check(config)
    begin_early(config.address)
    return run_prepared(_prepare(config, needs_stop=True), args, folder)


def run_prepared(
    experiment: Experiment, args: argparse.Namespace, resumed: RunDirectory | None = None
) -> int:
    """Runs an experiment or goes on with a run, says what went wrong, returns the exit code."""
    from rich.console import Console

    from muxrl.orchestrator.launch.whole_run import resume_experiment, run_experiment

    how: dict[str, Any] = {"show_progress": not args.no_progress, "console": Console()}
    if resumed is None:
        result = run_experiment(experiment, args.run_dir, **how)
    else:
        result = resume_experiment(experiment, resumed, **how)
    if result.problem:
        sys.stderr.write(f"muxrl: {result.problem}\n")
    return result.exit_code


def _serve(args: argparse.Namespace) -> int:
    from muxrl.protocol.suggestions import similar_or_known

    config = _load(args)
    if args.server is None:
        raise ConfigError(
            [
                "serve runs one server, so name it: --server "
                f"{' or '.join(config.servers)}. All servers of a config are started by 'muxrl "
                "launch', with 'env: external' for a simulation that somebody else starts; without "
                "'stop' until Ctrl-C"
            ]
        )
    if args.server not in config.servers:
        hint = similar_or_known(args.server, config.servers, "the servers are")
        raise ConfigError([f"there is no server {args.server!r}{hint}"])
    experiment = _prepare(config, needs_stop=False)
    from muxrl.servers.server import serve_forever

    plan = experiment.servers[args.server]
    interval_s = config.checkpoint.interval_s
    return serve_forever(plan, args.run_dir, resume=args.resume, interval_s=interval_s)


def _check(args: argparse.Namespace) -> int:
    from muxrl.orchestrator.config import to_yaml
    from muxrl.orchestrator.config.load import is_league, is_sweep
    from muxrl.orchestrator.storage.versions import software_versions

    if is_sweep(args.config):
        return _check_sweep(args)
    if is_league(args.config):
        return _check_league(args)
    config = _load(args)
    if args.report:
        versions = software_versions(config.simulation.env)
        sys.stdout.write(f"{json.dumps(versions, indent=2)}\n{to_yaml(config)}")
        sys.stdout.flush()  # what is wrong goes to the other stream
    experiment = _prepare(config, needs_stop=True, is_check=True)
    from muxrl.orchestrator.config.memory import describe_replays
    from muxrl.orchestrator.supervise.own_server import ask_own_servers
    from muxrl.orchestrator.supervise.placement import check_gpus

    check_gpus(experiment.config)
    problems, unasked = ask_own_servers([experiment.servers])
    if problems:
        raise ConfigError(list(problems))
    if args.yaml:
        sys.stdout.write(to_yaml(experiment.config))
        return ExitCode.DONE
    sys.stdout.write(f"{args.config}: can be launched{_budget_text(experiment.config)}\n")
    _print_seats(experiment)

    for sentence in describe_replays(experiment):
        sys.stdout.write(f"{sentence}\n")
    for sentence in (*experiment.warnings, *unasked):
        sys.stdout.write(f"warning: {sentence}\n")
    return ExitCode.DONE


def _budget_text(config: ExperimentConfig) -> str:
    """Returns what ends the run, as ", until it has ..."; "" if nothing does."""
    limits = {name: limit for name, limit in vars(config.stop).items() if limit}
    told = [f"{n}: {x:,}" if isinstance(x, int) else f"{n}: {x}" for n, x in limits.items()]
    return f"; it stops at {', '.join(told)}" if told else ""


def _check_sweep(args: argparse.Namespace) -> int:
    with quiet():
        from muxrl.orchestrator.sweeps.dry_run import print_plan
        from muxrl.orchestrator.sweeps.load import load_sweep
        from muxrl.orchestrator.sweeps.plan import make_plan

        plan = make_plan(load_sweep(args.config, args.overrides), is_check=True)
    print_plan(plan, table_console())
    sys.stdout.write(
        f"this is a sweep; see how long it would take with 'muxrl sweep {args.config} --dry-run', "
        f"and run it with 'muxrl sweep {args.config}'\n"
    )
    return ExitCode.DONE


def _check_league(args: argparse.Namespace) -> int:
    with quiet():
        from muxrl.orchestrator.league.load import load_league
        from muxrl.orchestrator.league.runner import check_league
        from muxrl.orchestrator.sweeps.dry_run import print_plan

        league, first = check_league(load_league(args.config, args.overrides), is_check=True)
    print_plan(first, table_console())
    sys.stdout.write(
        f"this is the first of {league.config.rounds} rounds of a league; run it with 'muxrl "
        f"league {args.config}'\n"
    )
    return ExitCode.DONE


def _load_resumed(args: argparse.Namespace) -> tuple[RunDirectory, ExperimentConfig]:
    from muxrl.orchestrator.launch.resuming import load_resumed_config, open_resumed

    overrides = [*([args.config] if args.config else []), *args.overrides]
    args.config = args.resume  # that is what a message is about
    if args.run_dir is not None and "://" not in args.resume:
        raise ConfigError(["--run-dir is for a new run; --resume names the run's directory"])
    folder = open_resumed(args.resume, args.run_dir)
    return folder, load_resumed_config(folder, overrides)


def _load(args: argparse.Namespace) -> ExperimentConfig:
    from muxrl.orchestrator.config import load_config

    return load_config(args.config, args.overrides)


def _prepare(config: ExperimentConfig, *, needs_stop: bool, is_check: bool = False) -> Experiment:
    from muxrl.orchestrator.config import prepare

    with quiet():
        return prepare(config, needs_stop=needs_stop, plays_episode=is_check)


def _print_seats(experiment: Experiment) -> None:
    """Prints a row for all agents that are alike, one for every server, and the assignment."""
    from rich.markup import escape
    from rich.measure import Measurement

    from muxrl.orchestrator.reports.plain_table import plain_table
    from muxrl.protocol.patterns import abridged

    console = table_console()
    table = plain_table(f"{experiment.config.name}: who serves whom")
    alike: dict[tuple[str, ...], list[str]] = {}
    server_of = {agent: plan for plan in experiment.servers.values() for agent in plan.agents}
    for agent in experiment.facts.agents:
        plan = server_of[agent]
        seat = plan.agents[agent]
        cells = (
            f"{plan.server_id} ({plan.shown_algorithm})",
            "one each" if seat.policy_id == agent else seat.policy_id,
            seat.group or "-",
            str(seat.observation_space),
            str(seat.action_space),
        )
        alike.setdefault(cells, []).append(agent)
    # Observation spaces wrap between words, so that in 80 columns no name has to.
    for title in ("agents", "server", "policy", "group", "observes", "acts"):
        table.add_column(title, no_wrap=title != "observes", overflow="fold")
    for alike_cells, agents in alike.items():
        table.add_row(*map(escape, ("\n".join(abridged(agents)), *alike_cells)))
    servers = plain_table("servers")
    for title in ("server", "algorithm", "while learning", "listens on", "seed"):
        servers.add_column(title, overflow="fold")
    for plan in experiment.servers.values():
        address = f"{plan.host}:{plan.port or '(any free port)'}"
        is_fixed = plan.server_id in experiment.fixed_servers
        while_learning = "does not learn" if is_fixed else plan.while_learning
        servers.add_row(
            plan.server_id, plan.shown_algorithm, while_learning, address, str(plan.seed)
        )
    if Measurement.get(console, console.options, table).minimum > console.width:
        for column in table.columns:  # long names: better broken than cut off
            column.no_wrap = False
    for shown in (table, servers):
        console.print()
        console.print(shown, markup=False)
    if experiment.is_external:
        for sentence in _describe_gateway(experiment):
            console.print(sentence, markup=False, highlight=False)
    for plan in experiment.servers.values():
        for sentence in _describe_reading(plan):
            console.print(f"server {plan.server_id!r} {sentence}", markup=False, highlight=False)
    console.print(f"assignment: {experiment.assignment}", markup=False, highlight=False)


def _describe_gateway(experiment: Experiment) -> Iterator[str]:
    """Yields what a simulation that somebody else starts has to know."""
    from muxrl.orchestrator.config.resolve import compares_untrained

    gateway = experiment.config.simulation.gateway
    yield f"simulations connect to one gateway, {gateway.host}:{gateway.port or '(any free port)'}"
    evaluation = experiment.config.evaluation
    num_learning = len(experiment.servers) - len(experiment.fixed_servers)
    told = []
    if evaluation.interval_env_steps:
        num = evaluation.num_episodes * (1 + num_learning)
        told.append(f"{num:,} every {evaluation.interval_env_steps:,} env steps")
    if evaluation.final_num_episodes:
        others = 2 if compares_untrained(experiment.config) else 1
        num = evaluation.final_num_episodes * (1 + others * num_learning)
        told.append(f"{num:,} at the end")
    if told:
        yield f"evaluations take episodes of theirs: {', '.join(told)}"


def _describe_reading(plan: ServerPlan) -> Iterator[str]:
    """Yields what a server does to observations and rewards before it learns from them."""
    from muxrl.servers.agents.scaling import find_scale

    spaces = {str(a.observation_space): a.observation_space for a in plan.agents.values()}
    scaled = [text for text, s in spaces.items() if find_scale(s, plan.scale_observations)]
    if scaled:
        yield (
            f"scales {', '.join(scaled)} to 0..1 by the bounds of the space "
            f"(scale_observations: {plan.scale_observations})"
        )
    if plan.normalize_observations:
        yield "normalises observations by their running mean and deviation (normalize_observations)"
    if plan.frame_stack > 1:
        yield f"reads each agent's last {plan.frame_stack} observations at once (frame_stack)"
    if plan.normalize_rewards:
        yield "divides rewards by the running deviation of the return (normalize_rewards)"
