"""An experiment with every name looked up, as `muxrl.orchestrator.config.resolve` makes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from muxrl.client.first_look import SimulationFacts
from muxrl.orchestrator.config.checks import EXTERNAL
from muxrl.orchestrator.config.schema import TOTAL, ExperimentConfig
from muxrl.protocol import assignment
from muxrl.servers.config import ServerPlan, algorithm_label
from muxrl.servers.fixed_names import POOL, is_fixed


@dataclass(frozen=True)
class Experiment:
    """An experiment with every name looked up and every number checked."""

    config: ExperimentConfig
    """The config as the user wrote it, except for paths: see `resolve._with_checkpoints`."""
    facts: SimulationFacts
    servers: dict[str, ServerPlan]
    """By server id, in the order of the config: the plan that its process is started with."""
    warnings: tuple[str, ...] = ()
    """A sentence for each thing that is allowed but hardly meant, to know before the run starts."""
    may_be_warned_late: bool = False
    """Whether more warnings may follow from the length of episodes; see
    `muxrl.orchestrator.config.warnings`."""

    @property
    def acting(self) -> dict[str, ServerPlan]:
        """The servers that act, which are all except shadows; each agent belongs to one of them."""
        return {s: plan for s, plan in self.servers.items() if not plan.shadow}

    @property
    def assignment(self) -> str:
        """Which algorithm serves which agents, as `muxrl.protocol.assignment` writes it."""
        servers = self.config.servers
        labels = assignment.server_labels(
            {
                s: servers[s].label or algorithm_label(plan.algorithm, plan.command)
                for s, plan in self.acting.items()
            }
        )
        return assignment.canonical({labels[s]: list(p.agents) for s, p in self.acting.items()})

    @property
    def fixed_servers(self) -> frozenset[str]:
        """Servers whose policies never change."""
        return frozenset(s for s, p in self.servers.items() if is_fixed(p.algorithm))

    @property
    def learning(self) -> dict[str, ServerPlan]:
        """Servers that learn."""
        return {s: plan for s, plan in self.servers.items() if s not in self.fixed_servers}

    @property
    def pool_sources(self) -> dict[str, dict[str, bool]]:
        """By pool and server that members come from: whether a member has its newest weights."""
        found: dict[str, dict[str, bool]] = {}
        for pool, _, kind, source in pool_members(self.servers):
            sources = found.setdefault(pool, {})
            sources[source] = sources.get(source, False) or kind == "live"
        return found

    @property
    def judged(self) -> Collection[str] | None:
        """The agents whose returns decide which checkpoint is best; None: all."""
        best = self.config.checkpoint.best
        return None if best is None or best.of == TOTAL else self.servers[best.of].agents

    @property
    def is_external(self) -> bool:
        """Whether muxrl does not start the simulation."""
        return self.config.simulation.env == EXTERNAL


def pool_members(servers: Mapping[str, ServerPlan]) -> Iterator[tuple[str, str, str, str]]:
    """Yields pool, entry, kind and server for each pool's member that comes from another server."""
    for server_id, plan in servers.items():
        for entry, member in plan.settings["members"].items() if plan.algorithm == POOL else ():
            for kind in ("live", "snapshots"):
                if kind in member:
                    yield server_id, entry, kind, member[kind]
