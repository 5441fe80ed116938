"""What every learning server needs to continue as if it had never stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.servers.agents.observing import Observing
from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.training.policies import ServerProblem

logger = logging.getLogger(__name__)

State = dict[str, Any]
"""Plain values and arrays; see `muxrl.servers.checkpoints.state_file`."""


@contextlib.contextmanager
def raised_by(plan: ServerPlan, what: str, path: str) -> Iterator[None]:
    """Turns exceptions into a `ServerProblem` that names the server and the checkpoint."""
    try:
        yield
    except Exception as error:  # a trainer may raise anything
        # A ValueError of `Checkpoint` is a sentence already.
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ServerProblem(
            f"server {plan.server_id!r} cannot {what} {path!r}: {reason}"
        ) from error


@dataclasses.dataclass(frozen=True)
class Normalization:
    """The statistics of a checkpoint, without which its weights mean little.

    Attributes:
        observing: reads the observations.
        rewards: by policy; {}: rewards are learned as they come.
    """

    observing: Observing
    rewards: Mapping[str, RewardScale] = dataclasses.field(default_factory=dict)

    def get_state(self) -> dict[str, Any]:
        """Returns all statistics, as plain values and arrays; to be called in the acting thread."""
        return {
            "observations": self.observing.get_state(),
            "rewards": {policy_id: scale.get_state() for policy_id, scale in self.rewards.items()},
        }

    def set_state(self, state: Mapping[str, Any], names: Mapping[str, str] | None = None) -> None:
        """Continues with statistics that `get_state` returned; a missing reward scale begins anew.

        Args:
            state: maybe of another server.
            names: names of policies in the state, if they differ.

        Raises:
            ValueError: the state is of other observations.
        """
        self.observing.set_state(state["observations"], names=names)
        for policy_id, scale in self.rewards.items():
            there = (names or {}).get(policy_id, policy_id)
            if there in state["rewards"]:
                scale.set_state(state["rewards"][there])


def get_random_state() -> State:
    """Returns the state of the process's common random generators, with torch's if it is loaded."""
    state: State = {
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state().numpy()
        if torch.cuda.is_initialized():
            state["cuda"] = [s.numpy() for s in torch.cuda.get_rng_state_all()]
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restores the process's common random generators to such a state."""
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    torch: Any = sys.modules.get("torch")
    if torch is not None and "torch" in state:
        torch.set_rng_state(torch.from_numpy(state["torch"]))
        if "cuda" in state and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all([torch.from_numpy(s) for s in state["cuda"]])


def as_begun(plan: ServerPlan, defaults: Mapping[str, Any]) -> ServerPlan:
    """Returns the plan with the settings that `plan.resume_from` was begun with.

    A default that has changed since then keeps its old value; a setting of the user comes first.

    Args:
        plan: of the server that continues.
        defaults: every setting of its algorithm, with today's default.

    Raises:
        ServerProblem: there is no such checkpoint, or it is of another server.
    """
    with raised_by(plan, "resume from", plan.resume_from):
        checkpoint = Checkpoint.open(Path(plan.resume_from))
        checkpoint.check_resumable(plan)
        settings = checkpoint.settings_as_begun(plan, defaults)
    kept = [f"{name}: {settings[name]}" for name in settings if name not in plan.settings]
    if kept:
        logger.info(
            "server %r keeps the defaults that it began with, although they have changed since: %s",
            plan.server_id,
            ", ".join(kept),
        )
    return dataclasses.replace(plan, settings=settings)
