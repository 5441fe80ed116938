"""``muxrl algorithms``: list the algorithms that a server can have.

Lists muxrl's algorithms, and those that installed packages have registered.
"""

from __future__ import annotations

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.terminal import table_console


@command(only_prints=True)
def algorithms() -> None:
    """Prints the list."""
    from rich.markup import escape

    from muxrl.orchestrator.reports.plain_table import plain_table
    from muxrl.servers.fixed_policies import FIXED
    from muxrl.servers.lookup import find, own_algorithms
    from muxrl.servers.setting_values import AlgorithmProblem
    from muxrl.servers.trainers.lookup import registered

    table = plain_table("algorithms: servers.NAME.algorithm, or your own as package.module:Class")
    table.add_column("name", no_wrap=True)
    for title in ("learns from", "for", "actions", "memory", "what it is"):
        table.add_column(title)
    own = {entry.name for entry in own_algorithms()}
    for name in sorted(registered(), key=lambda name: name not in own):
        path = "" if name in own else registered()[name]
        try:
            entry = find(name)
        except AlgorithmProblem as error:
            table.add_row(name, *[""] * 4, escape(str(error)))
            continue
        who = "teams" if entry.seating.forms_teams else "agents"
        who = "agents, groups" if entry.seating.is_joint and who == "agents" else who
        what = f"{entry.summary} ({path})" if path else entry.summary
        kinds = entry.takes_actions(), entry.memory()
        table.add_row(name, entry.learns_from, who, *kinds, escape(what))
    for fixed in FIXED:
        table.add_row(fixed.name, "-", "agents", "any", "", escape(fixed.summary))
    table_console().print(table)
