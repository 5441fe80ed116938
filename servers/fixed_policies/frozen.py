"""Policies as a checkpoint holds them: their own run's, or another one's opponents.

How a policy was used, for a team, with an action mask apart, beside a global state, is told by
the observation space that its module was built with. So it needs no config of the run that
trained it, and a checkpoint of plain RLlib will do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec

from servers.algorithms.qmix.team import ACTION_MASK, STATE, TEAM_KEYS
from servers.algorithms.settings import AlgorithmProblem
from servers.checkpoint import Checkpoint
from servers.config import ServerPlan
from servers.episodes import PendingStep
from servers.inference import Inference
from servers.seats import Seat, make_seats


class FrozenActing:
    """Acts with the checkpoint's weights, for ever; see `servers.policies.Acting`.

    Whether actions are drawn is a setting of the server, not the wish of an episode: an opponent
    is the same in training and in evaluation.

    Args:
        plan: the server.

    Raises:
        AlgorithmProblem: the checkpoint cannot be loaded, or lacks a policy.
    """

    def __init__(self, plan: ServerPlan) -> None:
        self.weights_seq_no = 0
        self._should_explore: bool = plan.settings["should_explore"]
        self._inference = Inference(lambda: load_policies(plan), seed=plan.seed)
        self._inference.needs_log_probabilities = False
        self._inference.num_env_steps_sampled = _checkpoint_of(plan).env_steps

    def act(self, steps: Sequence[PendingStep]) -> int:
        for step in steps:
            step.should_explore = self._should_explore
        self._inference.act(steps)
        return self.weights_seq_no


def load_policies(plan: ServerPlan) -> MultiRLModule:
    """Builds a module for each of a server's policies, from those of its checkpoint.

    Raises:
        AlgorithmProblem: the checkpoint cannot be loaded, or lacks a policy.
    """
    checkpoint = _checkpoint_of(plan)
    saved = checkpoint.load_modules()
    names = _names_in(checkpoint, saved, plan)
    modules = MultiRLModuleSpec(
        rl_module_specs={p: RLModuleSpec.from_module(saved[name]) for p, name in names.items()}
    ).build()
    modules.set_state({policy_id: saved[name].get_state() for policy_id, name in names.items()})
    for _, module in modules.items():
        module.eval()
    return modules


def _checkpoint_of(plan: ServerPlan) -> Checkpoint:
    return Checkpoint.open(Path(plan.settings["checkpoint"]))


def _names_in(
    checkpoint: Checkpoint, saved: Mapping[str, RLModule], plan: ServerPlan
) -> dict[str, str]:
    """Returns what each of the server's policies is called in the checkpoint."""
    given: Mapping[str, str] = plan.settings["policies"]
    ours = list(dict.fromkeys(agent.policy_id for agent in plan.agents.values()))
    for policy_id in given:
        if policy_id not in ours:
            raise AlgorithmProblem(
                f"settings.policies names the policy {policy_id!r}, which the server does not "
                f"have: it has {', '.join(ours)}"
            )
    names: dict[str, str] = {}
    for policy_id in ours:
        name = given.get(policy_id, policy_id)
        if policy_id not in given and name not in saved and len(saved) == 1:
            name = next(iter(saved))  # there is no doubt which one is meant
        if name not in saved:
            raise AlgorithmProblem(
                f"checkpoint {str(checkpoint.path)!r} has no policy {name!r}, it has "
                f"{', '.join(saved)}; say which is which with settings.policies, as "
                f"{{{policy_id}: {next(iter(saved))}}}"
            )
        names[policy_id] = name
    return names


def is_of_teams(settings: Mapping[str, Any]) -> bool:
    """Whether the checkpoint's policies act for teams.

    Raises:
        AlgorithmProblem: it cannot be loaded.
    """
    modules = Checkpoint.open(Path(settings["checkpoint"])).load_modules()
    return any(_keys(module.observation_space) == set(TEAM_KEYS) for module in modules.values())


def frozen_seats(plan: ServerPlan, modules: MultiRLModule) -> dict[str, Seat]:
    """Returns the seats whose observations these modules read."""
    keys = [_keys(module.observation_space) for _, module in modules.items()]
    alone = [k for k in keys if k != set(TEAM_KEYS)]
    return make_seats(
        dataclasses.replace(
            plan,
            is_central=any(STATE in k for k in alone),
            follows_masks=any(ACTION_MASK in k for k in alone),
        )
    )


def find_mismatches(seats: Mapping[str, Seat], modules: MultiRLModule) -> Iterator[str]:
    """Yields a sentence for each seat whose spaces are not those its policy was trained with."""
    for seat_id, seat in seats.items():
        module = modules[seat.policy_id]
        for kind, ours, theirs in (
            ("observes", _observed(seat.observation_space), _observed(module.observation_space)),
            ("acts in", seat.action_space, module.action_space),
        ):
            if ours != theirs:
                yield (
                    f"policy {seat.policy_id!r} of the checkpoint {kind} {_shown(theirs)}, but "
                    f"{seat_id!r} {kind} {_shown(ours)} here; was it trained in another simulation?"
                )


def _keys(space: gymnasium.Space) -> set[str]:
    return set(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else set()


def _observed(space: gymnasium.Space) -> Any:
    """What of an observation decides whether a network can read it: shapes, not bounds.

    The global state does not: only critics and mixers see it, which have no part in acting.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _observed(sub) for key, sub in space.spaces.items() if key != STATE}
    return space.shape if isinstance(space, gymnasium.spaces.Box) else space


def _shown(space: Any) -> str:
    if isinstance(space, dict):
        return "{" + ", ".join(f"{key}: {_shown(sub)}" for key, sub in space.items()) + "}"
    return f"the shape {space}" if isinstance(space, tuple) else str(space)
