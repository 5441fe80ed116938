"""The command ``muxrl``: launch, check or sweep experiments, serve a server, measure runs.

Ray, torch and OmegaConf are imported where a command needs them, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.config import Experiment, ExperimentConfig

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0, or 2 for what cannot be run.

    Args:
        argv: the arguments without the program's name; None: those of this process.

    Raises:
        SystemExit: the command line itself is wrong (2), or help or the version was asked for (0).
    """
    args = _parse(argv)
    # Experiments name environments of the folder they are started in, as `python -m` allows.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    from orchestrator.config import ConfigError

    try:
        commands = {
            "launch": _launch,
            "check": _check,
            "serve": _serve,
            "evaluate": _evaluate,
            "sweep": _sweep,
            "compare": _compare,
        }
        return commands[args.command](args)
    except ConfigError as error:
        what = args.run if args.command == "evaluate" else args.config
        for problem in error.problems:
            sys.stderr.write(f"muxrl: {what}: {problem}\n")
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="muxrl",
        description="Several RL trainers, learning at the same time from one shared simulation.",
    )
    parser.add_argument("--version", action="version", version=f"muxrl {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
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
    run_dir = argparse.ArgumentParser(add_help=False)
    run_dir.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="where results go; default: a new one"
    )

    launch = commands.add_parser(
        "launch",
        parents=[experiment, run_dir],
        help="start the servers and simulations of an experiment",
        description="Starts the servers and simulations of an experiment and watches over them.",
    )
    launch.add_argument("--address", help='Ray cluster to join, such as "auto"')
    launch.add_argument("--no-progress", action="store_true", help="show no live display")
    commands.add_parser(
        "check",
        parents=[experiment],
        help="say what is wrong with a config, or show what would run",
        description="Says what is wrong with a config, or shows what would run; starts nothing.",
    )
    serve = commands.add_parser(
        "serve",
        parents=[experiment, run_dir],
        help="run one server of an experiment in the foreground",
        description="Runs one server of an experiment in the foreground, until Ctrl-C.",
    )
    serve.add_argument("--server", required=True, metavar="NAME", help="id of the server")

    evaluate = commands.add_parser(
        "evaluate",
        help="measure the policies of a finished run on episodes that train nothing",
        description="Serves the checkpoints of a run, frozen, and plays episodes with them.",
    )
    _add_evaluate_arguments(evaluate)
    sweep = commands.add_parser(
        "sweep",
        help="run a table of trials: assignments, settings and seeds, on Ray Tune",
        description="Runs every trial of a sweep as a launch of its own, on Ray Tune.",
    )
    _add_sweep_arguments(sweep)
    compare = commands.add_parser(
        "compare",
        help="compare runs of one simulation, or the runs of a sweep",
        description="Compares runs of one simulation, side by side and head to head.",
    )
    _add_compare_arguments(compare)

    args, rest = parser.parse_known_args(argv)
    # argparse takes all positionals at once; those after an option are left over.
    has_overrides = args.command not in ("evaluate", "compare")
    unknown = [x for x in rest if not has_overrides or x.startswith("-") or "=" not in x]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if has_overrides:
        args.overrides += rest
    return args


def _add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's directory")
    parser.add_argument(
        "--episodes", type=int, default=100, metavar="N", help="how many; default: 100"
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="of the first episode; default: evaluation.seed"
    )
    rule = parser.add_mutually_exclusive_group()
    rule.add_argument(
        "--explore",
        dest="should_explore",
        action="store_const",
        const=True,
        help="sample the actions of stochastic policies, as in training",
    )
    rule.add_argument(
        "--greedy",
        dest="should_explore",
        action="store_const",
        const=False,
        help="take their likeliest action; default: as the run's own evaluations",
    )
    parser.add_argument(
        "--checkpoint", default="last", metavar="NAME", help="of every server; default: last"
    )
    parser.add_argument(
        "--replace",
        action="append",
        default=[],
        type=_replacement,
        metavar="SERVER=WHAT",
        help="let WHAT play a server's agents: random, or the folder of a checkpoint",
    )


def _add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        metavar="SWEEP",
        help="a YAML file, or the name of a packaged sweep; with --resume a sweep's directory",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="replaces a value of the sweep, such as seeds=[0,1] or experiment.stop.env_steps=9000",
    )
    parser.add_argument(
        "--sweep-dir", type=Path, metavar="DIR", help="where results go; default: a new one"
    )
    parser.add_argument("--address", help='Ray cluster to join, such as "auto"')
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--dry-run", action="store_true", help="show the trials and how long they would take"
    )
    how.add_argument(
        "--resume", action="store_true", help="go on with a sweep; finished trials are kept"
    )


