"""Shadow learners: servers that learn from the steps of another one's agents, and act nowhere.

Two learners then learn from one stream of one simulation. At a resume a shadow may be promoted
(``servers.OTHER.replace_by=NAME``): it acts for those agents, and the other one is not started any
more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.protocol.suggestions import listed, similar_or_known
from muxrl.servers.trainers.algorithm import Algorithm


def acting(config: ExperimentConfig) -> dict[str, str]:
    """Returns for each server that acts the one whose config names its agents: itself, unless it
    is a promoted shadow."""
    servers, found = config.servers, {}
    for first in servers:
        server_id = first
        for _ in servers:  # one that was promoted may be replaced, too
            server_id = servers[server_id].replace_by or server_id
            server_id = server_id if server_id in servers else first
        if not servers[first].shadow:
            found[server_id] = first
    return found


def shadows(config: ExperimentConfig) -> dict[str, str]:
    """Returns for each server that acts nowhere the one that acts for its agents now."""
    by_first = {first: server_id for server_id, first in acting(config).items()}
    return {
        s: by_first[server.shadow]
        for s, server in config.servers.items()
        if server.shadow in by_first and s not in by_first.values() and not server.replace_by
    }


def find_problems(config: ExperimentConfig) -> Iterator[str]:
    """Yields a sentence for each thing that is wrong about shadows, before anything is made."""
    servers = config.servers
    first_of = {s for s, server in servers.items() if not server.shadow}
    for server_id, server in servers.items():
        at = f"servers.{server_id}"
        if server.shadow:
            if server.shadow not in first_of:
                hint = similar_or_known(server.shadow, sorted(first_of), "those that act are")
                yield f"{at}.shadow: {server.shadow!r} is no server that acts{hint}"
            if server.agents:
                yield (
                    f"{at}.agents: are given, and a shadow learns from the agents of "
                    f"{server.shadow!r}; leave them out"
                )
            if server.on_server_loss == "random":
                yield f"{at}.on_server_loss: is 'random', and a shadow acts nowhere"
            if config.simulation.env == "external":
                yield (
                    f"{at}.shadow: needs a simulation that muxrl starts, which tells a shadow what "
                    "others chose"
                )
        if server.replace_by:
            names = list(servers)
            own = [s for s in names if servers[s].shadow == (server.shadow or server_id)]
            if server.shadow:  # in turn: no two replace each other
                own = own[own.index(server_id) + 1 :]
            if server.replace_by not in own:
                yield (
                    f"{at}.replace_by: {server.replace_by!r} is none of its shadows "
                    f"({listed(own) or 'it has none'})"
                )


def find_problem(algorithm: Algorithm, others: Iterable[Algorithm]) -> str:
    """Returns why an algorithm cannot learn from what others chose; "" if it can."""
    if algorithm.learns_from == "replay":
        return ""
    names = listed([one.name for one in others if one.learns_from == "replay"])
    return (
        f"is a shadow, and {algorithm.name} cannot learn from actions that others chose; those "
        f"with a replay can: {names}"
    )
