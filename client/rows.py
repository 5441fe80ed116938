"""Steps that go to a server as rows of arrays, and its answer as one of each episode again.

A step is packed if it has observations, rewards and a state, and nothing else; all others, and what
does not fit an array, go as they are: whatever is wrong in it, the server says of whom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.client.lineups import Lineups
from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.messages import (
    ActionRows,
    Actions,
    AnyItem,
    AnyReply,
    ServerSpec,
    Step,
    StepRows,
)
from muxrl.protocol.rows import Kind, Lineup, NotInRows, leaves, row_of, stack
from muxrl.protocol.spaces import DictSpace, Discrete, TupleSpace

LEAST_ROWS = 16
"""Agent steps in one message from which arrays take a server less time than as many objects."""

_Place = tuple[int, ...]


class Packing:
    """Packs the messages of one conversation with a server that takes rows.

    Args:
        spec: the server's.
        least_rows: agent steps from which steps are packed.
    """

    def __init__(self, spec: ServerSpec, least_rows: int = LEAST_ROWS) -> None:
        self._spec = spec
        self._least_rows = least_rows
        self._num_agents = len(spec.agents)
        self._lineups = Lineups(lambda agents: Lineup(agents, spec.agents))
        self._packed: list[tuple[Lineup, Sequence[Step], _Place]] = []
        """Of each `StepRows` at the end of the last message: its steps, and their places in it."""
        self._others: _Place = ()

    def pack(self, items: list[AnyItem]) -> list[AnyItem]:
        """Returns the items of a message, with rows at its end in place of what can be packed."""
        self._packed = []
        if len(items) * self._num_agents < self._least_rows:
            return items
        groups: dict[tuple[str, ...], list[int]] = {}
        for i, item in enumerate(items):
            if type(item) is Step and self._is_plain(item):
                groups.setdefault(tuple(item.observations), []).append(i)
        rows: list[AnyItem] = []
        gone: set[int] = set()
        for agents, places in groups.items():
            if len(places) * len(agents) < self._least_rows:
                continue
            steps: list[Any] = [items[i] for i in places]
            lineup = self._lineups.find(agents)
            if lineup is None:
                continue
            try:
                rows.append(self._rows(lineup, steps))
            except NotInRows:
                continue
            self._packed.append((lineup, steps, tuple(places)))
            gone.update(places)
        self._others = tuple(i for i in range(len(items)) if i not in gone)
        return [items[i] for i in self._others] + rows

    def unpack(self, replies: list[AnyReply]) -> list[AnyReply]:
        """Returns a reply to each item that was packed, in their order.

        What is no answer to the last message as it was packed is returned as it came.
        """
        if not self._packed:
            return replies
        num_others = len(self._others)
        if len(replies) != num_others + len(self._packed):
            return replies
        whole: list[Any] = [None] * (num_others + sum(len(p) for _, _, p in self._packed))
        for i, reply in zip(self._others, replies, strict=False):
            whole[i] = reply
        for (lineup, steps, places), reply in zip(self._packed, replies[num_others:], strict=True):
            for i, one in zip(places, _each(lineup, steps, reply), strict=True):
                whole[i] = one
            were_read = type(reply) is not ActionRows or not reply.replies
            self._lineups.note(lineup.agents, were_read=were_read)
        return whole

    def _is_plain(self, step: Step) -> bool:
        if step.terminations or step.truncations or step.final_observations or step.late_rewards:
            return False
        if step.logged_actions or step.logged_log_probs or not step.observations:
            return False
        if step.rewards and (not step.t or not step.rewards.keys() <= step.observations.keys()):
            return False
        return (step.state is None) == (self._spec.state_size is None)

    def _rows(self, lineup: Lineup, steps: Sequence[Step]) -> StepRows:
        agents = lineup.agents
        return rows_of_steps(
            self._spec,
            lineup,
            [step.episode_id for step in steps],
            np.array([step.t for step in steps], np.int64),
            [step.observations for step in steps],
            _floats(
                np.float64, [[s.rewards.get(a, 0.0) for a in agents] for s in steps], (len(agents),)
            ),
            [step.state for step in steps],
        )


def rows_of_steps(
    spec: ServerSpec,
    lineup: Lineup,
    episode_ids: list[str],
    t: np.ndarray,
    observations: Sequence[Mapping[str, Any]],
    rewards: np.ndarray,
    states: Sequence[Any],
) -> StepRows:
    """Returns the steps of ``E`` episodes as one.

    Args:
        spec: the server's.
        lineup: of the ``A`` agents that act in each.
        episode_ids, t: of each episode; int64 ``[E]``.
        observations: of each episode, by agent; others' are not looked at.
        rewards: float64 ``[E, A]``.
        states: of each episode, if the server asks for it.

    Raises:
        NotInRows: an observation or a state is not as its space says.
    """
    lead = len(episode_ids)
    return StepRows(
        episode_ids=episode_ids,
        t=t,
        observations=[
            stack(
                kind.space,
                [seen[a] for seen in observations for a in kind.agents],
                (lead, len(kind.agents)),
            )
            for kind in lineup.observed
        ],
        agents=[] if lineup.agents == tuple(spec.agents) else list(lineup.agents),
        rewards=rewards,
        state=None if spec.state_size is None else _floats(np.float32, states, (spec.state_size,)),
    )


def _floats(dtype: type, rows: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.array(rows)
    except (ValueError, TypeError, RuntimeError):
        raise NotInRows from None
    if array.dtype.kind != "f" or array.shape[1:] != shape:
        raise NotInRows
    return array.astype(dtype, copy=False)


def _each(lineup: Lineup, steps: Sequence[Step], reply: Any) -> list[AnyReply]:
    """Returns the reply to each step of a `StepRows`."""
    if type(reply) is not ActionRows:  # it was refused as a whole
        return [reply] * len(steps)
    if reply.replies:
        if len(reply.replies) != len(steps):
            raise MalformedMessage(
                f"{len(reply.replies)} replies came to the rows of {len(steps)} episodes"
            )
        return list(reply.replies)
    actions: list[dict[str, Any]] = [{} for _ in steps]
    for kind, values in actions_by_row(lineup, reply, len(steps)):
        for mine, own in zip(actions, values, strict=True):
            mine.update(zip(kind.agents, own, strict=True))
    return [
        Actions(step.episode_id, step.t, mine, reply.weights_seq_no)
        for step, mine in zip(steps, actions, strict=True)
    ]


def actions_by_row(lineup: Lineup, reply: ActionRows, num_rows: int) -> list[tuple[Kind, Any]]:
    """Returns for each kind of agents its actions in each row: one for each agent.

    Raises:
        MalformedMessage: they are not those asked for.
    """
    try:
        return [
            (kind, _values(kind, rows, num_rows))
            for kind, rows in zip(lineup.acted, reply.actions, strict=True)
        ]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise MalformedMessage(f"its rows of actions are not those asked for: {error}") from None


def _values(kind: Kind, rows: Any, num_rows: int) -> Any:
    """Returns the actions of each episode: one for each agent of the kind."""
    lead = leaves(kind.space, rows)[0].shape[:2]
    if lead != (num_rows, len(kind.agents)):
        raise ValueError(f"expected {num_rows} rows of {len(kind.agents)} agents, got {lead}")
    if isinstance(kind.space, Discrete):
        return rows.tolist()
    if not isinstance(kind.space, DictSpace | TupleSpace):
        return rows
    agents = range(len(kind.agents))
    return [[row_of(kind.space, rows, (row, i)) for i in agents] for row in range(num_rows)]
