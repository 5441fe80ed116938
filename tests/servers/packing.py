"""Messages as a client would send them in rows, and their answers as those of single steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from muxrl.protocol.messages import (
    ActionRows,
    Actions,
    AnyItem,
    AnyReply,
    ServerSpec,
    Step,
    StepRows,
)
from muxrl.protocol.rows import Lineup, NotInRows, row_of, stack


class Packing:
    """Packs the plain steps of a message into rows, at its end.

    Args:
        spec: the server's.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._packed: list[tuple[Lineup, list[int]]] = []
        self._items: list[AnyItem] = []

    def pack(self, items: list[AnyItem]) -> list[AnyItem]:
        """Returns the items that are told."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for i, item in enumerate(items):
            if isinstance(item, Step) and self._is_plain(item):
                groups.setdefault(tuple(item.observations), []).append(i)
        self._items, self._packed = items, []
        rows: list[AnyItem] = []
        for agents, places in groups.items():
            lineup = Lineup(agents, self._spec.agents)
            try:
                rows.append(self._rows(lineup, [items[i] for i in places]))
            except NotInRows:
                continue
            self._packed.append((lineup, places))
        gone = {i for _, places in self._packed for i in places}
        return [item for i, item in enumerate(items) if i not in gone] + rows

    def unpack(self, replies: list[AnyReply]) -> list[AnyReply]:
        """Returns a reply to each item that was packed, in their order."""
        whole: dict[int, Any] = {}
        num_others = len(replies) - len(self._packed)
        for (lineup, places), reply in zip(self._packed, replies[num_others:], strict=True):
            steps = [self._items[i] for i in places]
            whole.update(zip(places, _each(lineup, steps, reply), strict=True))
        others = iter(replies[:num_others])
        return [whole[i] if i in whole else next(others) for i in range(len(self._items))]

    def _is_plain(self, step: Step) -> bool:
        if step.terminations or step.truncations or step.final_observations or step.late_rewards:
            return False
        if step.logged_actions or step.logged_log_probs or not step.observations:
            return False
        if step.rewards and (not step.t or not step.rewards.keys() <= step.observations.keys()):
            return False
        return (step.state is None) == (self._spec.state_size is None)

    def _rows(self, lineup: Lineup, steps: list[Any]) -> StepRows:
        agents = lineup.agents
        states = None
        if self._spec.state_size is not None:
            states = np.array([step.state for step in steps], np.float32)
        return StepRows(
            episode_ids=[step.episode_id for step in steps],
            t=np.array([step.t for step in steps], np.int64),
            observations=[
                stack(
                    kind.space,
                    [step.observations[a] for step in steps for a in kind.agents],
                    (len(steps), len(kind.agents)),
                )
                for kind in lineup.observed
            ],
            agents=[] if agents == tuple(self._spec.agents) else list(agents),
            rewards=np.array([[step.rewards.get(a, 0.0) for a in agents] for step in steps]),
            state=states,
        )


def _each(lineup: Lineup, steps: list[Any], reply: Any) -> list[AnyReply]:
    if not isinstance(reply, ActionRows):  # it was refused as a whole
        return [reply] * len(steps)
    if reply.replies:
        return list(reply.replies)
    return [
        Actions(
            step.episode_id,
            step.t,
            {
                agent_id: row_of(kind.space, rows, (row, i))
                for kind, rows in zip(lineup.acted, reply.actions, strict=True)
                for i, agent_id in enumerate(kind.agents)
            },
            reply.weights_seq_no,
        )
        for row, step in enumerate(steps)
    ]
