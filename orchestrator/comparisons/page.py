"""The report: one HTML file with everything in it, for a desk and for a phone.

Each number leads to the runs that it is made of: a link to their rows, which have the directory,
the seed and the episodes, and a tooltip that says the same. Sections are made here as values;
`page.html` only lays them out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.comparisons.comparison import Comparison
from orchestrator.comparisons.figures import (
    Picture,
    Style,
    final_returns,
    learning_curves,
    performance_profiles,
    styles_of,
)
from orchestrator.comparisons.head_to_head import HeadToHead, Matrix, describe_pairs
from orchestrator.comparisons.roles import Subject
from orchestrator.comparisons.side_by_side import RoleResult, RunScore, Standing
from orchestrator.config.problems import listed
from orchestrator.json_files import write_text
from orchestrator.number_text import MISSING, interval, number, signed_interval
from orchestrator.statistics import Estimate

REPORT_FILE = "report.html"
_TEMPLATE = "page.html"
_MAX_TOLD = 6  # runs in a tooltip


@dataclass(frozen=True)
class Heading:
    text: str
    is_text: bool = False


@dataclass(frozen=True)
class Cell:
    """What stands in a table: its text, what it is sorted by, and where it comes from."""

    text: str
    value: float | None = None
    about: str = ""
    href: str = ""
    css: str = ""
    shade: str = ""


@dataclass(frozen=True)
class TableRow:
    cells: tuple[Cell, ...]
    id: str = ""
    is_baseline: bool = False


@dataclass(frozen=True)
class Table:
    id: str
    title: str
    caption: str
    headings: tuple[Heading, ...]
    rows: tuple[TableRow, ...]
    is_folded: bool = False


@dataclass(frozen=True)
class KeyEntry:
    name: str
    colour: str
    css: str


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    paragraphs: tuple[str, ...] = ()
    key: tuple[KeyEntry, ...] = ()
    figures: tuple[Picture, ...] = ()
    figure_caption: str = ""
    tables: tuple[Table, ...] = field(default=())


def write_page(comparison: Comparison, folder: Path) -> Path:
    """Writes ``report.html``.

    Returns:
        Its path.

    Raises:
        OSError: the folder cannot be written to.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    template = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # names of agents, runs and settings are text, not HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(_TEMPLATE)
    page = _Page(comparison, folder)
    html = template.render(
        title=page.title,
        facts=page.facts,
        notes=comparison.notes,
        sections=list(page.sections()),
        definitions=list(_definitions(comparison)),
    )
    path = folder / REPORT_FILE
    write_text(path, html)
    return path


