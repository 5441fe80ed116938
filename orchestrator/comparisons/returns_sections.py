"""What became of each contestant: its returns, how fast it learned them, and all of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from muxrl.orchestrator.comparisons.comparison import Comparison
from muxrl.orchestrator.comparisons.figures import final_returns, learning_curves, styles_of
from muxrl.orchestrator.comparisons.page_values import (
    Cell,
    Heading,
    Section,
    Table,
    TableRow,
    count,
    finite,
    key_of,
    whole,
)
from muxrl.orchestrator.comparisons.provenance import Provenance
from muxrl.orchestrator.comparisons.roles import Subject
from muxrl.orchestrator.reports.number_text import MISSING, interval, number


class ReturnsSections:
    """Makes the sections with a row for each contestant or run.

    Args:
        comparison: what is reported on.
        provenance: where its numbers come from.
    """

    def __init__(self, comparison: Comparison, provenance: Provenance) -> None:
        self._of = comparison
        self._from = provenance
        self._rule = provenance.rule
        self._styles = styles_of([c.name for c in comparison.contestants])
        self._main = [s for s in comparison.subjects if s.kind in ("role", "total")]
        self._rest = [s for s in comparison.subjects if s.kind not in ("role", "total")]

    def returns(self) -> Section:
        """Returns the section of returns after training, baselines beside them."""
        caption = (
            f"Interquartile mean over runs [95 % stratified bootstrap interval]. {self._rule} "
            + (
                f"Baselines: mean over {self._of.baselines[0].num_episodes} episodes [95 % over "
                "episodes]: nothing in them is trained. "
                if self._of.baselines
                else ""
            )
            + "A role's return depends on who plays the others: read it with the next sections."
        )
        tables = [self._returns_table("returns", "", self._main, caption)]
        if self._rest:
            tables.append(
                self._returns_table("returns-agents", "Teams and agents", self._rest, caption, True)
            )
        figures = [final_returns(self._of, subject, self._styles) for subject in self._main]
        return Section(
            id="side-by-side",
            title="Returns side by side",
            figures=tuple(figures),
            figure_caption=(
                "Bar: interquartile mean; band: its 95 % interval; dots: runs; dashed: random "
                f"agents in all roles. {self._rule}"
            ),
            tables=tuple(tables),
        )

    def _returns_table(
        self,
        table_id: str,
        title: str,
        subjects: Sequence[Subject],
        caption: str,
        is_folded: bool = False,
    ) -> Table:
        rows = []
        for contestant in self._of.contestants:
            cells = [self._from.name(contestant.name)]
            for subject in subjects:
                standing = self._of.standing(contestant.name, subject.key)
                cells.append(self._from.estimate(standing.score, standing))
            rows.append(TableRow((*cells, count(len(contestant.seeds)))))
        for baseline in self._of.baselines:
            cells = [Cell(baseline.name, css="text")]
            for subject in subjects:
                estimate = baseline.returns.get(subject.key)
                cells.append(
                    Cell(MISSING)
                    if estimate is None
                    else Cell(
                        interval(estimate),
                        finite(estimate.mean),
                        f"{baseline.num_episodes} episodes, nothing trained",
                    )
                )
            rows.append(TableRow((*cells, Cell(MISSING)), is_baseline=True))
        headings = [Heading("contestant", True), *(Heading(s.title) for s in subjects)]
        return Table(
            table_id, title, caption, (*headings, Heading("seeds")), tuple(rows), is_folded
        )

    def learning(self) -> Iterator[Section]:
        """Yields the section of learning curves, unless nobody has one."""
        figures = [
            picture
            for subject in self._main
            for axis in ("env_steps", "time_s")
            if (picture := learning_curves(self._of, subject, axis, self._styles)) is not None
        ]
        tables = [self._efficiency(subject) for subject in self._main]
        if not figures:
            return
        yield Section(
            id="learning",
            title="Learning",
            paragraphs=(
                "How fast returns rise, by env steps, and by the wall time of the runs as they "
                "were made: on the machines, and beside the other jobs, that they had.",
            ),
            key=key_of([c.name for c in self._of.contestants if c.learns], self._styles),
            figures=tuple(figures),
            figure_caption=(
                "Interquartile mean over runs with its 95 % interval, straight lines between "
                f"evaluations; dashed grey: random agents in all roles. {self._rule} Earlier "
                "evaluations may have fewer episodes."
            ),
            tables=tuple(tables),
        )

    def _efficiency(self, subject: Subject) -> Table:
        threshold = self._of.thresholds.get(subject.key)
        if threshold is None:
            how = "No threshold: nobody came above random agents."
        elif subject.key in self._of.given_thresholds:
            how = f"Threshold {number(threshold)}, as given."
        else:
            how = (
                f"Threshold {number(threshold)}: halfway from random agents to the best "
                "contestant of this comparison, so it is no property of the task."
            )
        rows = []
        for contestant in self._of.contestants:
            if not contestant.learns:
                continue
            standing = self._of.standing(contestant.name, subject.key)
            steps, seconds = standing.env_steps_to_threshold, standing.time_s_to_threshold
            times = [run.time_s for run in standing.runs]
            mean_time = sum(times) / len(times)
            rows.append(
                TableRow(
                    (
                        self._from.name(contestant.name),
                        self._from.estimate(standing.area, standing),
                        Cell(
                            f"{standing.num_reached} of {len(standing.runs)}",
                            standing.num_reached,
                            self._from.about(standing),
                            self._from.anchor(standing),
                        ),
                        Cell(
                            whole(steps),
                            steps,
                            self._from.about(standing),
                            self._from.anchor(standing),
                        ),
                        Cell(whole(seconds), finite(seconds), "", self._from.anchor(standing)),
                        Cell(whole(mean_time), finite(mean_time)),
                    )
                )
            )
        return Table(
            id=f"efficiency-{self._of.subjects.index(subject)}",
            title=f"Sample efficiency: {subject.title}",
            caption=(
                f"Area: mean height of the learning curve up to the budget, interquartile mean "
                f"over runs [95 %]. {how} To threshold: median over all runs of the first "
                f"evaluation that reached it, {MISSING} where half of them never did. {self._rule}"
            ),
            headings=(
                Heading("contestant", True),
                Heading("area under the curve"),
                Heading("reached it"),
                Heading("env steps to threshold"),
                Heading("seconds to threshold"),
                Heading("seconds of training"),
            ),
            rows=tuple(rows),
        )

    def runs(self) -> Section:
        """Returns the section with a row for every run, where all links lead."""
        rows = []
        for contestant in self._of.contestants:
            standings = [self._of.standing(contestant.name, s.key) for s in self._main]
            for index, run in enumerate(contestant.runs):
                scores = [standing.runs[index] for standing in standings]
                rows.append(
                    TableRow(
                        (
                            self._from.name(contestant.name, is_link=False),
                            count(run.seed),
                            self._from.run(run.path),
                            *(Cell(number(s.score), finite(s.score)) for s in scores),
                            count(scores[0].num_episodes),
                            Cell(whole(scores[0].env_steps), scores[0].env_steps),
                            Cell(whole(scores[0].time_s), finite(scores[0].time_s)),
                            Cell(run.recorded.assignment, css="wrap"),
                        ),
                        id=self._from.row_id(contestant.name, run.seed),
                    )
                )
        return Section(
            id="runs",
            title="All runs",
            tables=(
                Table(
                    id="all-runs",
                    title="",
                    caption=f"Mean return over the episodes of each run's evaluation. {self._rule}",
                    headings=(
                        Heading("contestant", True),
                        Heading("seed"),
                        Heading("run", True),
                        *(Heading(subject.title) for subject in self._main),
                        Heading("episodes"),
                        Heading("env steps"),
                        Heading("seconds"),
                        Heading("assignment", True),
                    ),
                    rows=tuple(rows),
                ),
            ),
        )
