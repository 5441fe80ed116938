"""Where a report's numbers come from: how they were measured, and the runs they are made of.

Each number leads to its runs: a link to their rows, which have the directory, the seed and the
episodes, and a tooltip that says the same.
"""

from __future__ import annotations

from pathlib import Path

from muxrl.orchestrator.comparisons.comparison import Comparison
from muxrl.orchestrator.comparisons.files import from_folder
from muxrl.orchestrator.comparisons.page_values import Cell, finite
from muxrl.orchestrator.comparisons.side_by_side import RunScore, Standing
from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.reports.number_text import MISSING, interval, number
from muxrl.orchestrator.reports.statistics import Estimate

_MAX_TOLD = 6  # runs in a tooltip


class Provenance:
    """Makes the cells that lead to runs.

    Args:
        comparison: what is reported on.
        folder: where the report lies; links to directories start there.
    """

    def __init__(self, comparison: Comparison, folder: Path) -> None:
        self._of = comparison
        self._folder = folder
        self._ids = {c.name: f"c{i}" for i, c in enumerate(comparison.contestants)}

    @property
    def rule(self) -> str:
        """The number of seeds and the rule of evaluation, which every caption has."""
        of = self._of
        counts = sorted({len(c.seeds) for c in of.contestants})
        seeds = sorted({seed for c in of.contestants for seed in c.seeds})
        each = " or ".join(map(str, counts))
        actions = "sampled (greedy for value-based learners)" if of.should_explore else "greedy"
        last = of.first_seed + of.budget.num_episodes - 1
        after = f"after {of.budget.env_steps:,} env steps of training, " * bool(of.budget.env_steps)
        return (
            f"{each} seed{'s'[: counts[-1] != 1]} for each ({listed(map(str, seeds), 12)}); "
            f"evaluated {after}on {of.budget.num_episodes} episodes (environment seeds "
            f"{of.first_seed} to {last}, the same for all), {actions} actions, raw rewards."
        )

    def row_id(self, contestant: str, seed: int) -> str:
        """The id of the row of one run."""
        return f"{self._ids[contestant]}-{seed}"

    def name(self, contestant: str, is_link: bool = True) -> Cell:
        """A contestant, which leads to its runs."""
        of = next(c for c in self._of.contestants if c.name == contestant)
        href = f"#{self.row_id(contestant, of.seeds[0])}" if is_link else ""
        return Cell(contestant, None, of.assignment, href, "text")

    def estimate(self, estimate: Estimate | None, standing: Standing) -> Cell:
        """An estimate over a standing's runs, which leads to them."""
        if estimate is None:
            return Cell(MISSING)
        about, anchor = self.about(standing), self.anchor(standing)
        return Cell(interval(estimate), finite(estimate.mean), about, anchor)

    def anchor(self, standing: Standing) -> str:
        """The link to the first row of a standing's runs."""
        return f"#{self.row_id(standing.contestant, standing.runs[0].seed)}"

    def about(self, standing: Standing) -> str:
        """The tooltip that names a standing's runs."""
        told = [_told(run) for run in standing.runs[:_MAX_TOLD]]
        more = len(standing.runs) - len(told)
        return "\n".join([*told, *([f"and {more} more runs"] if more else [])])

    def run(self, path: Path | None) -> Cell:
        """A run's directory, as a link from where the report lies."""
        if path is None:
            return Cell(MISSING, css="text")
        href = from_folder(path, self._folder)
        return Cell(path.name, None, href, href, "text")


def _told(run: RunScore) -> str:
    return f"{run.run.name}: seed {run.seed}, {run.num_episodes} episodes, {number(run.score)}"
