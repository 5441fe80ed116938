"""Shadow learners: servers that learn from the steps of another server's agents, and do not act.

Two learners then learn from the same stream of one simulation. When a run is resumed, a shadow may
be promoted (``servers.OTHER.replace_by=NAME``): it acts for those agents, and the other server is
not started any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from muxrl.client.inference_modes import InferenceModes
from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.protocol.spaces import choices
from muxrl.protocol.suggestions import listed, similar_or_known
from muxrl.servers.config import ServerPlan
from muxrl.servers.lookup import find, own_algorithms


def acting(config: ExperimentConfig) -> dict[str, str]:
    """Returns for each server that acts the server whose config names its agents.

    This is the server itself unless it is a promoted shadow.
    """
    servers, found = config.servers, {}
    for first in servers:
        server_id = first
        for _ in servers:  # a promoted shadow may be replaced, too
            server_id = servers[server_id].replace_by or server_id
            server_id = server_id if server_id in servers else first
        if not servers[first].shadow:
            found[server_id] = first
    return found


def acting_instead(config: ExperimentConfig, server_id: str) -> str:
    """Returns the shadow that acts in place of a server now; "" if none has replaced it."""
    server = config.servers.get(server_id)
    if server is None or not server.replace_by:
        return ""
    by_first = {first: acts for acts, first in acting(config).items()}
    return by_first.get(server.shadow or server_id, "")


def shadows(config: ExperimentConfig) -> dict[str, str]:
    """Returns for each shadow the server that acts for its agents now."""
    by_first = {first: server_id for server_id, first in acting(config).items()}
    return {
        s: by_first[server.shadow]
        for s, server in config.servers.items()
        if server.shadow in by_first and s not in by_first.values() and not server.replace_by
    }


def find_problems(config: ExperimentConfig) -> Iterator[str]:
    """Yields a sentence for each mistake about shadows that the config alone shows."""
    servers = config.servers
    first_of = {s for s, server in servers.items() if not server.shadow}
    for server_id, server in servers.items():
        at = f"servers.{server_id}"
        if server.shadow:
            if server.shadow not in first_of:
                hint = similar_or_known(server.shadow, sorted(first_of), "those that act are")
                yield f"{at}.shadow: there is no server {server.shadow!r} that acts{hint}"
            if server.agents:
                yield (
                    f"{at}.agents: are given, but a shadow learns from the agents of "
                    f"{server.shadow!r}; leave them out"
                )
            if server.on_server_loss == "random":
                yield f"{at}.on_server_loss: is 'random', but a shadow does not act; leave it out"
        if server.replace_by:
            names = list(servers)
            own = [s for s in names if servers[s].shadow == (server.shadow or server_id)]
            if server.shadow:  # only by a later one, so that no two replace each other
                own = own[own.index(server_id) + 1 :]
            if server.replace_by not in own:
                yield (
                    f"{at}.replace_by: {server.replace_by!r} is not a shadow of {server_id!r}; its "
                    f"shadows are {listed(own) or 'none'}"
                )


def find_learning_problems(
    config: ExperimentConfig, plans: Mapping[str, ServerPlan]
) -> Iterator[str]:
    """Yields a sentence for each shadow that cannot learn from actions that others chose.

    Args:
        config: the experiment.
        plans: of its servers; None for a server whose plan could not be made.
    """
    for server_id, other_id in shadows(config).items():
        shadow, other = plans.get(server_id), plans.get(other_id)
        if shadow is None or other is None:  # its mistakes have been reported
            continue
        learner = find(shadow.algorithm)
        able = [one.name for one in own_algorithms() if one.learns_from == "replay"]
        problem = f"; those with a replay can: {listed(able)}"
        if learner.learns_from == "recent":
            problem = _find_log_prob_problem(config, other)
        if problem and learner.learns_from != "replay":
            yield (
                f"server {server_id!r}: is a shadow, and {learner.name} cannot learn from actions "
                f"that others chose{problem}"
            )


def _find_log_prob_problem(config: ExperimentConfig, other: ServerPlan) -> str:
    """Returns why V-trace's probabilities of a server's actions are not known; "" if they are."""
    actor, missing = find(other.algorithm), " without their probabilities, which "
    if not actor.gives_log_probs:
        able = [one.name for one in own_algorithms() if one.gives_log_probs]
        return f"{missing}{actor.name} does not give; those that do: {listed(able)}"
    if not all(choices(agent.action_space) for agent in other.agents.values()):
        return f"{missing}are given of discrete actions only"
    if InferenceModes(config.simulation.inference_mode, 0.0).is_local(other.server_id):
        return f"{missing}are not given with simulation.inference_mode: local"
    return ""
