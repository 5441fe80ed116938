"""Checkpoints of servers that have not learned."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tree
from tests.servers.scripted_store import count, make_plan

from muxrl.protocol.spaces import Space
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.gymnasium_spaces import to_gymnasium
from muxrl.servers.server import make_policies

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
    """Returns the plan of a server for the agents a and b, which share the policy "both"."""
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
    """Returns weights far from their initial values."""
    return parameter + 0.5 * torch.randn_like(parameter)


def save(
    plan: ServerPlan,
    folder: Path,
    put: Callable[[torch.Tensor], torch.Tensor] | None = elsewhere,
) -> Path:
    """Writes the checkpoint of a server that has not learned; `put` may change its weights."""
    policies: Any = make_policies(plan, pytest.fail)
    torch.manual_seed(0)
    with torch.no_grad():
        for trainer in policies.acting.learners.values() if put else ():
            net = trainer.net if hasattr(trainer, "net") else trainer._module
            for parameter in net.parameters():
                parameter.copy_(put(parameter))
    policies.acting.publish()
    for _ in range(20 if plan.normalize_observations else 0):
        count(policies._normalization.observing, far_from_zero(plan))
    policies.save(folder)
    assert policies.finish(10.0)
    note = json.loads((folder / ABOUT_FILE).read_text())
    (folder / ABOUT_FILE).write_text(json.dumps({**note, "env_steps": 400}))
    return folder
