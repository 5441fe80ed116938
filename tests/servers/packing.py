"""Steps as a client would send them in rows, and their answers as those of single steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.protocol.message_sizes import AgentSpaces
from muxrl.protocol.messages import ActionRows, Actions, AnyItem, AnyReply, Step, StepRows
from muxrl.protocol.rows import Layout, row_of, singles, stack


def is_plain(item: AnyItem) -> bool:
    """Whether a client would send it in rows."""
    if not isinstance(item, Step) or not item.observations:
        return False
    if item.terminations or item.truncations or item.final_observations or item.late_rewards:
        return False
    if item.logged_actions and item.logged_actions.keys() != item.observations.keys():
        return False
    return not item.rewards or (item.t > 0 and item.rewards.keys() <= item.observations.keys())


def rows_of(agents: Mapping[str, AgentSpaces], steps: Sequence[Step]) -> StepRows:
    """Returns steps in which the same agents observe, as rows.

    Args:
        agents: of the server.
        steps: they are plain.
    """
    layout = Layout(tuple(steps[0].observations), agents)
    return StepRows(
        episode_ids=[step.episode_id for step in steps],
        t=np.array([step.t for step in steps], np.int64),
        observations=[
            stack(
                kind.space,
                [step.observations[a] for step in steps for a in kind.agents],
                (len(steps), len(kind.agents)),
            )
            for kind in layout.observed
        ],
        agents=[] if layout.agents == tuple(agents) else list(layout.agents),
        rewards=np.array([[step.rewards.get(a, 0.0) for a in layout.agents] for step in steps]),
        state=None
        if steps[0].state is None
        else np.array([step.state for step in steps], np.float32),
        logged_actions=[
            stack(
                kind.space,
                [step.logged_actions[a] for step in steps for a in kind.agents],
                (len(steps), len(kind.agents)),
            )
            for kind in layout.acted
        ]
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
    """Returns items with the plain steps among them in rows behind the others, and the items in
    the order in which these are `unpacked`."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for item in items:
        if isinstance(item, Step) and is_plain(item):
            alike = (*item.observations, bool(item.logged_actions))
            groups.setdefault(alike, []).append(item)
    others = [item for item in items if not is_plain(item)]
    rows = [rows_of(agents, steps) for steps in groups.values()]
    return [*others, *rows], [*others, *(step for steps in groups.values() for step in steps)]


def unpacked(agents: Mapping[str, AgentSpaces], items: Sequence[AnyItem]) -> list[AnyItem]:
    """Returns items, each row as a step of its own."""
    found: list[AnyItem] = []
    for item in items:
        is_rows = isinstance(item, StepRows)
        found += singles(_layout(agents, item), item) if is_rows else [item]  # type: ignore[arg-type]
    return found


def answers_of(
    agents: Mapping[str, AgentSpaces], items: Sequence[AnyItem], replies: Sequence[AnyReply]
) -> list[AnyReply]:
    """Returns the replies to items as those to `unpacked` ones."""
    found: list[AnyReply] = []
    for item, reply in zip(items, replies, strict=True):
        if not isinstance(item, StepRows):
            found.append(reply)
        elif not isinstance(reply, ActionRows):  # it was refused as a whole
            found += [reply] * len(item.episode_ids)
        elif reply.replies:
            found += reply.replies
        else:
            acted = _layout(agents, item).acted
            for row, (episode_id, t) in enumerate(
                zip(item.episode_ids, item.t.tolist(), strict=True)
            ):
                actions = {
                    agent_id: row_of(kind.space, rows, (row, i))
                    for kind, rows in zip(acted, reply.actions, strict=True)
                    for i, agent_id in enumerate(kind.agents)
                }
                found.append(Actions(episode_id, t, actions, reply.weights_seq_no))
                if reply.log_probs is not None:
                    known = zip(
                        _layout(agents, item).agents, reply.log_probs[row].tolist(), strict=True
                    )
                    found[-1].log_probs = {a: one for a, one in known if np.isfinite(one)}
    return found


def _layout(agents: Mapping[str, AgentSpaces], item: StepRows) -> Layout:
    return Layout(tuple(item.agents) or tuple(agents), agents)
