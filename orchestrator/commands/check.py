"""``muxrl check``: say what is wrong with a config, or show what would run.

Lists the problems of a config, or shows what would run. To find problems it plays one episode twice
with random actions, and asks EXTERNAL servers whether they accept their settings, which starts
their programs. It starts nothing else.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.experiment import prepared
from muxrl.orchestrator.commands.terminal import quiet, table_console
from muxrl.orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from muxrl.orchestrator.config import Experiment, ExperimentConfig
    from muxrl.orchestrator.league.schema import LeagueConfig
    from muxrl.orchestrator.sweeps.schema import SweepConfig
    from muxrl.servers.config import ServerPlan


@command(only_prints=True, says="in a terminal")
def check(
    config: str, overrides: Sequence[str] = (), *, yaml: bool = False, report: bool = False
) -> None:
    """Prints what is wrong, or what would run.

    Args:
        config (CONFIG): a YAML file, or the name of a packaged config, such as tag.
        overrides (key=value): replaces a value of the config, such as seed=3 or
            servers.qmix.settings.lr=0.001.
        yaml: print the whole config with all defaults instead.
        report: also print what a bug report needs: software versions and the whole config.
    """
    from muxrl.orchestrator.config import to_yaml
    from muxrl.orchestrator.storage.versions import software_versions

    loaded, checked = _loaded(config, overrides)
    if report:
        experiment = getattr(loaded, "experiment", loaded)  # that of a sweep or league
        versions = software_versions(experiment.simulation.env)
        sys.stdout.write(f"{json.dumps(versions, indent=2)}\n{to_yaml(loaded)}")
        sys.stdout.flush()  # problems go to the other stream
    whole, show = checked(loaded, [config, *overrides])
    if yaml:
        sys.stdout.write(to_yaml(whole))
    else:
        show()


_Checked = tuple["ExperimentConfig | SweepConfig | LeagueConfig", Callable[[], None]]
"""A whole config without problems, and a function that prints what would run."""


def _loaded(
    config: str, overrides: Sequence[str]
) -> tuple[Any, Callable[[Any, list[str]], _Checked]]:
    """Returns an experiment, a sweep or a league, and the function that checks it.

    The function is called with it and the command's config and overrides.
    """
    from muxrl.orchestrator.config import load_config
    from muxrl.orchestrator.config.load import is_league, is_sweep

    if not is_sweep(config) and not is_league(config):
        return load_config(config, overrides), _checked_experiment
    with quiet():
        from muxrl.orchestrator.league.load import load_league
        from muxrl.orchestrator.sweeps.load import load_sweep
    if is_sweep(config):
        return load_sweep(config, overrides), _checked_sweep
    return load_league(config, overrides), _checked_league


def _checked_experiment(loaded: ExperimentConfig, given: list[str]) -> _Checked:
    from muxrl.orchestrator.config.memory import describe_replays
    from muxrl.orchestrator.supervise.gpus import check_gpus
    from muxrl.orchestrator.supervise.own_server import ask_own_servers

    experiment = prepared(loaded, needs_stop=True, is_check=True)
    check_gpus(experiment.config)
    problems, deferred = ask_own_servers([experiment.servers])
    if problems:
        raise ConfigError(list(problems))

    def show() -> None:
        sys.stdout.write(f"{given[0]}: can be launched{_budget_text(experiment.config)}\n")
        _print_seats(experiment)
        for sentence in describe_replays(experiment):
            sys.stdout.write(f"{sentence}\n")
        for sentence in (*experiment.warnings, *deferred):
            sys.stdout.write(f"warning: {sentence}\n")

    return experiment.config, show


def _budget_text(config: ExperimentConfig) -> str:
    """Returns what ends the run, as "; it stops at ..."; "" if nothing does."""
    limits = {name: limit for name, limit in vars(config.stop).items() if limit}
    sentences = [f"{n}: {x:,}" if isinstance(x, int) else f"{n}: {x}" for n, x in limits.items()]
    return f"; it stops at {', '.join(sentences)}" if sentences else ""


def _checked_sweep(loaded: SweepConfig, given: list[str]) -> _Checked:
    with quiet():
        from muxrl.orchestrator.sweeps.dry_run import print_plan
        from muxrl.orchestrator.sweeps.plan import make_plan

        plan = make_plan(loaded, is_check=True)

    def show() -> None:
        print_plan(plan, table_console())
        sys.stdout.write(
            "this is a sweep; this command runs it, and with --dry-run shows how long it would "
            f"take: muxrl sweep {shlex.join(given)}\n"
        )

    return plan.config, show


def _checked_league(loaded: LeagueConfig, given: list[str]) -> _Checked:
    with quiet():
        from muxrl.orchestrator.league.runner import check_league
        from muxrl.orchestrator.sweeps.dry_run import print_plan

        league, first = check_league(loaded, is_check=True)

    def show() -> None:
        print_plan(first, table_console())
        sys.stdout.write(
            f"this is the first of {league.config.rounds} rounds of a league; run it with: "
            f"muxrl league {shlex.join(given)}\n"
        )

    return league.config, show


def _print_seats(experiment: Experiment) -> None:
    """Prints a row for each set of agents that are alike and each server, and the assignment."""
    from rich.markup import escape
    from rich.measure import Measurement

    from muxrl.orchestrator.reports.plain_table import plain_table
    from muxrl.protocol.patterns import abridged

    console = table_console()
    table = plain_table(f"{experiment.config.name}: who serves whom")
    alike: dict[tuple[str, ...], list[str]] = {}
    server_of = {agent: plan for plan in experiment.acting.values() for agent in plan.agents}
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
    # Observation spaces wrap between words, so that names need not wrap in 80 columns.
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
        algorithm = plan.shown_algorithm + (f", shadow of {plan.shadow}" if plan.shadow else "")
        servers.add_row(plan.server_id, algorithm, while_learning, address, str(plan.seed))
    if Measurement.get(console, console.options, table).minimum > console.width:
        for column in table.columns:  # wrapped names are better than cut ones
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
    """Yields sentences for whoever starts the external simulation."""
    from muxrl.client.episode_metrics import RESERVED_METRICS
    from muxrl.orchestrator.config.checks import awaited_metrics, compares_untrained

    gateway = experiment.config.simulation.gateway
    yield (
        f"simulations connect to the gateway at {gateway.host}:{gateway.port or '(any free port)'}"
    )
    evaluation = experiment.config.evaluation
    num_learning = len(experiment.servers) - len(experiment.fixed_servers)
    sentences = []
    if evaluation.interval_env_steps:
        num = evaluation.num_episodes * (1 + num_learning)
        sentences.append(f"{num:,} every {evaluation.interval_env_steps:,} env steps")
    if evaluation.final_num_episodes:
        others = 2 if compares_untrained(experiment.config) else 1
        num = evaluation.final_num_episodes * (1 + others * num_learning)
        sentences.append(f"{num:,} at the end")
    if sentences:
        yield f"they also play the episodes of evaluations: {', '.join(sentences)}"
    for key, metric in awaited_metrics(experiment.config):
        if metric not in RESERVED_METRICS:
            yield f"they have to send the metric {metric!r} when an episode ends; {key} needs it"


def _describe_reading(plan: ServerPlan) -> Iterator[str]:
    """Yields sentences on what a server does to observations and rewards before it learns."""
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
