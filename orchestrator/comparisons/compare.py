"""Compares runs: reads and scores them, plays baselines and matches, and gathers the results.

::

    comparison = compare_runs(["sweeps/tag-20261121-101500"], should_meet=True)
    comparison.frame()                 # pandas, one row for each run and subject
    comparison.write("comparison")     # report.html and its data
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.client.env_loop import SimulationFailed
from muxrl.client.episode_metrics import TRUNCATED
from muxrl.orchestrator.comparisons.arena import Arena, random_players
from muxrl.orchestrator.comparisons.findings.by_parameter import (
    compare_by_parameter,
    parameter_notes,
)
from muxrl.orchestrator.comparisons.findings.compared_runs import (
    find_budget,
    find_runs,
    read_compared_runs,
)
from muxrl.orchestrator.comparisons.findings.contestants import (
    find_contestants,
    find_roles,
    find_subjects,
    is_cooperative,
)
from muxrl.orchestrator.comparisons.findings.findings import (
    Findings,
    budget_notes,
    result_notes,
)
from muxrl.orchestrator.comparisons.findings.frames import (
    AT_RANDOM,
    TABLE_NAMES,
    TableName,
    framed,
    plain,
)
from muxrl.orchestrator.comparisons.findings.head_to_head import HeadToHead, frames_of
from muxrl.orchestrator.comparisons.findings.learners import find_learners
from muxrl.orchestrator.comparisons.findings.scores import (
    compare_roles,
    curves,
    score_runs,
    standings,
)
from muxrl.orchestrator.comparisons.matches import (
    check_equal_training,
    find_scripts,
    find_snapshots,
    kept,
    play_baselines,
    play_head_to_head,
)
from muxrl.orchestrator.comparisons.output import tables
from muxrl.orchestrator.comparisons.output.written import write_comparison
from muxrl.orchestrator.config.seeds import evaluation_seed
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.records.frames import frame_of
from muxrl.orchestrator.records.run_directory import TRIALS_FILE
from muxrl.orchestrator.storage.checkpoints import LAST
from muxrl.protocol.suggestions import similar_or_known

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Comparison(Findings):
    """The comparison of runs of one simulation; `Findings` documents its attributes."""

    def frame(self, table: TableName = "runs") -> pandas.DataFrame:
        """Returns one of the tables as a pandas frame, with the columns of its CSV file.

        Args:
            table: what has a row each. "runs": each run and subject; "curves": each evaluation of a
                run and subject; "standings": each contestant and subject; "roles": each label of a
                role; "pairings": each ordered pair of labels; "parameters": each value of a
                parameter of the episodes, contestant and subject; "learners": each role of each
                contestant that was learned; "matches": each match of the head to head.

        Raises:
            ValueError: there is no such table.
        """
        if table not in TABLE_NAMES:
            raise ValueError(
                f"there is no table {table!r}; the tables are {', '.join(TABLE_NAMES)}"
            )
        found = plain(table, self.frames[table])
        return frame_of(list(found), found.itertuples(index=False, name=None))

    def _repr_html_(self) -> str:
        """Returns a notebook's view: the main results, and the contestants' returns."""
        from muxrl.orchestrator.reports.pages import notebook_html

        grid = tables.returns(self, self.main_subjects)
        return notebook_html("Returns side by side", self.headline, grid, self.notes)

    def write(self, folder: str | Path) -> Path:
        """Writes the report and its data into a folder, made if absent.

        The data are a CSV file for each table, and ``comparison.json`` with all estimates.

        Returns:
            The path of the report, ``report.html``.

        Raises:
            OSError: the folder cannot be written to.
        """
        doing("writing the report")
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        return write_comparison(self, path)


def compare_runs(
    paths: Sequence[str | Path],
    *,
    num_episodes: int = 100,
    should_meet: bool = False,
    roles: Mapping[str, Sequence[str]] | None = None,
    interchangeable: Sequence[str] = (),
    budget: int | None = None,
    thresholds: Mapping[str, float] | None = None,
    should_explore: bool | None = None,
    checkpoint: str = LAST,
    snapshots: bool = False,
    cooperative: bool | None = None,
    games: str | Path | None = None,
) -> Comparison:
    """Compares runs of one simulation.

    Args:
        paths: run directories, or sweep directories, whose finished runs are compared.
        num_episodes: number of episodes of each baseline and each match.
        should_meet: whether policies of different runs meet head to head.
        roles: role to agent patterns; None: the roles that a sweep names; other agents that share a
            server in every run are one role.
        interchangeable: roles whose seats are rotated in the head to head.
        budget: env steps at which runs are compared; None: the most at which all were evaluated.
        thresholds: by subject's key (``role:prey``, ``total``): a return; the report says when it
            was first reached. By default it is halfway from random to the best contestant.
        should_explore: whether stochastic policies are sampled head to head; None: as in the
            runs' own evaluations.
        checkpoint: the checkpoint that meets head to head: "last", "best", or its env steps.
        snapshots: whether all checkpoints that the runs have at the same env steps meet, instead of
            one of each run.
        cooperative: whether the sum over all agents is measured, too; None: if there is one role,
            or all agents have the same return in every episode.
        games: a file of games that were played head to head. They are not played again as long as
            nothing has changed, and new ones are added. The command's file is ``games.json``,
            beside its report.

    Raises:
        CannotCompare: the runs cannot be compared with these arguments.
        MalformedMetrics: a metrics file is broken elsewhere than in its last line.
        ServerProblem: a player's server could not be started, head to head.
        SimulationFailed: the simulation raised, head to head.
    """
    if num_episodes < 1:
        raise CannotCompare(f"the number of episodes is {num_episodes}, must be at least 1")
    doing("reading runs")
    found = read_compared_runs([find_runs(path) for path in paths])
    runs = found.runs
    role_agents = find_roles(runs, found.roles if roles is None else roles)
    contestants = find_contestants(runs, role_agents)
    if cooperative is None:
        cooperative = is_cooperative(runs, role_agents)
    subjects = find_subjects(runs, role_agents, has_total=cooperative)
    _check_thresholds(thresholds or {}, subjects)
    at = find_budget(runs, budget)
    rule = next((r.should_explore for r in runs if r.should_explore), False)
    meeting_rule = bool(rule) if should_explore is None else should_explore
    notes = [*found.notes, *budget_notes(runs, at)]
    stages = find_snapshots(runs) if snapshots else None
    should_meet = should_meet or snapshots
    if should_meet and not snapshots:
        check_equal_training(runs, checkpoint)
        if at.is_cut:
            notes.append(
                "in the head to head, checkpoints play that were trained beyond that budget"
            )
    first_seed = evaluation_seed(runs[0].config)
    scripts = find_scripts(contestants, role_agents, found.scripts)
    baselines: list[dict[str, Any]] = []
    head_to_head: HeadToHead | None = None
    try:
        with Arena(runs[0].config, role_agents) as arena:
            random = random_players(contestants[0].runs[0], role_agents)
            baselines, unplayed = play_baselines(
                arena, subjects, random, scripts, range(first_seed, first_seed + num_episodes)
            )
            notes += unplayed
            if should_meet:
                with kept(None if games is None else Path(games), runs[0].config) as known:
                    head_to_head, more = play_head_to_head(
                        arena,
                        contestants,
                        role_agents,
                        scripts,
                        num_episodes,
                        should_explore=meeting_rule,
                        checkpoint=checkpoint,
                        snapshots=stages,
                        interchangeable=interchangeable,
                        known=known,
                    )
                notes += more
            notes += arena.notes()
    except (CannotCompare, SimulationFailed) as error:
        if should_meet:
            raise
        notes.append(f"no baseline was played: {error}")
    at_random = {b["subject"]: b["mean"].mean for b in baselines if b["contestant"] == AT_RANDOM}
    chosen = dict(thresholds or {})
    scores = score_runs(contestants, subjects, at, chosen, at_random)
    runs_frame = framed("runs", scores.rows)
    roles_rows, pairings = compare_roles(contestants, subjects, runs_frame)
    asked = {TRUNCATED, *(name for run in runs for name in run.metrics)}
    may_be_parts = [subject.key for subject in subjects if subject.metric in asked]
    found_rows: dict[TableName, Iterable[Mapping[str, Any]]] = {
        "curves": curves(runs_frame),
        "standings": [
            *standings(runs_frame, scores, may_be_parts),
            *baselines,
        ],
        "parameters": compare_by_parameter(contestants, subjects, at, may_be_parts),
        "roles": roles_rows,
        "pairings": pairings,
        "learners": find_learners(contestants, subjects, runs_frame),
    }
    frames = {
        "runs": runs_frame,
        **{name: framed(name, rows) for name, rows in found_rows.items()},
        **frames_of(head_to_head),
    }
    notes += result_notes(contestants, at, subjects, frames)
    notes += parameter_notes(runs)
    return Comparison(
        contestants=contestants,
        roles=role_agents,
        subjects=subjects,
        budget=at,
        should_explore=bool(rule),
        first_seed=first_seed,
        thresholds=scores.thresholds,
        given_thresholds=frozenset(chosen),
        measures=scores.measures,
        frames=frames,
        head_to_head=head_to_head,
        notes=tuple(notes),
    )


def default_folder(paths: Sequence[Path]) -> Path:
    """Returns the default folder of the report: in the sweep, or next to the first run.

    Results that come with muxrl do not count: the report cannot go into muxrl's installation.
    """
    first = next((path for path in paths if find_runs(path) == path), Path("benchmark"))
    is_sweep = (first / TRIALS_FILE).is_file()
    return first / "comparison" if is_sweep else first.resolve().parent / "comparison"


def _check_thresholds(thresholds: Mapping[str, float], subjects: Sequence[Subject]) -> None:
    known = [subject.key for subject in subjects]
    for key in thresholds:
        if key not in known:
            hint = similar_or_known(key, known, "there are")
            raise CannotCompare(f"a threshold is given for {key!r}, which is not measured{hint}")