def _add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="RUN", help="directories of runs, or of sweeps"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where the report goes; default: comparison, in the sweep or beside the first run",
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=100,
        metavar="N",
        help="of the baselines and of each match; default: 100",
    )
    parser.add_argument(
        "--head-to-head",
        action="store_true",
        help="let the policies of every run meet those of every other, in all roles",
    )
    parser.add_argument(
        "--role",
        action="append",
        default=[],
        type=_named_list,
        metavar="NAME=AGENT,...",
        help="a role and its agents (names or patterns); default: as the sweep or servers have it",
    )
    parser.add_argument(
        "--interchangeable",
        default=[],
        type=lambda text: text.split(","),
        metavar="ROLE,ROLE",
        help="roles whose seats are rotated in the head to head",
    )
    parser.add_argument(
        "--budget",
        type=int,
        metavar="STEPS",
        help="env steps at which runs are compared; default: the most that all have",
    )
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        type=_threshold,
        metavar="WHO=RETURN",
        help="what counts as reached (role:prey=10); default: halfway from random to the best",
    )
    rule = parser.add_mutually_exclusive_group()
    rule.add_argument(
        "--explore",
        dest="should_explore",
        action="store_const",
        const=True,
        help="sample the actions of stochastic policies that meet head to head",
    )
    rule.add_argument(
        "--greedy",
        dest="should_explore",
        action="store_const",
        const=False,
        help="take their likeliest action; default: as in the runs' own evaluations",
    )


def _named_list(text: str) -> tuple[str, list[str]]:
    name, _, items = text.partition("=")
    if not name or not items:
        raise argparse.ArgumentTypeError(f"{text!r} must look like NAME=AGENT,AGENT")
    return name, items.split(",")


