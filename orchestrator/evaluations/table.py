"""The table of `muxrl evaluate`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from muxrl.orchestrator.evaluations.evaluated import EvaluationResult, Returns
from muxrl.orchestrator.reports.number_text import MISSING, interval, number
from muxrl.orchestrator.reports.plain_table import plain_table


def print_evaluation(result: EvaluationResult, console: Console | None = None) -> None:
    """Prints every server, agent, team and role, and how the numbers were made."""
    console = console or Console()
    table = plain_table(f"{result.run}: {result.assignment}", _caption(result))
    table.add_column("who", overflow="fold")
    table.add_column("actions", no_wrap=True)
    for heading in ("return\n[95 %]", "std", "IQM", "team total\n[95 %]"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for title, rows in _sections(result):
        if rows:
            table.add_section()
            table.add_row(Text(title, style="dim"))
        for who, actions, returns in rows:
            table.add_row(Text(who), Text(actions), *_cells(returns))
    console.print(table)


def _sections(result: EvaluationResult) -> Iterator[tuple[str, list[tuple[str, str, Returns]]]]:
    yield (
        "servers",
        [
            (f"{server_id} {server.algorithm}", server.rule, server.returns)
            for server_id, server in result.servers.items()
        ],
    )
    shown = {server.returns.agents for server in result.servers.values()}
    for title, found in (("teams", result.groups), ("roles", result.roles)):
        # Those with the same agents as a server or a team have the same numbers.
        news = {name: returns for name, returns in found.items() if returns.agents not in shown}
        shown |= {returns.agents for returns in news.values()}
        yield title, [(name, "", returns) for name, returns in news.items()]
    yield "agents", [(name, "", returns) for name, returns in result.agents.items()]
    if len(result.servers) > 1:
        yield "everybody", [("all agents", "", result.everybody)]


def _cells(returns: Returns) -> tuple[Text, ...]:
    total = interval(returns.total) if len(returns.agents) > 1 else MISSING
    return (
        Text(interval(returns.mean)),
        Text(number(returns.deviation)),
        Text(number(returns.interquartile_mean)),
        Text(total),
    )


def _caption(result: EvaluationResult) -> str:
    first, last = result.seeds[0], result.seeds[-1]
    replaced = "".join(f" In the place of {s}: {what}." for s, what in result.replaced.items())
    return (
        f"{len(result.seeds)} episodes, seeds {first} to {last}.{replaced} "
        "Return: sum of an agent's raw rewards in an episode; of several agents, the mean over "
        "them, and beside it their sum. Intervals: 95 %, bootstrap over episodes: they speak of "
        "these policies. IQM: mean of the middle half of the episodes."
    )
