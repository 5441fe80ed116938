"""What learners measured of themselves, by name: losses, entropies, whatever a trainer returns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from muxrl.orchestrator.records.metrics import iter_rows
from muxrl.orchestrator.records.rows import IterationRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.reports.table import Table, table


@dataclass
class LearnerNumber:
    """One number of one policy's learner over a run."""

    server_id: str
    policy_id: str
    name: str
    first: float
    lowest: float
    highest: float
    last: float

    def add(self, value: float) -> None:
        """Adds the newest value."""
        self.lowest, self.highest = min(self.lowest, value), max(self.highest, value)
        self.last = value


def learner_table(run_dir: Path) -> Table[LearnerNumber]:
    """Returns a row for each number that changed, of each policy of a run.

    Raises:
        NotARunDirectory: the folder has no plan that can be read.
        MalformedMetrics: a metrics file is broken elsewhere than in its last line.
    """
    return table(
        "server_id policy_id name first lowest highest last",
        (one for one in _numbers(run_dir) if one.lowest < one.highest),
        server_id="server",
        policy_id="policy",
        name="metric",
    )


def _numbers(run_dir: Path) -> Iterator[LearnerNumber]:
    folder = RunDirectory.open(run_dir)
    for server_id in folder.read_plan().servers:
        found: dict[tuple[str, str], LearnerNumber] = {}
        for row in iter_rows(folder.metrics / f"{server_id}.jsonl", IterationRow):
            for policy_id, values in row.learner.items():
                for name, value in values.items():
                    if value is None or not math.isfinite(value):
                        continue
                    key = policy_id, name
                    if key not in found:
                        found[key] = LearnerNumber(server_id, policy_id, name, *[value] * 4)
                    found[key].add(value)
        yield from found.values()
