"""The result of `muxrl.compare`: its findings, as frames for notebooks and as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.output.files import write_files
from muxrl.orchestrator.comparisons.output.tables import TableName, table_frame

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Comparison(Findings):
    """Runs of one simulation, compared; its attributes are those of `Findings`."""

    def frame(self, table: TableName = "runs") -> pandas.DataFrame:
        """Returns one of the tables for pandas, with the columns of its CSV file.

        Args:
            table: "runs": one row for each run and subject; "curves": for each evaluation of
                these; "standings": for each contestant and subject; "roles": for each label of a
                role; "pairings": for each ordered pair of these; "matches": for each match of the
                head to head.

        Raises:
            ValueError: there is no such table.
        """
        return table_frame(self, table)

    def write(self, folder: str | Path) -> Path:
        """Writes the report and its data into a folder, made if absent.

        Returns:
            The report: ``report.html``. Beside it: a CSV file for each table, ``marl_eval.json``
            for tools that read that shape, ``comparison.json`` with all estimates.

        Raises:
            OSError: the folder cannot be written to.
        """
        # Here, since matplotlib takes a second to load, and frames do not need it.
        from muxrl.orchestrator.comparisons.output.page import write_page

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        write_files(self, path)
        return write_page(self, path)
