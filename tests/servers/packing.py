"""Packs steps into rows as a client would, and unpacks rows and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.protocol.message_sizes import AgentSpaces
from muxrl.protocol.messages import ActionRows, AnyItem, AnyReply, Step, StepRows
from muxrl.protocol.rows import Kind, Layout, singles, stack
from muxrl.protocol.rows import answers_of as protocol_answers


def is_plain(item: AnyItem) -> bool:
    """Returns whether a client would send an item in rows."""
    if not isinstance(item, Step) or not item.observations:
        return False
    if item.terminations or item.truncations or item.final_observations or item.late_rewards:
        return False
    if item.logged_actions and item.logged_actions.keys() != item.observations.keys():
        return False
    return not item.rewards or (item.t > 0 and item.rewards.keys() <= item.observations.keys())


def stacked(kinds: Sequence[Kind], values: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns the values of several episodes, which are by agent, as rows of each kind."""
    return [
        stack(
            kind.space,
            [own[a] for own in values for a in kind.agents],
            (len(values), len(kind.agents)),
        )
        for kind in kinds
    ]


def rows_of(agents: Mapping[str, AgentSpaces], steps: Sequence[Step]) -> StepRows:
    """Returns steps in which the same agents observe, as rows.

    Args:
        agents: of the server.
        steps: plain ones, of several episodes.
    """
    layout = Layout(tuple(steps[0].observations), agents)
    return StepRows(
        episode_ids=[step.episode_id for step in steps],
        t=np.array([step.t for step in steps], np.int64),
        observations=stacked(layout.observed, [step.observations for step in steps]),
        agents=[] if layout.agents == tuple(agents) else list(layout.agents),
        rewards=np.array([[step.rewards.get(a, 0.0) for a in layout.agents] for step in steps]),
        state=None
        if steps[0].state is None
        else np.array([step.state for step in steps], np.float32),
        logged_actions=stacked(layout.acted, [step.logged_actions for step in steps])
        if steps[0].logged_actions
        else None,
        logged_log_probs=np.array(
            [[step.logged_log_probs.get(a, np.nan) for a in layout.agents] for step in steps]
        )
        if steps[0].logged_actions
        else None,
    )


def packed(
    agents: Mapping[str, AgentSpaces], items: Sequence[AnyItem]
) -> tuple[list[AnyItem], list[AnyItem]]:
    """Packs the plain steps among items into rows, behind the other items.

    Returns:
        The new items, and the old ones in the order in which `unpacked` would return them.
    """
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for item in items:
        if isinstance(item, Step) and is_plain(item):
            alike = (*item.observations, bool(item.logged_actions))
            groups.setdefault(alike, []).append(item)
    others = [item for item in items if not is_plain(item)]
    rows = [rows_of(agents, steps) for steps in groups.values()]
    return [*others, *rows], [*others, *(step for steps in groups.values() for step in steps)]


def unpacked(agents: Mapping[str, AgentSpaces], items: Sequence[AnyItem]) -> list[AnyItem]:
    """Returns items, with each row as a single step."""
    found: list[AnyItem] = []
    for item in items:
        is_rows = isinstance(item, StepRows)
        found += singles(_layout(agents, item), item) if is_rows else [item]  # type: ignore[arg-type]
    return found


def answers_of(
    agents: Mapping[str, AgentSpaces], items: Sequence[AnyItem], replies: Sequence[AnyReply]
) -> list[AnyReply]:
    """Returns the replies to items as if these were `unpacked`."""
    found: list[AnyReply] = []
    for item, reply in zip(items, replies, strict=True):
        if not isinstance(item, StepRows):
            found.append(reply)
        elif not isinstance(reply, ActionRows):  # the rows were refused as a whole
            found += [reply] * len(item.episode_ids)
        else:
            found += protocol_answers(_layout(agents, item), item, reply)
    return found


def _layout(agents: Mapping[str, AgentSpaces], item: StepRows) -> Layout:
    return Layout(tuple(item.agents) or tuple(agents), agents)
