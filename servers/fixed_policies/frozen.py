"""The policies of a checkpoint, acting as they were saved.

A module's observation space says how its policy was used: for a team, with an action mask apart,
beside a global state. So the config of the run that trained it is not needed, and a checkpoint of
plain RLlib will do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import msgspec
import numpy as np
import torch
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec

from muxrl.protocol.spaces import Space
from muxrl.servers.acting import Acting, Answer, Asked
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.running_statistics import RunningStatistics
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.spaces import split_state, without_bounds
from muxrl.servers.algorithms.registry import find_entry, seating_of
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, Checkpoint
from muxrl.servers.checkpoints.live import LiveCheckpoint
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.gymnasium_spaces import Spaces, spaces_of
from muxrl.servers.rllib.inference import TORCH_DRAWS, Inference
from muxrl.servers.rllib.numpy_mlp import NumpyPolicy, numpy_policy
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.acting import Actors

_OF_STATES = ("state_size", "use_global_state", "late_members")
"""Parts of a note that say what a central critic reads."""


class FrozenModules:
    """The modules of a checkpoint, and how agents are seated for them.

    Their files are pickles, which run the code in them when they are loaded. So they are loaded
    only to act; what they observe and do is read from the note beside them, if there is one.

    Attributes:
        seating: the one that they were trained with.

    Args:
        checkpoint: where they are.
        names: what a server's policies are called in the checkpoint, where that differs.
        may_run_code: whether a checkpoint without a note may be loaded to see what is in it.

    Raises:
        AlgorithmProblem: the checkpoint cannot be read, or has no policy of such a name.
    """

    def __init__(
        self, checkpoint: Checkpoint, names: Mapping[str, str], *, may_run_code: bool
    ) -> None:
        self._names = dict(names)
        self._checkpoint = checkpoint
        self._saved: dict[str, RLModule] = {}
        self._spaces = saved_spaces(checkpoint)
        if not self._spaces:
            if not may_run_code:
                raise AlgorithmProblem(
                    f"checkpoint {str(checkpoint.path)!r} has no {ABOUT_FILE}, so only its pickles "
                    "say what its policies observe. Reading these would run the code in them, "
                    "which a check does not do; a launch does, so trust the checkpoint first"
                )
            self._load()
        self.seating = seating_of([observed for observed, _ in self._spaces.values()])
        if checkpoint.algorithm is not None:
            # What a policy observes does not say whether it was one agent's by default.
            trained = find_entry(checkpoint.algorithm).seating
            self.seating = replace(
                self.seating,
                shares_policies=trained.shares_policies,
                one_choice=trained.one_choice,
            )
        for policy_id, name in self._names.items():
            if name not in self._spaces:
                raise AlgorithmProblem(self._no_policy(policy_id, name))

    def _load(self) -> None:
        self._saved = self._checkpoint.load_modules()
        self._spaces = {
            name: (module.observation_space, module.action_space)
            for name, module in self._saved.items()
        }

    def make_inference(self, plan: ServerPlan) -> Inference | Actors:
        """Loads the modules for a server, with the code in their files; returns what acts.

        Raises:
            AlgorithmProblem: they cannot be loaded, or are not what the note says.
        """
        if not self._saved:
            self._load()
            for problem in self.find_problems(plan):
                raise AlgorithmProblem(f"{problem} (its {ABOUT_FILE} says otherwise)")
        num_env_steps = self._checkpoint.env_steps
        inference = Inference(
            lambda: self.build(plan), seed=plan.seed, on_gpu=plan.resources.num_gpus > 0
        )
        inference.num_env_steps_sampled = num_env_steps
        return inference

    def build(self, plan: ServerPlan) -> MultiRLModule:
        """Builds a module for each of a server's policies; they have been loaded.

        Raises:
            AlgorithmProblem: the checkpoint lacks one.
        """
        names = self.names_of(plan)
        modules = MultiRLModuleSpec(
            rl_module_specs={
                policy_id: RLModuleSpec.from_module(self._saved[name])
                for policy_id, name in names.items()
            }
        ).build()
        modules.set_state({p: self._saved[name].get_state() for p, name in names.items()})
        for _, module in modules.items():
            module.eval()
        return modules

    def observing(self, plan: ServerPlan) -> Observing:
        """Returns what reads a server's observations as they were read in training, without the
        statistics."""
        about = self._checkpoint.about
        return Observing(
            plan.agents,
            about.get("scale_observations", "none"),
            normalizes=about.get("normalize_observations", False),
            frame_stack=about.get("frame_stack", 1),
        )

    @property
    def state_size(self) -> int | None:
        """Length of the simulation's global state in training; None: it sent none."""
        size: int | None = self._checkpoint.about.get("state_size")
        return size

    def load_critics(self, plan: ServerPlan) -> tuple[dict[str, RLModule], dict[str, Seat]]:
        """Returns whole modules by a server's policies, and seats that observe what they read.

        Raises:
            AlgorithmProblem: they cannot be loaded.
        """
        about, whole = self._checkpoint.about, self._checkpoint.load_modules(only_acting=False)
        modules = {policy_id: whole[name] for policy_id, name in self.names_of(plan).items()}
        plan = replace(plan, **{part: about[part] for part in _OF_STATES if part in about})
        return modules, self.make_seats(plan, self.observing(plan), has_states=True)

    def reward_deviation(self, plan: ServerPlan, policy_id: str) -> float:
        """Returns what a policy's rewards were divided by in the end, 1 if they were not."""
        states = self._checkpoint.read_normalization()["rewards"]
        scale = RunningStatistics(())
        if (name := self.names_of(plan)[policy_id]) in states:
            scale.set_state(states[name])
        return float(scale.variance) ** 0.5 or 1.0

    def make_seats(
        self, plan: ServerPlan, observing: Observing, *, has_states: bool = False
    ) -> dict[str, Seat]:
        """Returns a server's seats by id.

        Args:
            plan: the server.
            observing: its own; gets the statistics of training, which do not change any more.
            has_states: whether those of global states are needed: not to act.

        Raises:
            AlgorithmProblem: the statistics cannot be read.
        """
        seats = self.seating.make_seats(plan, observing)
        if observing.normalizes:
            try:
                statistics = self._checkpoint.read_normalization()["observations"]
                names = self.names_of(plan)
                observing.set_state(statistics, names=names, has_states=has_states)
            except (OSError, KeyError, ValueError) as error:
                raise AlgorithmProblem(
                    f"the statistics of checkpoint {str(self._checkpoint.path)!r} cannot be read: "
                    f"{error}"
                ) from error
        observing.freeze()
        return seats

    def find_problems(self, plan: ServerPlan) -> Iterator[str]:
        """Yields a sentence for each reason why they cannot act for a server's agents."""
        ours = {agent.policy_id for agent in plan.agents.values()}
        unknown = [policy_id for policy_id in self._names if policy_id not in ours]
        if unknown:
            yield (
                f"FROZEN's setting 'policies' names the policy {unknown[0]!r}, which the server "
                f"does not have: it has {', '.join(sorted(ours))}"
            )
            return
        try:
            names = self.names_of(plan)
            seats = self.seating.make_seats(plan, self.observing(plan))
        except ValueError as error:
            yield str(error)
            return
        yield from self._unlike_readings(plan, names)
        told: set[str] = set()
        for seat_id, seat in seats.items():
            if seat.policy_id in told:
                continue
            observation_space, action_space = self._spaces[names[seat.policy_id]]
            sees, acts = spaces_of(seat)
            unread = self.seating.unread(self._checkpoint.about)
            seen = _observed(sees, unread)
            expected = _observed(observation_space, unread)
            if seen != expected:
                verb = "observes"
            elif acts != action_space:
                verb, seen, expected = "acts in", acts, action_space
            else:
                continue
            told.add(seat.policy_id)
            cause = (
                "are the groups as they were" if self.seating.forms_teams else "is it the same task"
            )
            path = str(self._checkpoint.path)
            yield (
                f"policy {names[seat.policy_id]!r} of checkpoint {path!r} {verb} "
                f"{_shown(expected)}, but {seat_id!r} {verb} {_shown(seen)}; {cause}?"
            )

    def _unlike_readings(self, plan: ServerPlan, names: Mapping[str, str]) -> Iterator[str]:
        """Yields a sentence for each agent whose observations were read in another way."""
        about = self._checkpoint.about
        scales = about.get("scale_observations", "none") != "none"
        if not scales and not about.get("normalize_observations", False):
            return
        theirs: dict[str, set[str]] = {}
        for agent in plan_of(about).agents.values():
            theirs.setdefault(agent.policy_id, set()).add(_kind(agent, with_bounds=scales))
        for agent_id, agent in plan.agents.items():
            name, kind = names[agent.policy_id], _kind(agent, with_bounds=scales)
            if kind not in theirs[name]:
                yield (
                    f"policy {name!r} of checkpoint {str(self._checkpoint.path)!r} has learned "
                    f"to read {min(theirs[name])}, scaled or normalised, but {agent_id!r} observes "
                    f"{kind}; is it the same task?"
                )

    def names_of(self, plan: ServerPlan) -> dict[str, str]:
        """Returns what each of a server's policies is called in the checkpoint."""
        names: dict[str, str] = {}
        for policy_id in dict.fromkeys(agent.policy_id for agent in plan.agents.values()):
            name = self._names.get(policy_id, policy_id)
            if name not in self._spaces and len(self._spaces) == 1:
                name = next(iter(self._spaces))  # only one can be meant
            if name not in self._spaces:
                raise AlgorithmProblem(self._no_policy(policy_id, name))
            names[policy_id] = name
        return names

    def _no_policy(self, policy_id: str, name: str) -> str:
        return (
            f"checkpoint {str(self._checkpoint.path)!r} has no policy {name!r}, it has "
            f"{', '.join(self._spaces)}; say which is which with the setting 'policies', as "
            f"{{{policy_id}: {next(iter(self._spaces), '...')}}}"
        )


