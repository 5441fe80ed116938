"""One episode, recorded seat by seat as RLlib's learners read it.

Each seat has a `SingleAgentEpisode` of its own; a `MultiAgentEpisode` is put around them when a
chunk is handed over. RLlib's own `MultiAgentEpisode.add_env_step` and `cut` do not carry what
happens on a server fed from outside: an episode in which every agent *seen so far* is done is
taken for terminated (later agents are dropped, truncated ones not bootstrapped), and a cut loses
the action of an agent that has not observed since, or the last transition of one that ends
without a final observation.

::

    seat a   o ─a→ o ─a→ o ─a→ o            an observation for every action
    seat b   o ─b→ ·     · ──→ o ─b→        acts now and then: its rewards add up until it observes
             begin  add   cut   add         b's action is open at the cut and goes on behind it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from servers.feed import Chunk
from servers.seats import Seat


@dataclass(slots=True)
class _OpenAction:
    """An action whose next observation has not come yet."""

    action: Any
    extra_outputs: dict[str, Any] | None
    reward: float = 0.0


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
        self._episode_id = episode_id
        self._seats = seats
        self._policy_for = policy_for
        self._lookback = lookback
        self._singles: dict[str, SingleAgentEpisode] = {}
        self._open_actions: dict[str, _OpenAction] = {}
        self._num_cut_steps = 0
        self._is_terminated = False
        self._is_truncated = False
        self._weights_seq_nos: list[int] = []

    @property
    def num_uncut_steps(self) -> int:
        """Env steps recorded since the last cut."""
        return len(self._weights_seq_nos)

    def begin(self, observations: dict[str, Any]) -> None:
        """Records the observations of step 0."""
        for seat_id, observation in observations.items():
            self._observe(seat_id, observation)

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
            rewards: for the actions; those of a seat that has not acted yet are left out.
            terminated: seats that have ended.
            truncated: seats that were cut short; their values are bootstrapped.
            is_last: whether no seat can act any more.
            weights_seq_no: version of the weights that chose the actions.
        """
        for seat_id, action in actions.items():
            self._open_actions[seat_id] = _OpenAction(action, extra_outputs.get(seat_id))
        for seat_id, reward in rewards.items():
            open_action = self._open_actions.get(seat_id)
            if open_action is not None:
                open_action.reward += reward
        for seat_id, observation in observations.items():
            self._observe(seat_id, observation)
        for seat_id in terminated | truncated:
            single = self._singles.get(seat_id)
            if single is not None:
                if seat_id in self._open_actions:  # nobody bootstraps from this repetition
                    self._observe(seat_id, single.get_observations(-1))
                single.is_terminated = seat_id in terminated
                single.is_truncated = seat_id in truncated
        if is_last:
            self._is_terminated, self._is_truncated = not truncated, bool(truncated)
        self._weights_seq_nos.append(weights_seq_no)

    def _observe(self, seat_id: str, observation: Any) -> None:
        """Begins a seat's record, or completes the transition of its open action."""
        single = self._singles.get(seat_id)
        if single is None:
            seat = self._seats[seat_id]
            single = self._singles[seat_id] = self._named(
                SingleAgentEpisode(
                    observation_space=seat.observation_space, action_space=seat.action_space
                ),
                seat_id,
            )
            single.add_env_reset(observation)
            return
        open_action = self._open_actions.pop(seat_id)
        single.add_env_step(
            observation,
            open_action.action,
            open_action.reward,
            extra_model_outputs=open_action.extra_outputs,
        )

    def _named(self, single: SingleAgentEpisode, seat_id: str) -> SingleAgentEpisode:
        single.agent_id = seat_id
        single.module_id = self._policy_for(seat_id)
        single.multi_agent_episode_id = self._episode_id
        return single

    def last_observation(self, seat_id: str) -> Any:
        """Returns what a seat observed last; None if it never did."""
        single = self._singles.get(seat_id)
        return None if single is None else single.get_observations(-1)

    def cut(self) -> Chunk | None:
        """Takes off what has been recorded so far, and goes on; None if there is nothing."""
        if not self._weights_seq_nos:
            return None
        chunk = self._chunk()
        self._singles = {
            seat_id: self._named(single.cut(self._lookback), seat_id) if len(single) else single
            for seat_id, single in self._singles.items()
            if not single.is_done
        }
        return chunk

    def finish(self, *, is_aborted: bool = False) -> Chunk | None:
        """Takes off the rest; an aborted episode counts as truncated at its last full step."""
        if not self._weights_seq_nos:
            return None
        if is_aborted and not self._is_terminated and not self._is_truncated:
            self._is_truncated = True
            for single in self._singles.values():
                if not single.is_done:
                    single.is_truncated = True
        return self._chunk()

    def _chunk(self) -> Chunk:
        episode = MultiAgentEpisode(
            id_=self._episode_id,
            observation_space={s: seat.observation_space for s, seat in self._seats.items()},
            action_space={s: seat.action_space for s, seat in self._seats.items()},
            agent_to_module_mapping_fn=self._policy_for,
            env_t_started=self._num_cut_steps,
        )
        # RLlib's learners read these, and nothing else of it.
        episode.agent_episodes = {s: single for s, single in self._singles.items() if len(single)}
        episode.env_t = self._num_cut_steps + len(self._weights_seq_nos)
        episode.is_terminated, episode.is_truncated = self._is_terminated, self._is_truncated
        chunk = Chunk(episode, self._weights_seq_nos)
        self._num_cut_steps, self._weights_seq_nos = episode.env_t, []
        return chunk
