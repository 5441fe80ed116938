"""Who serves whom in an experiment, as `muxrl check` prints it."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.reports.plain_table import plain_table


def print_seats(experiment: Experiment) -> None:
    """Prints a row for every agent, one for every server, and the assignment."""
    # Into a pipe or file, lines are not wrapped at a terminal's 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = plain_table(f"{experiment.config.name}: who serves whom")
    for title in ("agent", "server", "algorithm", "policy", "group", "observes", "acts"):
        # Observation spaces wrap between words, so that in 80 columns no name has to.
        table.add_column(title, no_wrap=title != "observes", overflow="fold")
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
    servers = plain_table("servers")
    for title in ("server", "algorithm", "while learning", "listens on", "seed"):
        servers.add_column(title, overflow="fold")
    for plan in experiment.servers.values():
        address = f"{plan.host}:{plan.port or '(any free port)'}"
        is_fixed = plan.server_id in experiment.fixed_servers
        while_learning = "does not learn" if is_fixed else plan.while_learning
        servers.add_row(plan.server_id, plan.algorithm, while_learning, address, str(plan.seed))
    if Measurement.get(console, console.options, table).minimum > console.width:
        for column in table.columns:  # long names: better broken than cut off
            column.no_wrap = False
    for shown in (table, servers):
        console.print()
        console.print(shown, markup=False)
    console.print(f"assignment: {experiment.assignment}", markup=False, highlight=False)
