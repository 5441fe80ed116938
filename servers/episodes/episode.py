"""One open episode of a server: what comes in is checked, recorded, and answered once.

A step is checked as a whole before any of it is recorded, so a refused step leaves the episode
as it was and the same `t` can be sent again, mended. Time is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muxrl.protocol import spaces as plain
from muxrl.protocol.episode import EpisodeEvent, EpisodeState, EpisodeStateMachine
from muxrl.protocol.errors import OutOfOrder, ValueMismatch
from muxrl.protocol.messages import (
    Actions,
    Ended,
    EndEpisode,
    Mode,
    StartEpisode,
    Step,
)
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.recorder import Recorder
from muxrl.servers.seats import Seat, SeatRecord, StepView

Names = set[str] | frozenset[str]


@dataclass(slots=True)
class SeatRequest:
    """One seat of one step that waits for its action."""

    seat: Seat
    record: SeatRecord
    observation: Any
    logged_action: Any = None


@dataclass(slots=True)
class PendingStep:
    """A step that is recorded and waits for its actions."""

    episode: ServedEpisode
    t: int
    requests: list[SeatRequest]
    acting: Mapping[str, Any]
    is_training: bool
    should_explore: bool
    weights_seq_no: int = 0
    answer: Actions | None = None
    has_failed: bool = False
    """Whether its actions could not be computed; its client may ask again, or never."""

    def finish(self, weights_seq_no: int) -> Actions:
        """Makes the answer, once every request has its action in its record."""
        actions: dict[str, Any] = {}
        for request in self.requests:
            actions |= request.seat.act(request.record.action, self.acting, request.record)
        self.weights_seq_no = weights_seq_no
        self.answer = self.episode.answer(self, actions)
        return self.answer


class ServedEpisode:
    """One episode as one server sees it."""

    def __init__(
        self,
        message: StartEpisode,
        plan: ServerPlan,
        seats: dict[str, Seat],
        recorder: Recorder,
        now: float,
    ) -> None:
        self.episode_id = message.episode_id
        self.started_by = message
        self.mode: Mode = message.mode
        self.should_explore = (
            message.mode == "train" if message.should_explore is None else message.should_explore
        )
        self.machine = EpisodeStateMachine(message.episode_id)
        self.machine.handle(EpisodeEvent.START)
        self.last_seen = now
        self.returns: dict[str, float] = {}
        self.recorder = recorder
        self.pending: PendingStep | None = None
        self._plan = plan
        self._seats = seats
        self._records = {seat_id: SeatRecord() for seat_id in seats}
        self._acted: list[SeatRequest] = []
        self._weights_seq_no = 0
        self._last_reply: Actions | None = None
        self._agents_done: set[str] = set()

    @property
    def is_training(self) -> bool:
        return self.mode == "train"

    # --- steps --------------------------------------------------------------------------

    def step(self, message: Step) -> Actions | PendingStep:
        """Records what came and returns what is to be computed; a repeat gets its old answer.

        Raises:
            OutOfOrder: not the step awaited.
            ValueMismatch: something in it is not as declared; nothing was recorded.
        """
        if self.machine.is_repeat(message.t):
            if self.machine.state is EpisodeState.AWAITING_ACTION:
                assert self.pending is not None
                return self.pending
            assert self._last_reply is not None
            return self._last_reply
        self.machine.check(EpisodeEvent.OBSERVE)
        observations = self._conform(message.observations, "observation")
        # Most steps have none of what follows, and a step is what a simulation waits for.
        finals = (
            self._conform(message.final_observations, "final observation")
            if message.final_observations
            else {}
        )
        logged = (
            self._conform_actions(message.logged_actions, observations)
            if message.logged_actions
            else {}
        )
        self._check_rewards(message.rewards)
        terminated, truncated = _flagged(message.terminations), _flagged(message.truncations)
        done = self._check_done(terminated | truncated) if terminated or truncated else _NOBODY
        if (done or self._agents_done) and (
            back := observations.keys() & (done | self._agents_done)
        ):
            agent_id = min(back)
            raise ValueMismatch(
                f"agent {agent_id!r} is done in this episode and cannot observe again; "
                "one that comes back needs a new agent id or a new episode",
                agent_id=agent_id,
                expected="observations of agents that are not done",
                got=f"an observation of {agent_id!r}",
            )
        departed = self._agents_done | done if done else self._agents_done
        seen = self._observe(StepView(observations, message.state, departed))
        if message.t == 0:
            self._begin(seen)
            self._note_before_first_action(message.rewards, done)
        else:
            self._record_transition(
                seen,
                observations,
                finals,
                message.rewards,
                terminated,
                truncated,
                message.state,
            )
        if done:
            self._agents_done |= done
        requests = []
        for seat_id, observation in seen.items():
            record = self._records[seat_id]
            record.has_begun = True
            seat = self._seats[seat_id]
            requests.append(
                SeatRequest(seat, record, observation, seat.read_logged(logged) if logged else None)
            )
        self.machine.handle(EpisodeEvent.OBSERVE)
        self.pending = PendingStep(
            self, message.t, requests, observations, self.is_training, self.should_explore
        )
        return self.pending

    def answer(self, pending: PendingStep, actions: dict[str, Any]) -> Actions:
        """Keeps and returns the answer to the pending step."""
        reply = Actions(self.episode_id, pending.t, actions, pending.weights_seq_no)
        if self.machine.is_over:  # aborted while it waited: nothing follows from these actions
            return reply
        self.machine.handle(EpisodeEvent.ACT)
        self._acted = pending.requests
        self._weights_seq_no = pending.weights_seq_no
        self._last_reply = reply
        self.pending = None
        return reply

    # --- ends ---------------------------------------------------------------------------

    def end(self, message: EndEpisode) -> Ended:
        """Records the last transition and closes the episode.

        Raises:
            OutOfOrder, ValueMismatch: as for `step`.
        """
        if message.t != self.machine.t:
            raise OutOfOrder(
                f"episode {self.episode_id} has seen {self.machine.t} steps on server "
                f"{self._plan.server_id!r}, the end says {message.t}; was a step lost?",
                expected=f"t={self.machine.t}",
                got=f"t={message.t}",
            )
        self.machine.check(EpisodeEvent.END)
        finals = self._conform(message.final_observations, "final observation")
        self._check_rewards(message.rewards)
        terminated, truncated = _flagged(message.terminations), _flagged(message.truncations)
        self._check_done(terminated | truncated)
        rest = self._plan.agents.keys() - self._agents_done - terminated - truncated
        if message.is_truncated:
            truncated |= rest
        else:
            terminated |= rest
        if message.t > 0:
            self._record_transition(
                {}, {}, finals, message.rewards, terminated, truncated, message.state
            )
        else:
            self._note_before_first_action(message.rewards, terminated | truncated)
        self.machine.handle(EpisodeEvent.END)
        return Ended(self.episode_id, self.machine.t, dict(self.returns))

    def abort(self) -> None:
        """Closes the episode as truncated at its last full step."""
        self.machine.handle(EpisodeEvent.ABORT)

    # --- checks -------------------------------------------------------------------------

    def _conform(self, values: Mapping[str, Any], what: str) -> dict[str, Any]:
        agents = self._plan.agents
        conformed = {}
        for agent_id, value in values.items():
            agent = agents.get(agent_id)
            if agent is None:
                raise self._unknown_agent(agent_id, what)
            try:
                conformed[agent_id] = plain.conform(agent.observation_space, value)
            except plain.Mismatch as error:
                raise self._mismatch(agent_id, what, error) from None
        return conformed

    def _conform_actions(
        self, logged: Mapping[str, Any], observations: Mapping[str, Any]
    ) -> dict[str, Any]:
        conformed = {}
        for agent_id, value in logged.items():
            if agent_id not in observations:
                raise ValueMismatch(
                    f"an action of agent {agent_id!r} was logged without its observation",
                    agent_id=agent_id,
                )
            try:
                space = self._plan.agents[agent_id].action_space
                conformed[agent_id] = plain.conform(space, value)
            except plain.Mismatch as error:
                raise self._mismatch(agent_id, "logged action", error) from None
        return conformed

    def _check_rewards(self, rewards: Mapping[str, float]) -> None:
        for agent_id, reward in rewards.items():
            if agent_id not in self._plan.agents:
                raise self._unknown_agent(agent_id, "reward")
            if not math.isfinite(reward):
                raise ValueMismatch(
                    f"the reward of agent {agent_id!r} is {reward}",
                    agent_id=agent_id,
                    expected="a finite number",
                    got=str(reward),
                )

    def _check_done(self, done: Names) -> Names:
        for agent_id in done:
            if agent_id not in self._plan.agents:
                raise self._unknown_agent(agent_id, "termination or truncation")
        return done

    def _unknown_agent(self, agent_id: str, what: str) -> ValueMismatch:
        return ValueMismatch(
            f"there is no agent {agent_id!r} here, but its {what} came",
            agent_id=agent_id,
            expected=f"one of {list(self._plan.agents)}",
            got=repr(agent_id),
        )

    def _mismatch(self, agent_id: str, what: str, error: plain.Mismatch) -> ValueMismatch:
        return ValueMismatch(
            f"{what} of agent {agent_id!r}: {error}",
            agent_id=agent_id,
            expected=error.expected,
            got=error.got,
        )

    # --- recording ----------------------------------------------------------------------

    def _observe(self, step_view: StepView) -> dict[str, Any]:
        seen = {}
        if self._plan.reads_state:
            state = self._conform_state(step_view.state)
            step_view = StepView(step_view.observations, state, step_view.departed)
        for seat_id, seat in self._seats.items():
            record = self._records[seat_id]
            if not record.is_done:
                observation = seat.observe(step_view, record)
                if observation is not None:
                    seen[seat_id] = observation
        return seen

    def _conform_state(self, state: Any) -> Any:
        assert self._plan.state_size is not None
        try:
            return plain.conform(plain.Box((self._plan.state_size,)), state)
        except plain.Mismatch as error:
            raise ValueMismatch(
                f"the global state of the simulation: {error}",
                expected=error.expected,
                got=error.got,
            ) from None

    def _begin(self, seen: dict[str, Any]) -> None:
        if self.is_training:
            self.recorder.begin(seen)

    def _note_before_first_action(self, rewards: Mapping[str, float], done: Names) -> None:
        """Counts what other servers' agents brought about before ours acted for the first time.

        No action of ours is to be credited with it, so it is in the returns and nowhere else.
        """
        for agent_id, reward in rewards.items():
            self.returns[agent_id] = self.returns.get(agent_id, 0.0) + reward
        for seat_id, seat in self._seats.items():
            record = self._records[seat_id]
            record.members_done |= done.intersection(seat.members)
            record.is_done = len(record.members_done) == len(seat.members)

    def _record_transition(
        self,
        seen: dict[str, Any],
        present: Mapping[str, Any],
        finals: Mapping[str, Any],
        rewards: Mapping[str, float],
        terminated_agents: Names,
        truncated_agents: Names,
        state: Any,
    ) -> None:
        newly_done = terminated_agents | truncated_agents
        ending: list[SeatRecord] = []
        observations = seen
        terminated: set[str] = set()
        truncated: set[str] = set()
        if newly_done:
            if finals and self._plan.reads_state:
                state = self._conform_state(state)
            observations = dict(seen)
            # One that ends sees what it saw last beside what the others see now.
            last_seen = {**present, **finals} if finals else {}
            # Who is cut short, or said to be both, is still there to be seen: it is bootstrapped.
            departed = self._agents_done | (terminated_agents - truncated_agents)
            at_end = StepView(last_seen, state, departed)
            # Who terminates beside it is not, just as if that had been a step earlier.
            at_cut = StepView(
                {a: o for a, o in last_seen.items() if a not in departed}, state, departed
            )
            for seat_id, seat in self._seats.items():
                record = self._records[seat_id]
                if record.is_done:
                    continue
                now_done = newly_done.intersection(seat.members)
                if not now_done or len(record.members_done | now_done) < len(seat.members):
                    continue
                ending.append(record)
                if not record.has_begun:
                    continue
                is_truncated = bool(now_done & truncated_agents)
                (truncated if is_truncated else terminated).add(seat_id)
                if seat_id not in observations:
                    final = seat.observe(at_cut if is_truncated else at_end, record)
                    if final is None and is_truncated:
                        final = self._last_known(seat, min(now_done & truncated_agents))
                    if final is not None:
                        observations[seat_id] = final
        # Nothing above has changed anything: a refusal leaves the episode as it was.
        returns = self.returns
        for agent_id, reward in rewards.items():
            returns[agent_id] = returns.get(agent_id, 0.0) + reward
        if self.is_training and any(not record.is_done for record in self._records.values()):
            self._write(observations, rewards, terminated, truncated, ending)
        if newly_done:
            for record in ending:
                record.is_done = True
            for seat_id, seat in self._seats.items():
                self._records[seat_id].members_done |= newly_done.intersection(seat.members)

    def _last_known(self, seat: Seat, agent_id: str) -> Any:
        if self._was_last_to_act(seat) and self.is_training:
            raise ValueMismatch(
                f"agent {agent_id!r} was truncated without its final observation, which its "
                "value is bootstrapped from",
                agent_id=agent_id,
                expected=f"final_observations[{agent_id!r}]",
                got="none",
            )
        return self.recorder.last_observation(seat.seat_id) if self.is_training else None

    def _was_last_to_act(self, seat: Seat) -> bool:
        return any(request.seat is seat for request in self._acted)

    def _write(
        self,
        observations: dict[str, Any],
        rewards: Mapping[str, float],
        terminated: set[str],
        truncated: set[str],
        ending: list[SeatRecord],
    ) -> None:
        actions: dict[str, Any] = {}
        extras: dict[str, Any] = {}
        for request in self._acted:
            actions[request.seat.seat_id] = request.record.action
            if request.record.extra_outputs:
                extras[request.seat.seat_id] = request.record.extra_outputs
        seat_rewards = {}
        is_last = bool(ending)
        for seat_id, seat in self._seats.items():
            record = self._records[seat_id]
            if record.is_done:
                continue
            if record.has_begun and rewards and not rewards.keys().isdisjoint(seat.members):
                seat_rewards[seat_id] = seat.reward(rewards)
            if is_last and not any(record is over for over in ending):
                is_last = False
        self.recorder.add(
            actions=actions,
            extra_outputs=extras,
            observations=observations,
            rewards=seat_rewards,
            terminated=terminated,
            truncated=truncated,
            is_last=is_last,
            weights_seq_no=self._weights_seq_no,
        )
        self._acted = []


_NOBODY: Names = frozenset()


def _flagged(flags: Mapping[str, bool]) -> Names:
    return {agent_id for agent_id, is_set in flags.items() if is_set} if flags else _NOBODY