def _threshold(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must look like role:NAME=10") from None


def _replacement(text: str) -> tuple[str, str]:
    server_id, _, what = text.partition("=")
    if not server_id or not what:
        raise argparse.ArgumentTypeError(f"{text!r} must look like SERVER=random or SERVER=FOLDER")
    return server_id, what


def _version() -> str:
    try:
        return metadata.version("muxrl")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _launch(args: argparse.Namespace) -> int:
    experiment = _prepare(args, needs_stop=True)
    from rich.console import Console

    from orchestrator.whole_run import run_experiment

    result = run_experiment(
        experiment, args.run_dir, show_progress=not args.no_progress, console=Console()
    )
    if result.problem:
        sys.stderr.write(f"muxrl: {result.problem}\n")
    return result.exit_code


def _evaluate(args: argparse.Namespace) -> int:
    from orchestrator.local_ray import ONE_THREAD

    os.environ.update(ONE_THREAD)  # before numpy comes in
    from orchestrator.config import ConfigError

    with _quiet(but_raise=()):
        from client.env_loop import SimulationFailed
        from client.errors import ClientError
        from orchestrator.evaluate import CannotEvaluate, evaluate_run
        from orchestrator.evaluation_table import print_evaluation
        from servers.policies import ServerProblem

    failures = (ServerProblem, SimulationFailed, ClientError, OSError)
    try:
        with _quiet(but_raise=(ConfigError, CannotEvaluate, *failures)):
            result = evaluate_run(
                args.run,
                num_episodes=args.episodes,
                seed=args.seed,
                should_explore=args.should_explore,
                checkpoint=args.checkpoint,
                replace=dict(args.replace),
            )
    except CannotEvaluate as error:
        sys.stderr.write(f"muxrl: {error}\n")
        return EXIT_CONFIG
    except failures as error:
        sys.stderr.write(f"muxrl: {error}\n")
        return EXIT_FAILED
    print_evaluation(result)
    sys.stdout.write(f"written to {result.path}\n")
    return EXIT_OK


def _sweep(args: argparse.Namespace) -> int:
    from rich.console import Console

    from orchestrator.config import ConfigError

    with _quiet(but_raise=(ConfigError,)):
        from orchestrator.run import RunFailed
        from orchestrator.sweeps.command import dry_run, resume, start
        from orchestrator.sweeps.directory import NotASweepDirectory, SweepIsRunning

    overrides = list(args.overrides)
    if args.address:
        overrides.append(f"address={args.address}")
    # Into a pipe or file, lines are not wrapped at a terminal's 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        if args.resume:
            if args.sweep_dir is not None:
                raise ConfigError(["--sweep-dir: is not for --resume; SWEEP is the directory"])
            return resume(Path(args.config), overrides, console)
        if args.dry_run:
            return dry_run(args.config, overrides, console)
        return start(args.config, overrides, args.sweep_dir, console)
    except (NotASweepDirectory, FileExistsError) as error:
        sys.stderr.write(f"muxrl: {error}\n")
        return EXIT_CONFIG
    except (RunFailed, SweepIsRunning, OSError) as error:
        sys.stderr.write(f"muxrl: {error}\n")
        return EXIT_FAILED


def _compare(args: argparse.Namespace) -> int:
    from orchestrator.local_ray import ONE_THREAD

    os.environ.update(ONE_THREAD)  # before numpy comes in
    with _quiet(but_raise=()):
        from client.env_loop import SimulationFailed
        from client.errors import ClientError
        from orchestrator.comparisons.compare import compare_runs, default_folder
        from orchestrator.comparisons.sources import CannotCompare
        from orchestrator.comparisons.summary import MatchProgress, print_comparison
        from orchestrator.metrics import MalformedMetrics
        from servers.policies import ServerProblem

    failures = (ServerProblem, SimulationFailed, ClientError, MalformedMetrics, OSError)
    try:
        # Made first: it keeps the terminal that `_quiet` turns away.
        with MatchProgress() as progress, _quiet(but_raise=(CannotCompare, *failures)):
            comparison = compare_runs(
                args.paths,
                num_episodes=args.episodes,
                should_meet=args.head_to_head,
                roles=dict(args.role) or None,
                interchangeable=args.interchangeable,
                budget=args.budget,
                thresholds=dict(args.threshold),
                should_explore=args.should_explore,
                on_match=progress,
            )
            report = comparison.write(args.out or default_folder(args.paths))
    except CannotCompare as error:
        sys.stderr.write(f"muxrl: {error}\n")
        return EXIT_CONFIG
    except failures as error:
        sys.stderr.write(f"muxrl: {error}\n")
        return EXIT_FAILED
    print_comparison(comparison)
    sys.stdout.write(f"written to {report}\n")
    return EXIT_OK


def _serve(args: argparse.Namespace) -> int:
    from orchestrator.config.problems import ConfigError, did_you_mean, listed
    from orchestrator.local_ray import ONE_THREAD, local_ray

    os.environ.update(ONE_THREAD)  # before numpy comes in

    config = _load(args)
    if args.server not in config.servers:
        hint = did_you_mean(args.server, config.servers)
        raise ConfigError(
            [
                f"there is no server {args.server!r}"
                f"{hint or f'; the servers are {listed(config.servers)}'}"
            ]
        )
    experiment = _prepare(args, needs_stop=False)
    from servers.server import serve_forever

    # RLlib hands weights over through Ray; what does not learn has no use for it.
    is_fixed = args.server in experiment.fixed_servers
    with contextlib.nullcontext() if is_fixed else local_ray(num_cpus=1):
        return serve_forever(experiment.servers[args.server], args.run_dir)


def _check(args: argparse.Namespace) -> int:
    from orchestrator.config import to_yaml

    experiment = _prepare(args, needs_stop=True)
    sys.stdout.write(to_yaml(experiment.config))
    _print_seats(experiment)
    return EXIT_OK


def _load(args: argparse.Namespace) -> ExperimentConfig:
    from orchestrator.config import load_config

    config = load_config(args.config, args.overrides)
    if getattr(args, "address", None):
        config.address = args.address
    return config


def _prepare(args: argparse.Namespace, *, needs_stop: bool) -> Experiment:
    from orchestrator.config import ConfigError, prepare

    config = _load(args)
    with _quiet(but_raise=(ConfigError,)):
        return prepare(config, needs_stop=needs_stop)


@contextlib.contextmanager
def _quiet(but_raise: tuple[type[Exception], ...]) -> Iterator[None]:
    """Keeps what RLlib and environments print while they load off the terminal.

    File descriptors are turned, not `sys.stderr`: loggers made meanwhile keep the stream they
    find, and must speak again later. After an unexpected exception all of it is shown.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    saved = os.dup(1), os.dup(2)
    failed = False
    with tempfile.TemporaryFile() as noise:
        os.dup2(noise.fileno(), 1)
        os.dup2(noise.fileno(), 2)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except but_raise:
            raise
        except BaseException:
            failed = True
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in enumerate(saved, start=1):
                os.dup2(copy, number)
                os.close(copy)
            if failed:
                noise.seek(0)
                sys.stderr.write(noise.read().decode(errors="replace"))


def _print_seats(experiment: Experiment) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    # Into a pipe or file, lines are not wrapped at a terminal's 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title=f"{experiment.config.name}: who serves whom")
    for title in ("agent", "server", "algorithm", "policy", "group", "observes", "acts"):
        table.add_column(title, overflow="fold")
    server_of = {agent: plan for plan in experiment.servers.values() for agent in plan.agents}
    for agent in experiment.facts.agents:
        plan = server_of[agent]
        seat = plan.agents[agent]
        cells = (
            agent,
            plan.server_id,
            plan.algorithm,
            seat.policy_id,
            seat.group or "-",
            str(seat.observation_space),
            str(seat.action_space),
        )
        table.add_row(*map(escape, cells))
    servers = Table(title="servers")
    for title in ("server", "algorithm", "while learning", "listens on", "seed"):
        servers.add_column(title)
    for plan in experiment.servers.values():
        address = f"{plan.host}:{plan.port or '(any free port)'}"
        is_fixed = plan.server_id in experiment.fixed_servers
        while_learning = "does not learn" if is_fixed else plan.while_learning
        servers.add_row(plan.server_id, plan.algorithm, while_learning, address, str(plan.seed))
    for shown in (table, servers):
        console.print()
        console.print(shown, markup=False)
    console.print(f"assignment: {experiment.assignment}", markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
