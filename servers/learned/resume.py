"""What a server needs to go on as if it had never stopped, beside RLlib's own checkpoint.

RLlib saves weights, target networks, optimizers and metrics. It leaves out replays, random
generators, and what its learners keep beside weights (see `learner_tables`). It knows nothing of
what a server has counted, nor of the episodes that have ended and are not learned yet. Open
episodes are not saved: a server that is started again does not know them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from ray.rllib.algorithms.algorithm import Algorithm

from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.checkpoints.formats import OtherFormat
from muxrl.servers.checkpoints.resuming import Normalization, State, told_of
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.warnings import Warnings
from muxrl.servers.rllib.learner_tables import set_tables

logger = logging.getLogger(__name__)


class SavesReplay(Protocol):
    """An algorithm that learns from a replay, whose content can be saved."""

    def count_replay_bytes(self) -> int:
        """Returns the size of what is stored."""

    def get_replay_state(self) -> State:
        """Returns what is stored, as plain values and arrays."""

    def set_replay_state(self, state: Mapping[str, Any]) -> None:
        """Goes on with what was stored.

        Raises:
            ValueError: it does not fit.
        """

    def refill_replay(self, env_steps: int) -> None:
        """Has learning wait, after so many env steps, until there is enough in the replay again."""


def replay_of(algo: Algorithm) -> SavesReplay | None:
    """Returns the algorithm if it learns from a replay."""
    learns_from_replay: Any = algo if hasattr(algo, "get_replay_state") else None
    return learns_from_replay


# --- saving ---------------------------------------------------------------------------------


def find_not_finite(algo: Algorithm) -> str:
    """Returns the name of a parameter, or of an optimizer's state, that holds NaN or infinity.

    So does a parameter whose square would be infinite: nothing is computed with it.
    """
    learner: Any = algo.learner_group._learner
    held = {
        f"parameter {name!r} of policy {policy_id!r}": parameter.detach().square()
        for policy_id, module in learner.module.items()
        for name, parameter in module.named_parameters()
    }
    for name, optimizer in learner._named_optimizers.items():
        for i, state in enumerate(optimizer.state.values()):
            for key, value in state.items():
                held[f"{key} of parameter {i} in optimizer {name!r}"] = value
    tensors = {n: t for n, t in held.items() if torch.is_tensor(t) and t.is_floating_point()}
    return next((name for name, t in tensors.items() if not t.isfinite().all()), "")


# --- going on -------------------------------------------------------------------------------


def restore(algo: Algorithm, plan: ServerPlan, checkpoint: Checkpoint, warnings: Warnings) -> State:
    """Puts an algorithm where a checkpoint was written, and returns the checkpoint's state.

    Settings that have changed take effect. The plan is one of `as_begun`.
    """
    changes = checkpoint.find_changed_settings(plan)
    for change in changes.values():
        logger.info("server %r goes on with another setting: %s", plan.server_id, change)
    learner: Any = algo.learner_group._learner
    networks = checkpoint.read_networks()
    _check_networks(learner, networks, list(changes.values()))
    state = checkpoint.read_state()
    trainer = state["trainer"]
    fresh = {name: _hyperparameters(o) for name, o in learner._named_optimizers.items()}
    algo.restore_from_path(checkpoint.path)
    _load(learner, networks)
    set_tables(learner, state["learner"], changed=changes.keys())
    if changes:
        _set_hyperparameters(learner, fresh, trainer["env_steps"])
    if why := _restore_replay(algo, checkpoint, trainer["env_steps"]):
        warnings.add(
            "resumed without replay",
            f"server {plan.server_id!r} goes on with an empty replay, since the checkpoint has "
            f"none that can be read ({why}); learning goes on when enough is in it again",
        )
    logger.info(
        "server %r goes on from %s: iteration %d, %d env steps",
        plan.server_id,
        checkpoint.path,
        trainer["iteration"],
        trainer["env_steps"],
    )
    return state


def initialize(algo: Algorithm, plan: ServerPlan, normalization: Normalization) -> None:
    """Begins with the weights of `plan.initialize_from`, and with the statistics that these have
    learned with. By `plan.initialize_only` critics, mixers and target networks are among them.

    Raises:
        ServerProblem: there is no such checkpoint, or its policies are not the server's.
    """
    with told_of(plan, "begin with the policies of", plan.initialize_from):
        checkpoint = Checkpoint.open(Path(plan.initialize_from))
        checkpoint.check_same_policies(plan)
        learner: Any = algo.learner_group._learner
        saved = checkpoint.read_networks()
        policies = [name for name, _ in learner.module.items()]
        sources = {name: plan.initialize_policies.get(name, name) for name in policies}
        networks = {name: saved[source] for name, source in sources.items() if source in saved}
        if plan.initialize_only == "actor":
            networks = {n: _with_own_critic(learner.module[n], w) for n, w in networks.items()}
        _check_networks(learner, networks, [])
        _load(learner, networks)
        if plan.normalize_observations or plan.normalize_rewards:
            normalization.set_state(checkpoint.read_normalization(), sources)
        algo.env_runner_group.sync_weights(
            from_worker_or_learner_group=algo.learner_group, inference_only=True
        )
    logger.info("server %r begins with the policies of %s", plan.server_id, checkpoint.path)


def _with_own_critic(module: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a module's parameters, those that act as saved."""
    acting = module.unwrapped().get_state(inference_only=True)
    own: dict[str, Any] = module.unwrapped().get_state()
    return {key: saved.get(key) if key in acting else value for key, value in own.items()}


