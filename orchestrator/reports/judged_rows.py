"""The rows of a report's table: a server each, and below one that plays itself its sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from muxrl.orchestrator.measure.against_random import AgainstRandom, Verdict
from muxrl.orchestrator.measure.results import Report


@dataclass(frozen=True)
class JudgedRow:
    """What one row says."""

    name: str
    """A server's id, or ``SERVER/SIDE``."""
    algorithm: str
    agents: tuple[str, ...]
    env_steps: float | None
    """Of training; None where nothing is trained, and for sides, which are trained together."""
    train_return: float | None
    final: AgainstRandom | None
    """None where nothing was evaluated, and where the mean over all agents says nothing."""
    judgement: Verdict | str
    """See `ServerResult.judgement`."""

    @property
    def verdict(self) -> Verdict | None:
        """The judgement, if it is one of learning."""
        return self.judgement if isinstance(self.judgement, Verdict) else None


def judged_rows(report: Report) -> Iterator[JudgedRow]:
    """Yields the rows in the order of the servers."""
    for server in report.servers:
        yield JudgedRow(
            name=server.server_id,
            algorithm=server.algorithm,
            agents=server.agents,
            env_steps=server.env_steps if server.learns else None,
            train_return=server.train_return,
            final=None if server.learns and server.plays_itself else server.final,
            judgement=server.judgement,
        )
        for side in server.sides:
            yield JudgedRow(
                name=f"{server.server_id}/{side.name}",
                algorithm=server.algorithm,
                agents=side.agents,
                env_steps=None,
                train_return=None,
                final=side.final,
                judgement=(side.final.verdict or "") if server.has_updates else server.judgement,
            )