class FrozenActing(Acting):
    """Acts with the checkpoint's weights.

    Whether actions are drawn is a setting of the server and not of an episode, so that an opponent
    is the same in training and in evaluation.

    Args:
        plan: the server.
        modules: that fit it.
        should_explore: whether actions are drawn as in training, at the point where it ended;
            else the likeliest one, or the one of the highest value, is taken.

    Raises:
        AlgorithmProblem: the modules cannot be loaded, or do not fit after all.
    """

    def __init__(self, plan: ServerPlan, modules: FrozenModules, *, should_explore: bool) -> None:
        self._should_explore = should_explore
        self._inference = modules.make_inference(plan)
        self._inference.needs_log_probabilities = False
        self._torch_state = torch.Generator().manual_seed(plan.seed).get_state()

    def networks(self) -> dict[str, NumpyPolicy] | None:
        """Returns those that choose one of n, as they are now; None: not all policies are such."""
        if not isinstance(self._inference, Inference) or self._inference.is_on_gpu:
            return None
        modules = dict(self._inference.modules.items())
        if not all(isinstance(m.action_space, gymnasium.spaces.Discrete) for m in modules.values()):
            return None
        found = {policy_id: numpy_policy(module) for policy_id, module in modules.items()}
        return None if None in found.values() else found  # type: ignore[return-value]

    def noise(self, shape: tuple[int, ...], *, is_training: bool) -> np.ndarray:
        """Returns what the logits of `networks` are drawn with next; see `Inference.noise`."""
        if not self._should_explore:
            return np.ones(shape)
        assert isinstance(self._inference, Inference)
        return self._inference.noise(shape, is_training=is_training)

    def load(self, state: Mapping[str, Any], newer: LiveCheckpoint) -> None:
        """Acts with newer weights from now on, by the server's policies."""
        self._inference.load(state, newer.about["weights_seq_no"])
        self._inference.num_env_steps_sampled = newer.env_steps

    def get_random_state(self) -> dict[str, Any]:
        return {**self._inference.get_random_state(), "torch": self._torch_state.numpy()}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        self._inference.set_random_state(state)
        self._torch_state = torch.from_numpy(state["torch"])

    def answer(self, asked: Asked) -> Answer:
        asked.should_explore = self._should_explore
        with self._exploring(), self._inference.lock:
            return self._inference.answer(asked)

    @contextlib.contextmanager
    def _exploring(self) -> Iterator[None]:
        """Has draws go on from this object's own generator.

        Most modules and distributions draw from torch's global one, which nobody seeds here, and
        which a learner in the same process draws from.
        """
        if not self._should_explore:
            yield
            return
        with TORCH_DRAWS:
            before = torch.get_rng_state()  # `fork_rng` would take twice as long
            torch.set_rng_state(self._torch_state)
            try:
                yield
            finally:
                self._torch_state = torch.get_rng_state()
                torch.set_rng_state(before)


