"""One episode as RLlib's `MultiAgentEpisode` records it, and the flags it needs to be right.

RLlib takes an episode in which every agent seen so far is flagged for *terminated*, whatever the
flags said, and then does not bootstrap from the end of a truncated one. So the flags are set
here, after each step, to what the simulation said. This is the only place that knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from servers.feed import Chunk
from servers.seats import Seat


class Recorder:
    """Writes transitions down, and cuts off what the learner may have.

    Args:
        episode_id: unique.
        seats: who may appear, by seat id.
        policy_for: RLlib's agent-to-module mapping function.
        lookback: steps a chunk keeps of the one before it; 1 for recurrent modules.
    """

    def __init__(
        self,
        episode_id: str,
        seats: dict[str, Seat],
        policy_for: Callable[..., str],
        lookback: int,
    ) -> None:
        self._lookback = lookback
        self._episode = MultiAgentEpisode(
            id_=episode_id,
            observation_space={s: seat.observation_space for s, seat in seats.items()},
            action_space={s: seat.action_space for s, seat in seats.items()},
            agent_to_module_mapping_fn=policy_for,
        )
        self._weights_seq_nos: list[int] = []

    @property
    def num_uncut_steps(self) -> int:
        """Env steps recorded since the last cut."""
        return len(self._weights_seq_nos)

    def begin(self, observations: dict[str, Any]) -> None:
        """Records the observations of step 0."""
        self._episode.add_env_reset(observations=observations)

    def add(
        self,
        *,
        actions: dict[str, Any],
        extra_outputs: dict[str, Any],
        observations: dict[str, Any],
        rewards: dict[str, float],
        terminated: set[str],
        truncated: set[str],
        is_last: bool,
        weights_seq_no: int,
    ) -> None:
        """Records what followed from `actions`.

        Args:
            actions: of the step before, by seat id, as are all the others.
            extra_outputs: what the RLModule gave with them, for the learner.
            observations: those that are acted on next, and final ones.
            rewards: for the actions.
            terminated: seats that have ended.
            truncated: seats that were cut short; their values are bootstrapped.
            is_last: whether no seat can act any more.
            weights_seq_no: version of the weights that chose the actions.
        """
        for seat_id in observations:
            rewards.setdefault(seat_id, 0.0)
        self._episode.add_env_step(
            observations=observations,
            actions=actions,
            rewards=rewards,
            extra_model_outputs=extra_outputs,
            terminateds=dict.fromkeys(terminated, True),
            truncateds=dict.fromkeys(truncated, True),
        )
        self._set_flags(terminated, truncated, is_last=is_last)
        self._weights_seq_nos.append(weights_seq_no)

    def _set_flags(self, terminated: set[str], truncated: set[str], *, is_last: bool) -> None:
        for seat_id in terminated | truncated:
            single = self._episode.agent_episodes.get(seat_id)
            if single is not None:
                single.is_terminated = seat_id in terminated
                single.is_truncated = seat_id in truncated
        self._episode.is_terminated = is_last and not truncated
        self._episode.is_truncated = is_last and bool(truncated)

    def last_observation(self, seat_id: str) -> Any:
        """Returns what a seat observed last; None if it never did."""
        single = self._episode.agent_episodes.get(seat_id)
        return None if single is None else single.get_observations(-1)

    def cut(self) -> Chunk | None:
        """Takes off what has been recorded so far, and goes on; None if there is nothing."""
        if not self._weights_seq_nos:
            return None
        chunk = Chunk(self._episode, self._weights_seq_nos)
        self._episode = self._episode.cut(len_lookback_buffer=self._lookback)
        self._weights_seq_nos = []
        return chunk

    def finish(self, *, is_aborted: bool = False) -> Chunk | None:
        """Takes off the rest; an aborted episode counts as truncated at its last full step."""
        if not self._weights_seq_nos:
            return None
        if is_aborted and not self._episode.is_done:
            self._episode.is_truncated = True
            for single in self._episode.agent_episodes.values():
                if not single.is_done:
                    single.is_truncated = True
        return Chunk(self._episode, self._weights_seq_nos)
