"""The policies of a checkpoint as functions, without a server: what `muxrl.load_policy` returns."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.protocol.spaces import Discrete, Space
from muxrl.protocol.values import conform
from muxrl.servers.agents.frames import Frames
from muxrl.servers.agents.log_probs import DISTRIBUTION, log_probs_of
from muxrl.servers.agents.seats import Seat, SeatAction, SeatRecord, SeatRequest, StepView
from muxrl.servers.agents.team_seats import TeamSeat
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, Checkpoint
from muxrl.servers.fixed_policies.frozen import plan_of
from muxrl.servers.fixed_policies.frozen_trainers import open_policies
from muxrl.servers.rllib.inference import Inference
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.acting import Actors


class LoadedPolicy:
    """The greedy policy of one agent; what it remembers is of one episode.

    Args:
        agent_id: the agent.
        space: of its observations.
        action_space: of its actions.
        seat: its own, or its team's, of which it acts alone: RLlib's act on nothing of the others.
        inference: acts for the whole checkpoint.
    """

    def __init__(
        self,
        agent_id: str,
        space: Space,
        action_space: Space,
        seat: Seat,
        inference: Inference | Actors,
    ) -> None:
        self._agent_id = agent_id
        self._space = space
        self._action_space = action_space
        self._seat = seat
        self._inference = inference
        self.reset()

    def reset(self) -> None:
        """Begins an episode: forgets recurrent state, last action and frames."""
        self._record = SeatRecord()
        size = self._seat.frame_stack
        self._frames = Frames(size) if size > 1 else None

    @property
    def remembers(self) -> bool:
        """Whether more than the observation may decide: recurrent state, frames, own classes."""
        inference = self._inference
        return isinstance(inference, Actors) or inference.is_stateful or self._frames is not None

    def __call__(self, observation: Any, is_asked: bool = True) -> Any:
        """Returns the action for an observation, both as the simulation has them.

        In a team with a GRU, call it with `is_asked` False and any observation where others of
        the team act and this agent does not; it returns None then.

        Raises:
            Mismatch: the observation is not of the agent's space.
            ValueMismatch: its action mask forbids every action.
        """
        if not is_asked:
            if isinstance(self._seat, TeamSeat):
                absent = self._answer(self._seat.policy_id, self._seat.observe_nobody())
                self._record.module_state = absent.module_state
            return None
        record, answer = self._record, self._ask(observation)
        actions = self._seat.act(answer.action, [self._agent_id])
        record.has_begun, record.module_state = True, answer.module_state
        record.last_actions = actions
        if self._frames is not None:
            self._frames.advance([self._agent_id])
        return actions[self._agent_id]

    def reads(self, observation: Any) -> tuple[str, Any]:
        """Returns the policy's id, and what its network reads of an observation.

        Raises:
            Mismatch, ValueMismatch: as when it is called.
        """
        seen = {self._agent_id: conform(self._space, observation)}
        view = StepView(seen, frames=self._frames)
        return self._seat.policy_id, self._seat.observe(view, self._record)

    def probabilities(self, observation: Any) -> NDArray[np.float64]:
        """Returns how likely training drew each Discrete action here, ``[n]``; does not act.

        Raises:
            AlgorithmProblem: the policy draws no Discrete actions.
            Mismatch, ValueMismatch: as when it is called.
        """
        logits = self._ask(observation).extra_outputs.get(DISTRIBUTION)
        if logits is None or not isinstance(self._action_space, Discrete):
            raise AlgorithmProblem(
                f"the policy of agent {self._agent_id!r} gives its actions, {self._action_space}, "
                "no probabilities; PPO's and other policy gradients' do, if actions are Discrete"
            )
        return np.exp(log_probs_of(np.asarray(logits, np.float64)))

    def _ask(self, observation: Any) -> SeatAction:
        return self._answer(*self.reads(observation))

    def _answer(self, policy_id: str, seen: Any) -> SeatAction:
        request = SeatRequest(self._seat, seen, self._record.module_state)
        (answer,) = self._inference.act_greedily(policy_id, [request])
        return answer


def load_checkpoint(path: Path) -> dict[str, LoadedPolicy]:
    """Returns the policy of each agent of a server's checkpoint.

    Its files are pickles, whose code is run: load only what you trust.

    Raises:
        AlgorithmProblem: it cannot be read, plain RLlib wrote it, or it acts for a team at once.
    """
    checkpoint = Checkpoint.open(path)
    if not checkpoint.about:
        raise AlgorithmProblem(f"checkpoint {str(path)!r} has no {ABOUT_FILE}: did RLlib write it?")
    modules = open_policies(checkpoint, {}, may_run_code=True)
    # A member acts alone here; what a mixer or critic sees does not matter.
    plan = dataclasses.replace(plan_of(checkpoint.about), late_members="allow", state_size=None)
    inference = modules.make_inference(plan)
    seats = modules.make_seats(plan, modules.observing(plan))
    is_team = any(len(seat.members) > 1 for seat in seats.values())
    if is_team and isinstance(inference, Actors):
        raise AlgorithmProblem(
            f"{checkpoint.algorithm} acts for a team at once, and these are policies of one agent "
            "each; a FROZEN server acts for the team"
        )
    seat_of = {member: seat for seat in seats.values() for member in seat.members}
    seat_of |= {agent_id: seat for agent_id, seat in seats.items() if agent_id in plan.agents}
    return {
        agent_id: LoadedPolicy(
            agent_id, agent.observation_space, agent.action_space, seat_of[agent_id], inference
        )
        for agent_id, agent in plan.agents.items()
    }
