"""What `servers.SERVER.initialize_from` leads to: a checkpoint whose policies fit the server's own.

Only `muxrl.json` is read; the server that loads the weights compares them once more.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from muxrl.orchestrator.storage.checkpoints import LAST, CheckpointFolder
from muxrl.protocol.spaces import Space
from muxrl.protocol.suggestions import listed
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, READ_ALIKE, Checkpoint
from muxrl.servers.config import ServerPlan
from muxrl.servers.setting_values import AlgorithmProblem


def find_initial_weights(given: str, plan: ServerPlan) -> tuple[str, list[str]]:
    """Returns the absolute path of the checkpoint, and a sentence for each thing that is wrong.

    Args:
        given: the directory of a run, or the folder of a server's checkpoint.
        plan: of the server that is to begin with its weights.
    """
    server_id = plan.server_id
    path = Path(given).expanduser()
    run = CheckpointFolder(path / "checkpoints")
    if run.path.is_dir():
        found = run.of_server(server_id)
        if found is None:
            others = sorted(p.parent for p in run.path.glob(f"{LAST}/*/{ABOUT_FILE}"))
            hint = f"; give the folder of another one, such as {others[0]}" if others else ""
            return "", [f"run {given!r} has no checkpoint {LAST!r} of a server {server_id!r}{hint}"]
        path = found
    try:
        checkpoint = Checkpoint.open(path)
    except AlgorithmProblem as problem:
        return "", [str(problem)]
    return str(checkpoint.path), list(_mismatches(given, checkpoint.about, plan))


def _are_same(ours: Any, theirs: Any) -> bool:
    """Whether spaces are; one of them may name a default that the other leaves out."""
    with contextlib.suppress(msgspec.ValidationError):
        return bool(msgspec.convert(ours, Space) == msgspec.convert(theirs, Space))
    return False


def _mismatches(given: str, about: Mapping[str, Any], plan: ServerPlan) -> Iterator[str]:
    """Yields a sentence for each policy that the checkpoint lacks, or has for what is observed or
    done in another way; and one for another algorithm."""
    if str(about.get("algorithm")).lower() != plan.algorithm.lower():
        yield f"{given!r} is of {about.get('algorithm')}, and the server is {plan.algorithm}"
        return
    for name in READ_ALIKE:
        if getattr(plan, name) != about[name]:
            yield (
                f"{given!r} was trained with {name}: {json.dumps(about[name])}, and the server has "
                f"{json.dumps(getattr(plan, name))}; give the server the same"
            )
    saved = {agent["policy"]: agent for agent in about["agents"].values()}
    if unknown := plan.initialize_policies.keys() - {a.policy_id for a in plan.agents.values()}:
        yield f"initialize_policies names {listed(sorted(unknown))}, no policy of this server"
    policy_of = {agent.policy_id: (agent_id, agent) for agent_id, agent in plan.agents.items()}
    for policy_id, (agent_id, agent) in policy_of.items():
        source = plan.initialize_policies.get(policy_id, policy_id)
        if source not in saved:
            yield (
                f"{given!r} has no policy {source!r}, it has {listed(saved)}; say which one "
                f"{policy_id!r} begins with: initialize_policies: {{{policy_id}: {min(saved)}}}"
            )
            continue
        for kind in ("observation_space", "action_space"):
            theirs = saved[source][kind]
            ours = json.loads(msgspec.json.encode(getattr(agent, kind)))
            if not _are_same(ours, theirs):
                yield (
                    f"policy {policy_id!r} has the {kind.replace('_', ' ')} {theirs} in {given!r}, "
                    f"but {agent_id!r} has {ours}; is it the same task?"
                )
