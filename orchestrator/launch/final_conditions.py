"""What the evaluation at the end plays beside each server's agents at random.

There are two more questions then:

- Random agents may be worse than any that act greedily. So each server's agents act untrained, too:
  with the weights that the server began with, by the same rule, among the same others.
- Agents of one server that play against each other are replaced side by side, since together they
  return the same whatever they do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from muxrl.orchestrator.measure.sides import find_sides
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.rows import AgentReturns
from muxrl.servers.config import ServerPlan


def final_conditions(
    returns: Mapping[str | None, AgentReturns],
    learning: Mapping[str, ServerPlan],
    untrained: Collection[str],
) -> Iterator[Condition]:
    """Yields the further conditions, random ones first.

    Args:
        returns: of the same evaluation so far: by server at random; None: all as learned.
        learning: the servers that learn.
        untrained: those of them that are compared with their untrained policies.
    """
    sides_of = {
        s: find_sides([returns[s], returns[None]], list(plan.agents))
        for s, plan in learning.items()
    }
    for server_id, sides in sides_of.items():
        for side, agents in sides.items():
            yield Condition(server_id, side, agents)
    for server_id, plan in learning.items():
        if server_id not in untrained:
            continue
        sides = sides_of[server_id]
        if not sides:
            yield Condition(server_id, is_untrained=True)
        # A team's members act with the same weights, so that it has to be on one side.
        elif all(_is_on_one_side(members, sides.values()) for members in plan.groups.values()):
            for side, agents in sides.items():
                yield Condition(server_id, side, agents, is_untrained=True)


def _is_on_one_side(members: Collection[str], sides: Collection[tuple[str, ...]]) -> bool:
    return any(set(members) <= set(agents) for agents in sides)
