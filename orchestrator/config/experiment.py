"""An experiment with every name looked up: what `muxrl.orchestrator.config.resolve` makes."""

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
    """As the user wrote it, but for checkpoints: see `resolve._with_checkpoints`."""
    facts: SimulationFacts
    servers: dict[str, ServerPlan]
    """Server id to what its process is started with, in the order of the config."""
    warnings: tuple[str, ...] = ()
    """What is right and hardly meant, which whoever believes the results has to know before."""
    may_be_warned_late: bool = False
    """Whether the length of episodes may tell more; see `muxrl.orchestrator.config.warnings`."""

    @property
    def acting(self) -> dict[str, ServerPlan]:
        """All but the shadows: each agent is of one of them."""
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
        """The other servers."""
        return {s: plan for s, plan in self.servers.items() if s not in self.fixed_servers}

    @property
    def pool_sources(self) -> dict[str, dict[str, bool]]:
        """For each pool the servers that its members come from, and whether one is live."""
        found: dict[str, dict[str, bool]] = {}
        for pool, _, kind, source in pool_members(self.servers):
            sources = found.setdefault(pool, {})
            sources[source] = sources.get(source, False) or kind == "live"
        return found

    @property
    def judged(self) -> Collection[str] | None:
        """The agents whose returns say which checkpoint is best; None: all."""
        best = self.config.checkpoint.best
        return None if best is None or best.of == TOTAL else self.servers[best.of].agents

    @property
    def is_external(self) -> bool:
        """Whether muxrl does not start the simulation."""
        return self.config.simulation.env == EXTERNAL


def pool_members(servers: Mapping[str, ServerPlan]) -> Iterator[tuple[str, str, str, str]]:
    """Yields each pool's members that come from other servers: pool, entry, kind, server."""
    for server_id, plan in servers.items():
        for entry, member in plan.settings["members"].items() if plan.algorithm == POOL else ():
            for kind in ("live", "snapshots"):
                if kind in member:
                    yield server_id, entry, kind, member[kind]
