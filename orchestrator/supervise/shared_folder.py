"""Checks that the machines on which processes are placed see one folder, before anything starts.

A machine that does not share a run's directory sends checkpoints and logs back (see `cluster`). Any
other file would stay on that machine, and nobody would find it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muxrl.orchestrator.errors import NotShared, RunFailed
from muxrl.protocol.suggestions import listed

PROBE_S = 120.0
"""How long a machine of the cluster may take to start a process and look."""


def check_shared(folder: Path, scheduling: Any = None) -> None:
    """Checks that other machines see a folder; costs nothing on a cluster of one machine.

    Args:
        folder: the directory of a run or a sweep, which exists.
        scheduling: the scheduling strategy of the actors, as `placement.reserved` yields it; None:
            they may be placed on any machine that the cluster has now.

    Raises:
        NotShared: a machine does not see the folder.
        RunFailed: a machine cannot be asked.
        OSError: the folder cannot be written to.
    """
    nodes = _other_nodes(scheduling)
    if not nodes:
        return
    marker = folder.absolute() / f".seen-{uuid.uuid4().hex}"
    marker.write_text(marker.name, encoding="utf-8")
    try:
        seen = _ask(nodes, marker)
    finally:
        marker.unlink(missing_ok=True)
    if blind := [machine for node_id, machine in nodes.items() if node_id not in seen]:
        which = f"machine {blind[0]} does" if len(blind) == 1 else f"machines {listed(blind)} do"
        raise NotShared(
            f"the Ray cluster's {which} not see {folder.absolute()}, the directory of "
            "the results; put it on a file system that all machines share, under the same path "
            "(runs_dir or --run-dir; for a sweep sweeps_dir or --sweep-dir). Nothing was started"
        )


def _other_nodes(scheduling: Any) -> dict[str, str]:
    """Returns all nodes but this one: by Ray's id, the machine's name and address."""
    import ray

    nodes = {
        n["NodeID"]: f"{n['NodeManagerHostname']} ({n['NodeManagerAddress']})"
        for n in ray.nodes()
        if n["Alive"]
    }
    nodes.pop(ray.get_runtime_context().get_node_id(), None)
    if scheduling is None or not nodes:
        return nodes
    group = ray.util.placement_group_table(scheduling.placement_group)
    placed = set(group["bundles_to_node_id"].values())
    return {node_id: machine for node_id, machine in nodes.items() if node_id in placed}


def _ask(nodes: Mapping[str, str], marker: Path) -> set[str]:
    """Returns the ids of the nodes that see the marker file with its content."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # A nested function is sent as code: the machine may have no muxrl, or another version.
    def look(marker: str) -> bool:
        try:
            with open(marker, encoding="utf-8") as file:
                return marker.endswith(file.read())
        except OSError:
            return False

    probe = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = {
        node_id: probe.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
        ).remote(str(marker))
        for node_id in nodes
    }
    ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=PROBE_S)
    seen = set()
    for node_id, answer in asked.items():
        if answer not in ready:
            raise RunFailed(
                f"the Ray cluster's machine {nodes[node_id]} did not say within {PROBE_S:g} s "
                f"whether it sees {marker.parent}; is it overloaded?"
            )
        try:
            if ray.get(answer):
                seen.add(node_id)
        except ray.exceptions.RayError as error:
            raise RunFailed(
                f"the Ray cluster's machine {nodes[node_id]} cannot say whether it sees "
                f"{marker.parent}: {type(error).__name__}: {error}"
            ) from error
    return seen