def _kind(agent: AgentPlan, *, with_bounds: bool) -> str:
    space = split_state(agent.observation_space)[0]
    return repr(space) if with_bounds else str(without_bounds(space))


def _observed(space: gymnasium.Space, unread: Collection[str]) -> Any:
    """The part of an observation space that a network must match to act: shapes, not bounds."""
    if isinstance(space, gymnasium.spaces.Dict):
        parts = space.spaces.items()
        return {key: _observed(sub, unread) for key, sub in parts if key not in unread}
    return space.shape if isinstance(space, gymnasium.spaces.Box) else space


def _shown(space: Any) -> str:
    if isinstance(space, dict):
        return "{" + ", ".join(f"{key}: {_shown(sub)}" for key, sub in space.items()) + "}"
    return f"shape {space}" if isinstance(space, tuple) else str(space)


def saved_spaces(checkpoint: Checkpoint) -> dict[str, Spaces]:
    """Returns the spaces of each policy by its name, read from the checkpoint's note.

    RLlib's own files hold them, too, but they are pickles: reading one runs the code in it.

    Returns:
        {} if the checkpoint has no note.

    Raises:
        AlgorithmProblem: the note cannot be understood.
    """
    if not checkpoint.about:
        return {}
    try:
        algorithm = find_entry(checkpoint.about["algorithm"])
        seats = algorithm.seating.make_seats(plan_of(checkpoint.about))
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # it may have been edited
        raise AlgorithmProblem(
            f"the {ABOUT_FILE} of checkpoint {str(checkpoint.path)!r} cannot be understood: "
            f"{type(error).__name__}: {error}; was it edited?"
        ) from error
    return {seat.policy_id: spaces_of(seat) for seat in seats.values()}


def plan_of(about: Mapping[str, Any]) -> ServerPlan:
    """Returns the plan of the server that was saved, as far as its seats depend on it.

    What the note leaves out makes a difference to the global state at most, which no policy acts
    on.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the note cannot be understood.
    """
    return ServerPlan(
        server_id=about["server_id"],
        algorithm=about["algorithm"],
        agents={
            agent_id: AgentPlan(
                agent["policy"],
                msgspec.convert(agent["observation_space"], Space),
                msgspec.convert(agent["action_space"], Space),
                agent["group"],
            )
            for agent_id, agent in about["agents"].items()
        },
        groups={group: tuple(members) for group, members in about["groups"].items()},
        state_size=about["state_size"],
        scale_observations=about["scale_observations"],
        normalize_observations=about["normalize_observations"],
        frame_stack=about["frame_stack"],
    )