class _Page:
    """Makes the sections of one report."""

    def __init__(self, comparison: Comparison, folder: Path) -> None:
        self._of = comparison
        self._folder = folder
        self._styles = styles_of([c.name for c in comparison.contestants])
        self._ids = {c.name: f"c{i}" for i, c in enumerate(comparison.contestants)}
        self._main = [s for s in comparison.subjects if s.kind in ("role", "total")]
        self._rest = [s for s in comparison.subjects if s.kind not in ("role", "total")]

    @property
    def title(self) -> str:
        name = self._of.env.rpartition(":")[2] or self._of.env
        num = len(self._of.contestants)
        return f"{name}: {num} assignment{'s'[: num != 1]} compared"

    @property
    def facts(self) -> str:
        of = self._of
        kwargs = ", ".join(f"{key}={value}" for key, value in of.kwargs.items())
        roles = "; ".join(f"{role}: {listed(agents)}" for role, agents in of.roles.items())
        return f"Simulation {of.env}({kwargs}). Roles: {roles}. {self._rule}"

    @property
    def _rule(self) -> str:
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

    def sections(self) -> Iterator[Section]:
        yield self._returns()
        yield from self._learning()
        yield from (self._role(result) for result in self._of.roles_compared)
        if self._of.head_to_head is not None:
            yield self._head_to_head(self._of.head_to_head)
        yield self._runs()

    def _returns(self) -> Section:
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
            cells = [self._name(contestant.name)]
            for subject in subjects:
                standing = self._of.standing(contestant.name, subject.key)
                cells.append(self._estimate(standing.score, standing))
            rows.append(TableRow((*cells, _count(len(contestant.seeds)))))
        for baseline in self._of.baselines:
            cells = [Cell(baseline.name, css="text")]
            for subject in subjects:
                estimate = baseline.returns.get(subject.key)
                cells.append(
                    Cell(MISSING)
                    if estimate is None
                    else Cell(
                        interval(estimate),
                        _finite(estimate.mean),
                        f"{baseline.num_episodes} episodes, nothing trained",
                    )
                )
            rows.append(TableRow((*cells, Cell(MISSING)), is_baseline=True))
        headings = [Heading("contestant", True), *(Heading(s.title) for s in subjects)]
        return Table(
            table_id, title, caption, (*headings, Heading("seeds")), tuple(rows), is_folded
        )

    def _learning(self) -> Iterator[Section]:
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
            key=self._key([c.name for c in self._of.contestants if c.learns], self._styles),
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
                        self._name(contestant.name),
                        self._estimate(standing.area, standing),
                        Cell(
                            f"{standing.num_reached} of {len(standing.runs)}",
                            standing.num_reached,
                            self._about(standing),
                            self._anchor(standing),
                        ),
                        Cell(_whole(steps), steps, self._about(standing), self._anchor(standing)),
                        Cell(_whole(seconds), _finite(seconds), "", self._anchor(standing)),
                        Cell(_whole(mean_time), _finite(mean_time)),
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

    def _role(self, result: RoleResult) -> Section:
        role = result.subject.name
        labels = [standing.label for standing in result.standings]
        styles = styles_of(labels)
        place = list(self._of.roles).index(role)
        others = listed(result.contexts, 12) if any(result.contexts) else ""
        among = f"Others: {others}. " if others else ""
        standings = tuple(
            TableRow(
                (
                    Cell(standing.label, css="text"),
                    Cell(
                        interval(standing.score),
                        _finite(standing.score.mean),
                        f"{standing.num_runs} runs",
                        "#runs",
                    ),
                    Cell(number(standing.random_in_place), _finite(standing.random_in_place)),
                    _count(standing.num_runs),
                )
            )
            for standing in result.standings
        )
        improvement = {(p.first, p.second): p for p in result.pairings}
        matrix = tuple(
            TableRow(
                (
                    Cell(first, css="text"),
                    *(
                        Cell(MISSING)
                        if first == second
                        else Cell(
                            _probability(improvement[first, second].improvement),
                            improvement[first, second].improvement.mean,
                            f"P({first} > {second})",
                            "#runs",
                            shade=_shade(2 * improvement[first, second].improvement.mean - 1),
                        )
                        for second in labels
                    ),
                )
            )
            for first in labels
        )
        differences = tuple(
            TableRow(
                (
                    Cell(pairing.first, css="text"),
                    Cell(pairing.second, css="text"),
                    Cell(
                        signed_interval(pairing.difference) if pairing.difference else MISSING,
                        _finite(pairing.difference.mean) if pairing.difference else None,
                        f"{pairing.num_pairs} pairs of runs",
                        "#runs",
                    ),
                    _count(pairing.num_pairs),
                )
            )
            for pairing in result.pairings
            if labels.index(pairing.first) < labels.index(pairing.second)
        )
        return Section(
            id=f"role-{place}",
            title=f"Who plays {role}",
            paragraphs=(
                f"The return of {result.subject.title} under each label, all others of the "
                "assignment being the same.",
            ),
            key=self._key(labels, styles),
            figures=(performance_profiles(result, styles),),
            figure_caption=(
                "A profile that lies above another everywhere is better at every level; where two "
                f"cross, neither is. {among}{self._rule}"
            ),
            tables=(
                Table(
                    id=f"role-{place}-returns",
                    title="Returns",
                    caption=(
                        "Interquartile mean over all runs [95 %, runs drawn again inside their "
                        "own others]. Random in its place: the same others, this role acting at "
                        f"random, mean over runs. {among}{self._rule}"
                    ),
                    headings=(
                        Heading(role, True),
                        Heading("return"),
                        Heading("random in its place"),
                        Heading("runs"),
                    ),
                    rows=standings,
                ),
                Table(
                    id=f"role-{place}-improvement",
                    title="Probability of improvement",
                    caption=(
                        "How likely a run of the row has a higher return than one of the column "
                        f"[95 %]; 0.5: equal. {among}{self._rule}"
                    ),
                    headings=(Heading("row > column", True), *(Heading(each) for each in labels)),
                    rows=matrix,
                ),
                Table(
                    id=f"role-{place}-differences",
                    title="Differences, paired by seed",
                    caption=(
                        "Mean of the first less the second with the same seed and others [95 %, "
                        f"widened for small samples]. {among}{self._rule}"
                    ),
                    headings=(
                        Heading("first", True),
                        Heading("second", True),
                        Heading("difference"),
                        Heading("pairs"),
                    ),
                    rows=differences,
                ),
            ),
        )

    def _head_to_head(self, played: HeadToHead) -> Section:
        actions = "sampled (greedy for value-based)" if played.should_explore else "greedy"
        last = played.first_seed + played.num_episodes - 1
        rule = (
            f"{describe_pairs(played).capitalize()}; {played.num_episodes} episodes each "
            f"(environment seeds {played.first_seed} to {last}, the same for all), {actions} "
            "actions, raw rewards."
        )
        rotated = (
            f" Seats of {listed(played.interchangeable)} are rotated: a return is the mean over "
            "the seats."
            if played.interchangeable
            else ""
        )
        tables = [
            self._matrix(matrix, f"cross-{i}", "", rule) for i, matrix in enumerate(played.by_label)
        ]
        tables += [
            self._matrix(matrix, f"cross-full-{i}", ", by what they were trained with", rule, True)
            for i, matrix in enumerate(played.by_contestant)
        ]
        tables.append(self._matches(played, rule))
        return Section(
            id="head-to-head",
            title="Head to head",
            paragraphs=(
                "The last checkpoints of all runs, frozen, meet each other in every role: rows "
                f"play the role whose return is shown, columns all the others.{rotated}",
            ),
            tables=tuple(tables),
        )

    def _matrix(
        self, matrix: Matrix, table_id: str, what: str, rule: str, is_folded: bool = False
    ) -> Table:
        means = [c.score.mean for c in matrix.cells.values() if math.isfinite(c.score.mean)]
        low, high = min(means, default=0.0), max(means, default=0.0)
        middle, reach = (low + high) / 2, (high - low) / 2 or 1.0
        rows = []
        for player in matrix.players:
            merit = matrix.merits.get(player)
            cells = [
                Cell(player, css="text"),
                Cell(signed_interval(merit), _finite(merit.mean), "", "#matches")
                if merit
                else Cell(MISSING),
            ]
            for others in matrix.others:
                cell = matrix.cells.get((player, others))
                if cell is None:
                    cells.append(Cell(MISSING))
                    continue
                partners = (
                    f", {cell.num_partners} of them trained together" if cell.num_partners else ""
                )
                cells.append(
                    Cell(
                        interval(cell.score) + ("*" if cell.num_partners else ""),
                        _finite(cell.score.mean),
                        f"{cell.num_pairs} pairs of seeds, {cell.num_matches} matches{partners}",
                        "#matches",
                        shade=_shade((cell.score.mean - middle) / reach),
                    )
                )
            rows.append(TableRow(tuple(cells)))
        return Table(
            id=table_id,
            title=f"Return of {matrix.role}{what}",
            caption=(
                f"Interquartile mean over pairs of runs [95 %]; merit: the row's mean over all "
                "columns less that of all rows [95 %, widened for small samples]. *: some of its "
                "matches are of policies that were trained together, which know each other. "
                f"{rule}"
            ),
            headings=(
                Heading(f"{matrix.role} played by", True),
                Heading("merit"),
                *(Heading(f"vs {others}") for others in matrix.others),
            ),
            rows=tuple(rows),
            is_folded=is_folded,
        )

    def _matches(self, played: HeadToHead, rule: str) -> Table:
        rows = tuple(
            TableRow(
                (
                    Cell(match.role, css="text"),
                    Cell(f"{match.player} of {match.player_lineup}", css="text"),
                    Cell(f"{match.others} of {match.others_lineup}", css="text"),
                    Cell(number(match.score), _finite(match.score)),
                    _count(match.num_episodes),
                    self._run(match.run),
                    self._run(match.other_run),
                )
            )
            for match in played.matches
        )
        return Table(
            id="matches",
            title=f"All {len(played.matches)} matches",
            caption=f"Mean return of the role over the episodes. {rule}",
            headings=(
                Heading("role", True),
                Heading("played by", True),
                Heading("others", True),
                Heading("return"),
                Heading("episodes"),
                Heading("its run", True),
                Heading("the others' run", True),
            ),
            rows=rows,
            is_folded=True,
        )

    def _runs(self) -> Section:
        rows = []
        for contestant in self._of.contestants:
            standings = [self._of.standing(contestant.name, s.key) for s in self._main]
            for index, run in enumerate(contestant.runs):
                scores = [standing.runs[index] for standing in standings]
                rows.append(
                    TableRow(
                        (
                            self._name(contestant.name, is_link=False),
                            _count(run.seed),
                            self._run(run.path),
                            *(Cell(number(s.score), _finite(s.score)) for s in scores),
                            _count(scores[0].num_episodes),
                            Cell(_whole(scores[0].env_steps), scores[0].env_steps),
                            Cell(_whole(scores[0].time_s), _finite(scores[0].time_s)),
                            Cell(run.recorded.assignment, css="wrap"),
                        ),
                        id=f"{self._ids[contestant.name]}-{run.seed}",
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

    def _key(self, names: Sequence[str], styles: Mapping[str, Style]) -> tuple[KeyEntry, ...]:
        return tuple(KeyEntry(name, styles[name].colour, styles[name].css) for name in names)

    def _name(self, contestant: str, is_link: bool = True) -> Cell:
        """A contestant, which leads to its runs."""
        of = next(c for c in self._of.contestants if c.name == contestant)
        href = f"#{self._ids[contestant]}-{of.seeds[0]}" if is_link else ""
        return Cell(contestant, None, of.assignment, href, "text")

    def _estimate(self, estimate: Estimate | None, standing: Standing) -> Cell:
        if estimate is None:
            return Cell(MISSING)
        about, anchor = self._about(standing), self._anchor(standing)
        return Cell(interval(estimate), _finite(estimate.mean), about, anchor)

    def _anchor(self, standing: Standing) -> str:
        return f"#{self._ids[standing.contestant]}-{standing.runs[0].seed}"

    def _about(self, standing: Standing) -> str:
        told = [_told(run) for run in standing.runs[:_MAX_TOLD]]
        more = len(standing.runs) - len(told)
        return "\n".join([*told, *([f"and {more} more runs"] if more else [])])

    def _run(self, path: Path | None) -> Cell:
        """A run's directory, as a link from where the report lies."""
        if path is None:
            return Cell(MISSING, css="text")
        href = Path(os.path.relpath(path, self._folder.resolve())).as_posix()
        return Cell(path.name, None, str(path), href, "text")


def _told(run: RunScore) -> str:
    return f"{run.run.name}: seed {run.seed}, {run.num_episodes} episodes, {number(run.score)}"


def _definitions(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield (
        "Return",
        "Sum of an agent's raw rewards in an episode, as the simulation gave them; of a role or "
        "team the mean over its agents, of all agents the sum. Evaluation episodes train nothing.",
    )
    yield (
        "Contestant",
        "An assignment with its settings. Its runs differ in nothing but the seed, and the run is "
        "the unit of all statistics: its score is the mean return over its evaluation's episodes.",
    )
    yield (
        "Interquartile mean, interval",
        "Mean of the middle half of the scores; 95 % percentile interval of a bootstrap that draws "
        "runs again inside their own stratum (rliable; Agarwal et al. 2021, arXiv 2108.13264). "
        "With few runs it is too narrow.",
    )
    yield (
        "Probability of improvement, performance profile",
        "As in the same paper: the part of all pairs of runs in which one is higher, ties one "
        "half; the part of runs above each return.",
    )
    yield (
        "Paired difference, merit",
        "Mean of differences between runs of one seed, with a bootstrap interval that is widened "
        "by Student's t for small samples, so that it covers 95 % with few seeds, too.",
    )
    if comparison.head_to_head is not None:
        yield (
            "Head to head",
            "Every contestant's policies play every role among those of every other. Within a "
            "role all meet the same field, so that a position is not taken for merit; returns of "
            "different roles are never compared.",
        )


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _count(value: int) -> Cell:
    return Cell(str(value), value)


def _whole(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.0f}"


def _probability(estimate: Estimate) -> str:
    if not math.isfinite(estimate.low):
        return f"{estimate.mean:.2f} [{MISSING}]"
    return f"{estimate.mean:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _shade(part: float) -> str:
    """A background between orange (-1), white (0) and blue (1), pale enough for black text."""
    if not math.isfinite(part):
        return ""
    part = max(-1.0, min(1.0, part))
    end = (0, 114, 178) if part > 0 else (213, 94, 0)
    return f"rgba({end[0]}, {end[1]}, {end[2]}, {abs(part) * 0.35:.2f})"
