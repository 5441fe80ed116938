"""Where the processes of a sweep's trials go, and how many trials there is room for."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import ray
from ray import tune

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.runs.placement import bundles, cpus_wanted, strategy
from muxrl.orchestrator.sweeps.assignments import RoleAssignment
from muxrl.orchestrator.sweeps.parameters import active, settings
from muxrl.orchestrator.sweeps.plan import SweepPlan
from muxrl.orchestrator.sweeps.schema import SweepConfig


def placement(config: ExperimentConfig) -> tune.PlacementGroupFactory:
    """Returns where a trial's processes go, itself included, which only watches."""
    # Ray takes an empty first bundle as the trial's own, but has no group of nothing at all.
    wanted = [{}, *bundles(config)] if bundles(config) else [{"CPU": 0.001}]
    return tune.PlacementGroupFactory(wanted, strategy=strategy(config))


def concurrency(plan: SweepPlan) -> int:
    """Returns how many trials a local Ray holds at once, by their logical CPUs."""
    wanted = [sum(cpus_wanted(plan.config_of(spec))) for spec in plan.trials]
    fit = int(local_num_cpus(plan) / max(max(wanted), 1e-9))
    most = plan.config.max_concurrent or fit
    return max(1, min(fit, most, len(plan.trials)))


def local_num_cpus(plan: SweepPlan) -> int:
    """Returns the logical CPUs of a local Ray: the machine's, and enough for what was asked."""
    wanted = [sum(cpus_wanted(plan.config_of(spec))) for spec in plan.trials if spec.assignment]
    # A searcher has made no trials yet.
    wanted = wanted or [
        sum(cpus_wanted(plan.resolve(roles, _first_values(plan.config, roles), 0).config))
        for roles in plan.role_assignments
    ]
    most = max(wanted, default=1.0) * (plan.config.max_concurrent or 1)
    return max(os.cpu_count() or 1, math.ceil(most))


def _first_values(config: SweepConfig, roles: RoleAssignment) -> dict[str, Any]:
    return next(settings(active(config.parameters, set(roles.values())), 1, config.seed))


def placement_notes(plan: SweepPlan) -> Iterator[str]:
    """Yields why trials may wait for ever; a growing cluster can still make room for them."""
    needs = [(spec, cpus_wanted(plan.config_of(spec))) for spec in plan.trials if spec.assignment]
    if not plan.config.address or not needs:
        return
    spec, cpus = max(needs, key=lambda need: sum(need[1]))
    largest = max(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])
    if sum(cpus) > largest and placement(plan.config_of(spec)).strategy == "STRICT_PACK":
        yield (
            f"note: trial {spec.trial_id} takes {sum(cpus):g} CPUs on one machine, since its "
            f"servers listen on the loopback address, and the largest one has {largest:g}; it "
            "waits until there is a larger one"
        )
