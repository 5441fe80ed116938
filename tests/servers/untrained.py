"""Actions of an algorithm's untrained networks, as a server asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tests.servers.scripted_store import make_plan

from muxrl.protocol.rows import each_array
from muxrl.protocol.spaces import Box
from muxrl.servers.acting import Acted, Asked
from muxrl.servers.agents.parts import Logged
from muxrl.servers.agents.seats import Seat
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.episodes.blocks import Block, Mode, Seats
from muxrl.servers.lookup import find
from muxrl.servers.trainers.acting import Actors


def asked(seat: Seat, agents: Mapping[str, AgentPlan], rows: Any, **how: Any) -> Asked:
    """Returns what a seat's policy is asked for rows ``[B, ...]`` that belong to no real episode.

    Args:
        seat: one seat.
        agents: of its server.
        rows: observations, as an array or a dict of arrays.
        how: see `Asked`; ``logged`` is the policy's action in all rows.
    """
    logged = how.pop("logged", None)
    num = len(next(iter(rows.values())) if isinstance(rows, dict) else rows)
    seats = Seats(agents, {seat.seat_id: seat}, num)
    if logged is not None:
        how["logged"] = [(0, Logged(np.array([logged] * num), np.ones(num, bool), None))]
    slots, t = list(range(num)), [0] * num
    seen = each_array(lambda one: one[:, None], rows)  # one seat in each of several episodes
    mode, ids = Mode(seats), [""] * num
    block = Block(None, mode, seats.everybody, ids, slots, slice(0, num), t, [seen])
    return Asked(seat.policy_id, [block], [0], **how)


def read_logged(seat: Seat, given: Mapping[str, Any], **log_probs: float) -> Logged:
    """Returns the logged actions of a seat's agents, in the form in which its policy chooses
    them."""
    agents = {
        one.agent_id: AgentPlan(seat.policy_id, Box((1,)), one.form.kind) for one in seat.agents
    }
    served = Seats(agents, {seat.seat_id: replace(seat, inputs=())}).everybody
    (logged,) = served.read_logged(given, log_probs)
    return logged


def actors_of(name: str, seats: Mapping[str, Seat], plan: ServerPlan) -> Actors:
    """Returns the trainers of an algorithm for the seats of a plan."""
    entry: Any = find(name)
    actors: Actors = entry.make_actors(replace(plan, algorithm=name), seats)
    return actors


def act(
    name: str, who: Seat, num: int, *, should_explore: bool = True, logged: Any = None
) -> Acted:
    """Returns `num` actions for the same three numbers, which agent "a" observes.

    Args:
        name: of the algorithm.
        who: the agent's seat; its observation space is a Box of three numbers.
        num: of actions.
        should_explore: whether the actions are drawn.
        logged: the logged action in all rows; None: there is none.
    """
    agents = {"a": AgentPlan(who.policy_id, who.observation_space, who.agents[0].form.kind)}
    actors = actors_of(name, {"a": who}, replace(make_plan("a"), agents=agents))
    observations = np.tile(np.array([0.1, -0.4, 0.9], np.float32), (num, 1))
    how = {"should_explore": should_explore, "is_training": True, "logged": logged}
    return actors.answer(asked(who, agents, observations, **how))


def sent(who: Seat, answer: Acted) -> Any:
    """Returns the actions that the simulation gets, ``[B, ...]``."""
    return who.agents[0].form.write_rows(answer.actions[:, None])[:, 0]
