"""Checkpoints of servers that have not learned, without Ray: for what is done with a checkpoint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tree
from ray.rllib.policy.policy import PolicySpec
from tests.servers.scripted_store import make_plan

from muxrl.protocol.spaces import Space
from muxrl.servers.agents.masks import has_action_mask
from muxrl.servers.agents.observing import Observing
from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.checkpoints.checkpoint import _MODULES, ABOUT_FILE, STATE_FILE, note_of
from muxrl.servers.checkpoints.resuming import Normalization
from muxrl.servers.checkpoints.state_file import write_state
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.gymnasium_spaces import spaces_of, to_gymnasium

SMALL = {"fcnet_hiddens": [8]}


def plan_of(
    algorithm: str,
    sees: Space | list[Space],
    acts: Space | list[Space],
    *,
    settings: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    is_team: bool = False,
    rl_module: str = "",
    **fields: Any,
) -> ServerPlan:
    """Returns a server for the agents a and b, who share the policy "both"."""
    groups = {"team": ("a", "b")} if is_team else {}
    spaces = [each if isinstance(each, list) else [each, each] for each in (sees, acts)]
    return dataclasses.replace(
        make_plan(groups=groups),
        algorithm=algorithm,
        agents={
            agent: AgentPlan("both", seen, done, "team" if is_team else None)
            for agent, seen, done in zip("ab", *spaces, strict=True)
        },
        settings=settings or {},
        model=SMALL if model is None else model,
        rl_module=rl_module,
        **fields,
    )


def far_from_zero(plan: ServerPlan) -> dict[str, Any]:
    """Returns observations whose numbers are all about 1000, and differ by thousandths."""
    drawn = {}
    for agent_id, agent in plan.agents.items():
        space = to_gymnasium(agent.observation_space)
        drawn[agent_id] = tree.map_structure(
            lambda x: 1e3 + 1e-3 * x if np.asarray(x).dtype.kind == "f" else x, space.sample()
        )
    return drawn


def elsewhere(parameter: torch.Tensor) -> torch.Tensor:
    """Returns weights far from their first."""
    return parameter + 0.5 * torch.randn_like(parameter)


def save(
    plan: ServerPlan, folder: Path, put: Callable[[torch.Tensor], torch.Tensor] = elsewhere
) -> Path:
    """Writes the checkpoint of a server that has not learned, with weights where `put` has them."""
    entry = get_algorithm(plan.algorithm)
    observing = Observing.of(plan)
    seats = entry.seating.make_seats(plan, observing)
    for _ in range(20 if plan.normalize_observations else 0):
        observing.add(far_from_zero(plan), None)
    spaces = {seat.policy_id: spaces_of(seat) for seat in seats.values()}
    config = entry.make_config(
        plan.settings,
        plan.model,
        plan.rl_module,
        has_masks=any(has_action_mask(seen) for seen, _ in spaces.values()),
    )
    config.multi_agent(policies={p: PolicySpec(None, *both) for p, both in spaces.items()})
    modules = config.get_multi_rl_module_spec(spaces=spaces).build()
    with torch.no_grad():
        for _, module in modules.items():
            for parameter in module.parameters():
                parameter.copy_(put(parameter))
    modules.save_to_path(folder / _MODULES)
    if plan.normalize_observations:
        write_state(folder / STATE_FILE, {"normalization": Normalization(observing).get_state()})
    note = {"format": 2, **note_of(plan), "env_steps": 400}
    (folder / ABOUT_FILE).write_text(json.dumps(note))
    return folder
