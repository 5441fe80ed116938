"""Reserves room on a Ray cluster for all processes of a run together, or for none.

Without a reservation, a run would wait silently for a process that has no room. Processes go to a
single machine if a server listens on loopback, where other machines cannot reach it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.config.checks import EXTERNAL
from muxrl.orchestrator.errors import NoPlace
from muxrl.servers.network.access import is_loopback

PATIENCE_S = 600.0
"""How long to wait for room: the cluster may have to start machines first."""


def has_evaluations(config: ExperimentConfig) -> bool:
    """Whether the run evaluates anything, which needs a process."""
    evaluation = config.evaluation
    return evaluation.interval_env_steps is not None or evaluation.final_num_episodes > 0


def cpus_wanted(config: ExperimentConfig) -> list[float]:
    """Returns the logical CPUs that each process wants: servers, simulations, evaluation."""
    return [cpus for cpus, _ in _wanted(config).values()]


def own_place(scheduling: Any, config: ExperimentConfig, name: str) -> dict[str, Any]:
    """Returns the options of a process's Ray actor: what it reserves, and where.

    Every process has a separate bundle, so that it is started again on the same machine, where a
    server's address stays valid.

    Args:
        scheduling: the strategy that `reserved` yields; None is returned as it is.
        config: the run's config.
        name: the server's id, or the name of another process.
    """
    names = list(bundles(config))
    cpus, gpus = _wanted(config).get(name, (0.0, 0.0))
    if scheduling is not None and name in names:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        scheduling = PlacementGroupSchedulingStrategy(
            placement_group=scheduling.placement_group,
            placement_group_bundle_index=names.index(name),
        )
    return {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": scheduling}


def bundles(config: ExperimentConfig) -> dict[str, dict[str, float]]:
    """Returns the resources of each process that reserves any, by process name."""
    kept = {
        name: {kind: amount for kind, amount in (("CPU", cpus), ("GPU", gpus)) if amount > 0}
        for name, (cpus, gpus) in _wanted(config).items()
    }
    return {name: bundle for name, bundle in kept.items() if bundle}


def _wanted(config: ExperimentConfig) -> dict[str, tuple[float, float]]:
    """Returns how many logical CPUs and GPUs each process wants, by process name."""
    simulation = config.simulation
    wanted = {
        server_id: (server.resources.num_cpus, server.resources.num_gpus)
        for server_id, server in config.servers.items()
    }
    is_external = simulation.env == EXTERNAL
    num_processes = simulation.num_processes if simulation.command or not is_external else 0
    names = [f"simulation-{i}" for i in range(num_processes)]
    if not is_external and has_evaluations(config):
        names.append("evaluation")
    return wanted | dict.fromkeys(names, (simulation.num_cpus, 0.0))


def strategy(config: ExperimentConfig) -> Literal["STRICT_PACK", "PACK"]:
    """Returns Ray's placement strategy: one machine if anything listens on loopback, else few."""
    hosts = [server.host for server in config.servers.values()]
    if config.simulation.command:  # the command plays through the gateway
        hosts.append(config.simulation.gateway.host)
    return "STRICT_PACK" if any(map(is_loopback, hosts)) else "PACK"


@contextlib.contextmanager
def reserved(
    config: ExperimentConfig,
    say: Callable[[str], None] = lambda sentence: None,
    patience_s: float = PATIENCE_S,
) -> Iterator[Any]:
    """Reserves room on the Ray that this process is connected to, while the ``with`` block lasts.

    Args:
        config: the run's config.
        say: called once with a sentence if there is no room at first.
        patience_s: how long to wait for room.

    Yields:
        The scheduling strategy for the run's processes; None if they reserve nothing.

    Raises:
        NoPlace: there was no room in time.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    wanted = list(bundles(config).values())
    if not wanted:
        yield None
        return
    group = ray.util.placement_group(wanted, strategy=strategy(config))
    try:
        if not group.wait(timeout_seconds=2):
            sentence = _what_is_missing(config, wanted)
            say(f"waiting for room on the Ray cluster: {sentence}")
            # Waits in short pieces, so that Ctrl-C takes effect between them.
            if not any(group.wait(timeout_seconds=1) for _ in range(int(patience_s))):
                raise NoPlace(f"no room on the Ray cluster within {patience_s:g} s: {sentence}")
        yield PlacementGroupSchedulingStrategy(placement_group=group)
    finally:
        if ray.is_initialized():
            ray.util.remove_placement_group(group)


def beyond_every_machine(config: ExperimentConfig) -> str:
    """Names a process that wants more than any machine of the cluster has, in a sentence, or ""."""
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, bundle in bundles(config).items():
        for kind, amount in bundle.items():
            most = max((machine.get(kind, 0.0) for machine in machines), default=0.0)
            if amount > most:
                return (
                    f"{name!r} wants {amount:g} {kind}s, and no machine of the cluster has more "
                    f"than {most:g}"
                )
    return ""


def _what_is_missing(config: ExperimentConfig, wanted: list[dict[str, float]]) -> str:
    import ray

    is_one_machine = strategy(config) == "STRICT_PACK"
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    sums = {name: sum(b.get(name, 0.0) for b in wanted) for name in ("CPU", "GPU")}
    asked = " and ".join(f"{total:g} {name}s" for name, total in sums.items() if total)
    where = ", all on one machine since its servers listen on loopback" if is_one_machine else ""
    if too_large := beyond_every_machine(config):
        return too_large
    have = ", ".join(
        " and ".join(f"{machine.get(name, 0.0):g} {name}s" for name in sums if sums[name])
        for machine in machines
    )
    free = ray.available_resources()
    left = " and ".join(f"{free.get(name, 0.0):g} {name}s" for name in sums if sums[name])
    return (
        f"the run reserves {asked} (logical ones){where}; the cluster's machines have {have}, "
        f"and {left} are free in all (servers.NAME.resources and simulation.num_cpus set what a "
        "run reserves)"
    )
