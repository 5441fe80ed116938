"""What a comparison found, as values: for a report, a file, or a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from muxrl.orchestrator.comparisons.contestants import Contestant
from muxrl.orchestrator.comparisons.head_to_head import HeadToHead
from muxrl.orchestrator.comparisons.roles import Subject
from muxrl.orchestrator.comparisons.side_by_side import Budget, RoleResult, Standing
from muxrl.orchestrator.reports.statistics import Estimate

if TYPE_CHECKING:
    import pandas

Table = Literal["runs", "curves", "standings", "roles", "pairings", "matches"]


@dataclass(frozen=True)
class Baseline:
    """Fixed policies alone, in all roles: what there is to be had without learning.

    Attributes:
        name: "random", or who plays what: ``flee prey | random predator``.
        returns: by subject's key, the mean over episodes. Its interval is over episodes, since
            there is nothing that could be trained again.
        num_episodes: of these.
    """

    name: str
    returns: Mapping[str, Estimate]
    num_episodes: int


@dataclass(frozen=True)
class Comparison:
    """Runs of one simulation, compared.

    Attributes:
        env: the simulation, as its config names it.
        kwargs: with which it was made.
        contestants: what was compared, each with its runs.
        roles: role to its agents.
        subjects: whose returns were measured.
        budget: at how much training.
        should_explore: whether stochastic policies were sampled in the runs' evaluations.
        first_seed: of the evaluation's episodes, which all runs have met.
        baselines: fixed policies on the same episodes, random ones first; () if nothing could be
            played.
        thresholds: by subject's key, the return whose first reaching counts.
        given_thresholds: keys of those that a user chose.
        standings: of every contestant, for every subject.
        roles_compared: role by role, label against label among the same others.
        head_to_head: None if it was not asked for.
        notes: what a reader must know before believing the numbers.
    """

    env: str
    kwargs: Mapping[str, Any]
    contestants: tuple[Contestant, ...]
    roles: Mapping[str, tuple[str, ...]]
    subjects: tuple[Subject, ...]
    budget: Budget
    should_explore: bool
    first_seed: int
    baselines: tuple[Baseline, ...]
    thresholds: Mapping[str, float]
    given_thresholds: frozenset[str]
    standings: tuple[Standing, ...]
    roles_compared: tuple[RoleResult, ...]
    head_to_head: HeadToHead | None
    notes: tuple[str, ...]

    def standing(self, contestant: str, subject: str) -> Standing:
        """What a contestant reached.

        Args:
            contestant: its name.
            subject: key of the agents, such as ``role:prey`` or ``total``.

        Raises:
            KeyError: there is no such pair.
        """
        for standing in self.standings:
            if (standing.contestant, standing.subject) == (contestant, subject):
                return standing
        raise KeyError((contestant, subject))

    def frame(self, table: Table = "runs") -> pandas.DataFrame:
        """One of the tables for pandas, with a column for each of its facts.

        Args:
            table: "runs": one row for each run and subject; "curves": for each evaluation of
                these; "standings": for each contestant and subject; "roles": for each label of a
                role; "pairings": for each ordered pair of these; "matches": for each match of the
                head to head.

        Raises:
            ValueError: there is no such table.
        """
        import pandas

        from muxrl.orchestrator.comparisons.rows import TABLES

        if table not in TABLES:
            raise ValueError(f"there is no table {table!r}; there are {', '.join(TABLES)}")
        columns, rows = TABLES[table]
        # Paths as text, which every way to write a frame can write.
        plain = [
            {key: str(value) if isinstance(value, Path) else value for key, value in row.items()}
            for row in rows(self)
        ]
        return pandas.DataFrame(plain, columns=list(columns))

    def write(self, folder: str | Path) -> Path:
        """Writes the report and its data into a folder, made if absent.

        Returns:
            The report: ``report.html``. Beside it: a CSV file for each table, ``marl_eval.json``
            for tools that read that shape, ``comparison.json`` with all estimates.

        Raises:
            OSError: the folder cannot be written to.
        """
        from muxrl.orchestrator.comparisons.files import write_files
        from muxrl.orchestrator.comparisons.page import write_page

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        write_files(self, path)
        return write_page(self, path)