def _check_networks(
    learner: Any, networks: Mapping[str, Mapping[str, Any]], changes: list[str]
) -> None:
    """RLlib would leave out parameters that only one of both has."""
    hint = f"; changed settings: {', '.join(changes)}" if changes else ""
    for module_id, module in learner.module.items():
        if module_id not in networks:
            raise ValueError(
                f"it has no policy {module_id!r}, only {', '.join(map(repr, sorted(networks)))}"
            )
        ours = {k: _shape(v) for k, v in module.unwrapped().get_state().items()}
        theirs = {k: _shape(v) for k, v in networks[module_id].items()}
        for key in (*theirs, *ours):
            if ours.get(key) != theirs.get(key):
                raise ValueError(
                    f"the network of policy {module_id!r} is another: {key!r} has the shape "
                    f"{theirs.get(key, 'none')} there and {ours.get(key, 'none')} here{hint}"
                )


def _load(learner: Any, networks: Mapping[str, Mapping[str, Any]]) -> None:
    """As RLlib does, which makes 32-bit numbers of 64-bit ones without dimensions, such as MAPPO's
    statistics."""
    for module_id, module in learner.module.items():
        for key, parameter in module.unwrapped().state_dict().items():
            if isinstance(parameter, torch.Tensor):
                parameter.copy_(torch.from_numpy(np.array(networks[module_id][key])))


def _shape(parameter: Any) -> tuple[int, ...]:
    return tuple(getattr(parameter, "shape", ()))


def _restore_replay(algo: Algorithm, checkpoint: Checkpoint, env_steps: int) -> str:
    """Returns why the replay is empty; "" if it is as it was saved, or there is none."""
    replay = replay_of(algo)
    if replay is None:
        return ""
    state = checkpoint.read_replay()
    why: str = checkpoint.about.get("replay", {}).get("left_out", "it was not written")
    if state is not None:
        try:
            replay.set_replay_state(state)
        except OtherFormat as error:
            why = str(error)
        else:
            return ""
    replay.refill_replay(env_steps)
    return why


def _hyperparameters(optimizer: torch.optim.Optimizer) -> list[State]:
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def _set_hyperparameters(learner: Any, fresh: Mapping[str, list[State]], env_steps: int) -> None:
    """Puts back what the settings say, since an optimizer's state brings the old ones along."""
    for name, optimizer in learner._named_optimizers.items():
        for group, now in zip(optimizer.param_groups, fresh[name], strict=True):
            if group.keys() - {"params"} != now.keys():
                raise ValueError(f"its optimizer {name!r} is another than {type(optimizer)}")
            group.update(now)
        schedule = learner._optimizer_lr_schedules.get(optimizer)
        if schedule is not None:
            learner._set_optimizer_lr(optimizer, lr=schedule.update(timestep=env_steps))
