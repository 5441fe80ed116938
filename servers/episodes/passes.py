"""Which requests a policy is asked at once: those of one forward pass.

Evaluation has a pass of its own: the size of a batch changes the outputs' last bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from muxrl.servers.agents.seats import SeatAction, SeatRequest
from muxrl.servers.episodes.episode import PendingStep
from muxrl.servers.episodes.rows import RowStep

Pass = tuple[str, bool, bool, bool]
"""Policy, whether its requests explore, whether they train, and whether they are untrained."""


def passes_of(steps: Sequence[PendingStep]) -> tuple[dict[Pass, list[SeatRequest]], list[Pass]]:
    """Returns the requests of each pass, and the pass of each request of the steps, in order."""
    passes: dict[Pass, list[SeatRequest]] = {}
    order: list[Pass] = []
    for step in steps:
        should_explore, is_training, untrained = (
            step.should_explore,
            step.is_training,
            step.untrained,
        )
        for request in step.requests:
            seat = request.seat
            key = (seat.policy_id, should_explore, is_training, seat.seat_id in untrained)
            batch = passes.get(key)
            if batch is None:
                passes[key] = [request]
            else:
                batch.append(request)
            order.append(key)
    return passes, order


def by_step(
    chosen: Mapping[Pass, list[SeatAction]], order: Sequence[Pass], steps: Sequence[PendingStep]
) -> list[list[SeatAction]]:
    """Returns for each step its actions, from those of each pass; see `passes_of`."""
    if len(steps) == len(chosen) == 1:
        return list(chosen.values())
    next_of = {key: iter(actions) for key, actions in chosen.items()}
    keys = iter(order)
    return [[next(next_of[key]) for key in islice(keys, len(step.requests))] for step in steps]


def passes_of_rows(steps: Sequence[RowStep]) -> dict[Pass, list[tuple[int, int]]]:
    """Returns the benches of each pass: which step, and which of its benches."""
    passes: dict[Pass, list[tuple[int, int]]] = {}
    for i, step in enumerate(steps):
        for j, bench in enumerate(step.benches.benches):
            key = (bench.policy_id, step.should_explore, step.is_training, False)
            passes.setdefault(key, []).append((i, j))
    return passes
