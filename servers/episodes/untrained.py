"""Finds the seats that act in an evaluation with the weights that their server began with."""

from __future__ import annotations

from collections.abc import Mapping

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import StartEpisode
from muxrl.servers.agents.seats import Seat
from muxrl.servers.config import ServerPlan


def untrained_seats(
    item: StartEpisode, plan: ServerPlan, seats: Mapping[str, Seat]
) -> frozenset[str]:
    """Returns the ids of the seats whose agents shall act with the server's first weights.

    Args:
        item: the message that opens an episode, with the names of these agents.
        plan: the server.
        seats: the server's seats, by seat id.

    Raises:
        ValueMismatch: the server has not kept these weights, the episode is for training, an agent
            is unknown, or only a part of a team would act with them.
    """
    server = f"server {plan.server_id!r}"
    if not plan.keeps_untrained:
        raise ValueMismatch(
            f"{server} has not kept the weights that it began with, so that no agent can act "
            "untrained; a run's servers keep them for evaluation.should_compare_untrained",
            expected="no untrained agents",
            got=f"untrained: {item.untrained}",
        )
    if item.mode != "eval":
        raise ValueMismatch(
            f"{server} would learn from agents that act untrained in an episode of this mode",
            expected="mode 'eval' with untrained agents",
            got=f"mode {item.mode!r}",
        )
    wanted = set(item.untrained)
    for agent_id in item.untrained:
        if agent_id not in plan.agents:
            raise ValueMismatch(
                f"agent {agent_id!r} is to act untrained, but {server} does not serve it",
                agent_id=agent_id,
                expected=f"some of {list(plan.agents)}",
                got=repr(agent_id),
            )
    found = set()
    for seat in seats.values():
        # A seat whose id is no agent is a team's. MAPPO's seats are agents, whose members say who
        # ends.
        acting = (seat.seat_id,) if seat.seat_id in plan.agents else seat.members
        if wanted.issuperset(acting):
            found.add(seat.seat_id)
        elif part := wanted.intersection(acting):
            raise ValueMismatch(
                f"the members of group {seat.seat_id!r} act together, so either all or none of "
                "them can act untrained",
                expected=f"{list(acting)}, or none of them",
                got=f"untrained: {sorted(part)}",
            )
    return frozenset(found)
