"""What is recorded of a step or an end: observations, rewards, and which seat ended how.

::

    step 0      the first observations
    step t      what followed from the actions of step t - 1: rewards, ends, final observations,
                and the observations that are acted on next
    end         the same, without observations to act on

Nothing of it is recorded before everything that may be refused has been checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from muxrl.protocol.errors import ValueMismatch
from muxrl.servers.agents.benches import Bench
from muxrl.servers.agents.frames import Frames
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seats import Seat, SeatAction, SeatRecord, SeatRequest, StepView
from muxrl.servers.agents.teams import NO_ACTION
from muxrl.servers.episodes.recorder import Recorder, SeatRows
from muxrl.servers.episodes.rows import RowStep, columns_of
from muxrl.servers.episodes.step_check import NOBODY, AgentIds, CheckedStep
from muxrl.servers.episodes.trajectories import at, stacked


class _Ends(NamedTuple):
    """The seats whose last member ends in a step."""

    num_seats: int
    """Those that never began included; nothing of them is recorded."""
    terminated: set[str]
    truncated: set[str]
    final_observations: dict[str, Any]


_NO_ENDS = _Ends(0, set(), set(), {})


class Transitions:
    """Records one episode of one server.

    Args:
        seats: by seat id, at least one.
        recorder: where transitions go.
        is_training: whether they are learned from; otherwise only returns are summed.
        agents_return: whether agents that are done may come back in the same episode.
        observing: has statistics that the observations are counted in; None: they are in none.
    """

    def __init__(
        self,
        seats: Mapping[str, Seat],
        recorder: Recorder,
        *,
        is_training: bool,
        agents_return: bool = False,
        observing: Observing | None = None,
    ) -> None:
        self._agents_return = agents_return
        self.agents_done: set[str] = set()
        self.returns: dict[str, float] = {}
        self.paid_late = ""
        """Who was paid after its end, so that no action learns from it: an agent or a team."""
        self._recorder = recorder
        self._is_training = is_training
        self._observing = observing
        frame_stack = next(iter(seats.values())).frame_stack
        self._frames = Frames(frame_stack) if frame_stack > 1 else None
        self._last_actions: dict[str, Any] = {}
        """By agent; an agent that is not asked in a step keeps its own."""
        self._records = {seat_id: SeatRecord(last_actions=self._last_actions) for seat_id in seats}
        self._seated = [(s, seat, self._records[s]) for s, seat in seats.items()]
        """Id, seat and record of each."""
        self._acted: dict[str, SeatAction] = {}
        """Actions of the last step, by seat id, until what followed from them is recorded."""
        self._acting: Collection[str] = ()
        """Agents that acted in that step; members of teams, too."""
        self._weights_seq_no = 0

    def add_step(self, step: CheckedStep, *, is_first: bool) -> list[SeatRequest]:
        """Records a step; returns a request for each seat that acts now.

        Raises:
            ValueMismatch: an action mask or a team forbids it, or a truncated agent has no final
                observation; nothing was recorded.
        """
        done = step.terminated | step.truncated
        departed = self.agents_done | done if done else self.agents_done
        back = step.observations.keys() & departed if departed else departed
        if back:
            departed = departed - back
        if self._frames is not None:
            self._frames.back = back
        view = StepView(step.observations, step.state, departed, back, frames=self._frames)
        seen: dict[str, Any] = {}
        acting: list[tuple[Seat, SeatRecord, Any]] = []
        anew = self._find_anew(done, back) if back else NOBODY
        for seat_id, seat, record in self._seated:
            if seat_id in anew:
                record = SeatRecord(last_actions=self._last_actions)
            if not record.is_done:
                observation = seat.observe(view, record)
                if observation is not None:
                    seen[seat_id] = observation
                    acting.append((seat, record, observation))
        if is_first:
            if self._is_training:
                self._recorder.begin(seen)
            self._add_before_first_action(step, done)
        else:
            self._add_transition(step, seen, done, back, anew)
        if done:
            self.agents_done |= done
        if back:
            self._begin_again(acting, back, anew)
        if self._frames is not None:
            self._frames.advance(step.observations)
        if self._observing is not None:
            self._observing.add(step.observations, step.state)
        logged = step.logged_actions
        requests = []
        for seat, record, observation in acting:
            record.has_begun = True
            action = log_prob = None
            if logged:
                action = seat.read_logged(logged)
                log_prob = seat.read_log_prob(step.logged_log_probs)
            requests.append(SeatRequest(seat, observation, record.module_state, action, log_prob))
        return requests

    def add_end(self, step: CheckedStep, *, has_acted: bool) -> None:
        """Records what followed from the last actions.

        Raises:
            ValueMismatch: as for `add_step`.
        """
        done = step.terminated | step.truncated
        if has_acted:
            self._add_transition(step, {}, done, is_end=True)
        else:
            self._add_before_first_action(step, done)
        for agent_id in self._last_actions:
            self.returns.setdefault(agent_id, 0.0)  # it has acted, and earned nothing

    def act(
        self, acted: dict[str, SeatAction], actions: Mapping[str, Any], weights_seq_no: int
    ) -> None:
        """Keeps the actions of a step until what followed from them comes.

        Args:
            acted: by seat id.
            actions: the same by agent, as sent to the simulation.
            weights_seq_no: version of the weights that chose them.
        """
        self._acted = acted
        for seat_id, action in acted.items():
            if action.module_state is not None:
                self._records[seat_id].module_state = action.module_state
        self._last_actions.update(actions)
        self._acting = actions.keys()
        self._weights_seq_no = weights_seq_no

    # --- rows ---------------------------------------------------------------------------

    @property
    def acting(self) -> Collection[str]:
        """Agents that acted in the last step."""
        return self._acting

    def last_actions_of(self, agents: Sequence[str]) -> np.ndarray:
        """Returns agents' last actions, float32 ``[A]``, -1 before the first."""
        last = self._last_actions
        return np.array([last.get(agent_id, NO_ACTION) for agent_id in agents], np.float32)

    def stacks(self) -> Mapping[str, np.ndarray]:
        """Returns what agents have read last, see `Frames`."""
        return {} if self._frames is None else self._frames.stacks

    def module_states_of(self, seats: Sequence[Seat]) -> Any:
        """Returns recurrent states after their last actions, ``[S, ...]``; None: initial ones.

        Where only some seats have acted, the states stay in a list.
        """
        states = [self._records[seat.seat_id].module_state for seat in seats]
        if all(state is None for state in states):
            return None
        return states if any(state is None for state in states) else stacked(states)

    def add_rows(self, steps: Sequence[tuple[RowStep, int]], *, is_first_recorded: bool) -> None:
        """Records steps in which the same seats act, as `add_step` and `act` would one by one.

        Args:
            steps: one after another, each with this episode's row in it. The last one may still
                wait for its actions.
            is_first_recorded: whether only the actions of the first one are new.
        """
        first, row = steps[0]
        benches = first.benches.benches
        if not is_first_recorded:
            self._observe_row(first, row)
        if len(steps) > 1 and self._is_training:
            self._recorder.add_rows(
                (one for i, bench in enumerate(benches) for one in _seat_rows(i, bench, steps)),
                [step.weights_seq_no for step, _ in steps[:-1]],
            )
        last, row = steps[-1]
        if self._frames is not None and last.frames is not None:
            self._frames.stacks.update(last.frames.of_row(row))
        for bench, sums in zip(benches, last.discounted, strict=False):
            ids = [seat.seat_id for seat in bench.seats]
            self._recorder.discounted.update(zip(ids, sums[row].tolist(), strict=True))
        agents = first.benches.lineup.agents
        if last.t[row]:
            self.returns.update(zip(agents, last.returns[row].tolist(), strict=True))
        if last.answer is None:
            self._acted = {}
            return
        acted = {}
        for bench, chosen in zip(benches, last.chosen, strict=True):
            for i, seat in enumerate(bench.seats):
                acted[seat.seat_id] = SeatAction(
                    chosen.actions[row, i],
                    at(chosen.extra_outputs, (row, i)),
                    at(chosen.module_state, (row, i)),
                )
        self.act(acted, last.actions_of(row), last.weights_seq_no)

    def _observe_row(self, step: RowStep, row: int) -> None:
        """Records what a step observed, and what followed from the actions before it."""
        if self._is_training:
            self._record_row(step, row)
        self._acted = {}
        for bench in step.benches.benches:
            for seat in bench.seats:
                self._records[seat.seat_id].has_begun = True

    def _record_row(self, step: RowStep, row: int) -> None:
        seen: dict[str, Any] = {}
        rewards: dict[str, float] = {}
        for bench, observed, own in zip(
            step.benches.benches, step.observations, step.rewards_by_bench, strict=True
        ):
            for i, seat in enumerate(bench.seats):
                seen[seat.seat_id] = at(observed, (row, i))
                rewards[seat.seat_id] = float(own[row, i])
        seen = {seat_id: seen[seat_id] for seat_id, _, _ in self._seated if seat_id in seen}
        if not step.t[row]:
            self._recorder.begin(seen)
            return
        self._recorder.add(
            acted=self._acted,
            observations=seen,
            rewards=rewards,
            terminated=set(),
            truncated=set(),
            is_last=False,
            weights_seq_no=self._weights_seq_no,
            are_scaled=bool(step.discounted),
        )

    def _add_before_first_action(self, step: CheckedStep, done: AgentIds) -> None:
        """Counts rewards and ends from before this server's first action.

        Other servers' agents brought them about, so such rewards are in the returns only.
        """
        self._sum(step)
        self._mark_done(done)

    def _find_anew(self, done: AgentIds, back: AgentIds) -> AgentIds:
        """Returns the seats that begin a new life: all of their members had ended, and one is back.

        A team of which others have stayed goes on, and whoever comes back to it was absent.
        """
        return {
            seat_id
            for seat_id, seat, record in self._seated
            if not back.isdisjoint(seat.members)
            and (record.members_done | done).issuperset(seat.members)
        }

    def _begin_again(
        self, acting: Collection[tuple[Seat, SeatRecord, Any]], back: AgentIds, anew: AgentIds
    ) -> None:
        """Gives seats that begin a new life a record of their own, and a new track."""
        begun = {seat.seat_id: (r, o) for seat, r, o in acting if seat.seat_id in anew}
        self._seated = [(s, seat, begun.get(s, (r,))[0]) for s, seat, r in self._seated]
        self._records = {seat_id: record for seat_id, _, record in self._seated}
        self.agents_done -= back
        for agent_id in back:
            self._last_actions.pop(agent_id, None)
        for _, seat, record in self._seated:
            # In a team that begins anew, those that are not back have still ended.
            record.members_done = self.agents_done.intersection(seat.members)
        if self._is_training:
            self._recorder.begin_again({s: observation for s, (_, observation) in begun.items()})

    def _add_transition(
        self,
        step: CheckedStep,
        seen: dict[str, Any],
        done: AgentIds,
        back: AgentIds = NOBODY,
        anew: AgentIds = NOBODY,
        *,
        is_end: bool = False,
    ) -> None:
        """Records what followed from the last actions.

        Args:
            step: that came.
            seen: what seats observe and act on next.
            done: agents that end.
            back: of these and of earlier ones, those that observe again.
            anew: seats for which this begins a new life.
            is_end: whether no step follows.
        """
        if anew:
            seen = {s: o for s, o in seen.items() if s not in anew}
        if self._is_training and step.truncated:
            missing = step.truncated.intersection(self._acting) - step.final_observations.keys()
            if missing:
                raise _no_final_observation(min(missing))
        is_recorded_end = bool(done) and self._is_training
        ends = self._find_ends(step, seen, done, back) if is_recorded_end else _NO_ENDS
        # Nothing has changed yet: a refusal above leaves the episode as it was.
        rewards = step.rewards
        self._sum(step)
        if self._is_training:
            num_here = 0
            of_seats: dict[str, float] = {}
            for seat_id, seat, record in self._seated:
                if record.is_done:
                    if any(map(rewards.get, seat.members)):
                        self.paid_late = seat_id
                    continue
                num_here += 1
                if record.has_begun and not rewards.keys().isdisjoint(seat.members):
                    of_seats[seat_id] = seat.reward(rewards)
            if num_here:
                self._recorder.add(
                    acted=self._acted,
                    observations=seen | ends.final_observations if done else seen,
                    rewards=of_seats,
                    terminated=ends.terminated,
                    truncated=ends.truncated,
                    is_last=is_end if self._agents_return else ends.num_seats == num_here,
                    weights_seq_no=self._weights_seq_no,
                )
                self._acted = {}
        if done:
            self._mark_done(done)

    def _find_ends(
        self, step: CheckedStep, seen: Mapping[str, Any], done: AgentIds, back: AgentIds
    ) -> _Ends:
        """Finds the seats that end, how, and what they observe then; changes nothing."""
        finals = step.final_observations
        # Beside its own final observation, a seat that ends sees what the others see now.
        last_seen = {**step.observations, **finals} if finals else {}
        if back:
            last_seen = {a: o for a, o in last_seen.items() if a not in back or a in finals}
        # A truncated agent is still observed, so that its value is bootstrapped. One that
        # terminates in the same step is not: it counts as departed already.
        departed = self.agents_done | (step.terminated - step.truncated)
        if_terminated = StepView(
            last_seen, step.state, departed, is_final=True, frames=self._frames
        )
        present = {agent_id: o for agent_id, o in last_seen.items() if agent_id not in departed}
        if_truncated = StepView(present, step.state, departed, is_final=True, frames=self._frames)
        num_seats = 0
        terminated: set[str] = set()
        truncated: set[str] = set()
        observations: dict[str, Any] = {}
        for seat_id, seat, record in self._seated:
            done_now = done.intersection(seat.members) - record.members_done
            if record.is_done or not done_now:
                continue
            if len(record.members_done | done_now) < len(seat.members):
                continue
            num_seats += 1
            if not record.has_begun:
                continue
            cut_short = done_now & step.truncated
            (truncated if cut_short else terminated).add(seat_id)
            if seat_id in seen:
                continue
            final = seat.observe(if_truncated if cut_short else if_terminated, record)
            if final is None and cut_short:
                final = self._last_known(seat_id, min(cut_short))
            if final is not None:
                observations[seat_id] = final
        return _Ends(num_seats, terminated, truncated, observations)

    def _last_known(self, seat_id: str, agent_id: str) -> Any:
        """Returns what a seat without a final observation is bootstrapped from."""
        if seat_id in self._acted:  # a member that terminates now acted, and others did not
            raise _no_final_observation(agent_id)
        return self._recorder.last_observation(seat_id)

    def _sum(self, step: CheckedStep) -> None:
        returns = self.returns
        for rewards in (step.rewards, step.late_rewards):
            for agent_id, reward in rewards.items():
                returns[agent_id] = returns.get(agent_id, 0.0) + reward
        if any(step.late_rewards.values()):
            self.paid_late = next(iter(step.late_rewards))

    def _mark_done(self, done: AgentIds) -> None:
        for _, seat, record in self._seated:
            record.members_done |= done.intersection(seat.members)
            record.is_done = len(record.members_done) == len(seat.members)


def _seat_rows(
    number: int, bench: Bench, steps: Sequence[tuple[RowStep, int]]
) -> Iterator[SeatRows]:
    """Yields the transitions of a bench's seats: from each step's actions to the next step."""
    observed, actions, rewards, outputs = columns_of(
        [step for step, _ in steps], number, [row for _, row in steps]
    )
    for i, seat in enumerate(bench.seats):
        where = (slice(None), i)
        yield SeatRows(
            seat.seat_id, at(observed, where), actions[where], rewards[where], at(outputs, where)
        )


def _no_final_observation(agent_id: str) -> ValueMismatch:
    return ValueMismatch(
        f"agent {agent_id!r} was truncated without its final observation, which its value is "
        "bootstrapped from",
        agent_id=agent_id,
        expected=f"final_observations[{agent_id!r}]",
        got="none",
    )
