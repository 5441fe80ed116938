"""A comparison for people: one HTML file that needs no other, and a summary on the terminal.

What the page says is in ``templates/``, a file for each section, which asks `tables` and `figures`
for what it shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from muxrl.orchestrator.comparisons.findings.contestants import versions_of
from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.findings.head_to_head import RANDOM
from muxrl.orchestrator.comparisons.output import figures, tables
from muxrl.orchestrator.comparisons.output.methods import methods
from muxrl.orchestrator.config import to_yaml
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.reports.pages import write_page
from muxrl.orchestrator.reports.plain_table import grid_table
from muxrl.orchestrator.reports.table import Grid

_MIN_NAME = 16
"""Of the names on the terminal, whose words are then not broken."""


def write_comparison(found: Findings, folder: Path) -> Path:
    """Writes ``report.html``.

    Returns:
        Its path.

    Raises:
        OSError: the folder cannot be written to.
    """
    curves = figures.learning_curves(found)
    sections = [
        {"id": anchor, "title": title, "template": f"{template}.html", "role": role}
        for anchor, title, template, role in _sections(found, has_curves=bool(curves))
    ]
    return write_page(
        folder,
        "page.html",
        __package__,
        found=found,
        sections=sections,
        tables=tables,
        drawn=figures,
        curves=curves,
        below=tables.BELOW_MARK.strip(),
        baselines=baseline_caption(found),
        versions=versions_of(found.contestants),
        configs={c.name: to_yaml(c.runs[0].config) for c in found.contestants},
        methods=methods(found),
    )


def _sections(found: Findings, *, has_curves: bool) -> Iterator[tuple[str, str, str, str]]:
    """Yields each section's id, title and template, and the role that it is of."""
    yield "settings", "Settings and versions", "settings", ""
    if len(found.frames["learners"]):
        yield "learned", "Who has learned", "learned", ""
    yield "side-by-side", "Returns side by side", "returns", ""
    if len(found.frames["parameters"]):
        yield "parameters", "By parameter of the episodes", "parameters", ""
    if has_curves:
        yield "learning", "Learning", "learning", ""
    for place, role in enumerate(found.roles):
        if role in set(found.frames["roles"].role):
            yield f"role-{place}", f"Who plays {role}", "role", role
    if found.head_to_head is not None:
        yield "head-to-head", "Head to head", "head_to_head", ""
    yield "runs", "All runs", "runs", ""


def baseline_caption(found: Findings) -> str:
    """Says what the rows of the baselines hold, which are over episodes; "" without any."""
    if not found.baselines:
        return ""
    num = found.baselines[0].num_episodes
    return f"Baselines: mean and interval over {num} episodes: nothing in them is trained."


def print_comparison(found: Findings, console: Console | None = None) -> None:
    """Prints the headline, the contestants' returns, the merits of the head to head, and notes."""
    console = console or Console()
    for sentence in found.headline:
        console.print(Text(sentence), style="bold")

    def returns(subjects: Sequence[Subject]) -> Grid:
        return tables.returns(found, subjects, _heading)

    of_runs = "interquartile mean over seeds"
    title, caption = f"Side by side: {of_runs}", baseline_caption(found)
    console.print(grid_table(returns(found.main_subjects), title, caption, min_text=_MIN_NAME))
    folded = [(f"Metrics: {of_runs}", returns(found.metrics))] if found.metrics else []
    for name, subject, grid in tables.by_parameter(found):
        folded.append((f"Return of {subject.name} by {name}: {of_runs}", grid))
    for title, grid in folded:
        console.print(grid_table(grid, title, min_text=_MIN_NAME, folds=True))
    if (played := found.head_to_head) is not None:
        among = (RANDOM,) if played.snapshots else ()  # for more of them the page has room
        for cross in played.by_label:
            title = f"Head to head, return of {cross.role}: interquartile mean over pairs of seeds"
            console.print(
                grid_table(tables.cross_play(played, cross, among=among), title, folds=True)
            )
    for note in found.notes:
        console.print(Text(f"Note: {note}.", style="yellow"))


def _heading(subject: Subject) -> str:
    how = "sum" if subject.kind == "total" else "mean"
    return subject.name + (f"\n{how} of {len(subject.agents)}" if len(subject.agents) > 1 else "")
