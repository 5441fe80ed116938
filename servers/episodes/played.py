"""Steps in which a client acted by itself: checked, and given what the server would have recorded.

They were drawn from the server's own policy, so they are its own actions, of the version of the
weights that the client says. The client sends the logits; log-probabilities follow from these.
What is older than the server's own actions can be counts as chosen elsewhere, and is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from ray.rllib.core.columns import Columns

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.message_sizes import AgentSpaces
from muxrl.protocol.messages import PlayedSteps, Step
from muxrl.protocol.spaces import Box, Discrete
from muxrl.protocol.values import Mismatch, conform
from muxrl.servers.inference import log_probs_of
from muxrl.servers.seats import SeatAction, SeatRequest

Row = tuple[np.ndarray, np.ndarray]
"""Logits of an agent's action, and the log-probabilities of all actions, float32 ``[n]``."""


class PlayedCheck:
    """Reads `PlayedSteps`.

    Args:
        agents: the server's, by id.
        problem: why it takes none; "": it does.
        version: returns that of the weights in use.
        max_lag: versions by which actions may be behind it and still teach the policy.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentSpaces],
        problem: str,
        version: Callable[[], int],
        max_lag: int,
    ) -> None:
        self._num_actions = {
            agent_id: agent.action_space.n
            for agent_id, agent in agents.items()
            if isinstance(agent.action_space, Discrete)
        }
        self._problem = problem
        self.version = version
        self._max_lag = max_lag

    def read(self, item: PlayedSteps) -> tuple[bool, Iterator[tuple[Step, dict[str, Row]]]]:
        """Returns whether the actions are stale, and the steps, each with what its agents' actions
        were drawn from.

        Stale actions are too old to teach the policy: as log-probabilities they have infinity.

        Raises:
            ValueMismatch: an action or its logits are missing or no such numbers, or the server
                takes no such steps. The steps' own values are not looked at.
        """
        if self._problem:
            raise ValueMismatch(
                f"it takes no steps in which a client acted by itself: {self._problem}"
            )
        version = self.version()
        if not 0 <= item.weights_seq_no <= version:
            raise ValueMismatch(
                f"it never had weights of version {item.weights_seq_no}; was it started again?",
                expected=f"0 to {version}",
                got=str(item.weights_seq_no),
            )
        counts: Counter[str] = Counter()
        for step in item.steps:
            if step.episode_id != item.episode_id:
                raise ValueMismatch(
                    f"a step of episode {step.episode_id[:40]!r} is among those of another one"
                )
            if step.logged_actions.keys() != step.observations.keys() or step.logged_log_probs:
                raise ValueMismatch(
                    f"t={step.t} was played, so it has a logged action of each agent that "
                    "observes, and no log-probabilities",
                    expected=f"actions of {list(step.observations)}",
                    got=f"actions of {list(step.logged_actions)}",
                )
            counts.update(step.observations.keys())
        columns = {a: self._columns(a, item.logits.get(a), n) for a, n in counts.items()}
        if more := item.logits.keys() - columns.keys():
            raise ValueMismatch(f"there are logits of agents that did not act: {sorted(more)}")
        is_stale = version - item.weights_seq_no > self._max_lag
        if is_stale:
            for _, log_probs in columns.values():
                log_probs[:] = np.inf
        return is_stale, self._rows(item, columns)

    def _columns(self, agent_id: str, logits: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns logits and log-probabilities, float32 ``[count, n]`` each."""
        # Of an agent that is unknown, the step's own check says so.
        space = Box((count, self._num_actions.get(agent_id, 1)))
        try:
            rows = np.empty(space.shape, np.float32)
            rows[:] = conform(
                space, logits if agent_id in self._num_actions else np.zeros_like(rows)
            )
        except Mismatch as error:
            raise ValueMismatch(
                f"logits of agent {agent_id!r}: {error}",
                agent_id=agent_id,
                expected=error.expected,
                got=error.got,
            ) from None
        return rows, log_probs_of(rows)

    def _rows(
        self, item: PlayedSteps, columns: Mapping[str, tuple[np.ndarray, np.ndarray]]
    ) -> Iterator[tuple[Step, dict[str, Row]]]:
        row_of: Counter[str] = Counter()
        for step in item.steps:
            rows: dict[str, Row] = {}
            for agent_id in step.observations:
                logits, log_probs = columns[agent_id]
                row = row_of[agent_id]
                row_of[agent_id] = row + 1
                rows[agent_id] = logits[row], log_probs[row]
            yield step, rows


def seat_action(request: SeatRequest, row: Row) -> SeatAction:
    """Returns the action of a recorded step as inference would have."""
    logits, log_probs = row
    action = np.int64(request.logged_action)
    return SeatAction(
        action,
        {Columns.ACTION_LOGP: log_probs[action], Columns.ACTION_DIST_INPUTS: logits},
    )
