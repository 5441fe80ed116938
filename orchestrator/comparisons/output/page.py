"""The report: one HTML file that needs no other, for a desk and for a phone.

What the page says is in ``templates/``, a file for each section; here the tables and figures that
each section shows are put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.findings.head_to_head import HeadToHead
from muxrl.orchestrator.comparisons.findings.role_by_role import RoleResult
from muxrl.orchestrator.comparisons.findings.roles import Subject
from muxrl.orchestrator.comparisons.output import tables
from muxrl.orchestrator.comparisons.output.figures import (
    final_returns,
    learning_curves,
    performance_profiles,
    styles_of,
)
from muxrl.orchestrator.comparisons.output.files import from_folder
from muxrl.orchestrator.comparisons.output.table import Grid
from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.records.json_files import write_text
from muxrl.orchestrator.reports.number_text import number

REPORT_FILE = "report.html"
_Section = dict[str, Any]
"""A section's id, title and template, and what the template shows."""


def write_page(found: Findings, folder: Path) -> Path:
    """Writes ``report.html``.

    Returns:
        Its path.

    Raises:
        OSError: the folder cannot be written to.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,  # names of agents, runs and settings are text, not HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def href(link: str | Path) -> str:
        return from_folder(link, folder) if isinstance(link, Path) else link

    def listed_as_text(values: Iterable[object], most: int = 8) -> str:
        return listed(map(str, values), most)

    environment.filters.update(href=href, listed=listed_as_text, number=number)
    template = environment.get_template("page.html")
    path = folder / REPORT_FILE
    write_text(path, template.render(found=found, sections=list(_sections(found))))
    return path


def returns_grids(found: Findings, headings: Mapping[str, str]) -> list[Grid]:
    """Returns the contestants' returns, then the baselines'.

    Args:
        found: whose.
        headings: of the columns, by the key of the subject that each shows.
    """
    return [
        table.spread(["contestant"], "subject", headings, shown, ["num_runs"])
        for table, shown in ((tables.standings(found), "iqm"), (tables.baselines(found), "mean"))
    ]


def _sections(found: Findings) -> Iterator[_Section]:
    yield _returns(found)
    learning = _learning(found)
    if learning["figures"]:
        yield learning
    for result in found.roles_compared:
        yield _role(found, result)
    if found.head_to_head is not None:
        yield _head_to_head(found, found.head_to_head)
    yield _runs(found)


def _returns(found: Findings) -> _Section:
    styles = styles_of([c.name for c in found.contestants])
    others = [s for s in found.subjects if s not in found.main_subjects]
    return {
        "id": "side-by-side",
        "title": "Returns side by side",
        "template": "returns.html",
        "figures": [final_returns(found, subject, styles) for subject in found.main_subjects],
        "grids": returns_grids(found, _titles(found.main_subjects)),
        "other_grids": returns_grids(found, _titles(others)) if others else [],
    }


def _learning(found: Findings) -> _Section:
    styles = styles_of([c.name for c in found.contestants])
    learning = [c.name for c in found.contestants if c.learns]
    table = tables.standings(found)
    return {
        "id": "learning",
        "title": "Learning",
        "template": "learning.html",
        "styles": {name: styles[name] for name in learning},
        "figures": [
            picture
            for subject in found.main_subjects
            for axis in ("env_steps", "time_s")
            if (picture := learning_curves(found, subject, axis, styles)) is not None
        ],
        "grids": [
            (
                subject,
                table.of(found.standing(name, subject.key) for name in learning).grid(
                    [
                        "contestant",
                        "area",
                        "num_reached",
                        "env_steps_to_threshold",
                        "time_s_to_threshold",
                        "time_s",
                    ]
                ),
            )
            for subject in found.main_subjects
        ],
    }


def _role(found: Findings, result: RoleResult) -> _Section:
    role = result.subject.name
    labels = {standing.label: standing.label for standing in result.standings}
    styles = styles_of(list(labels))
    pairings = tables.pairings(found)
    return {
        "id": f"role-{list(found.roles).index(role)}",
        "title": f"Who plays {role}",
        "template": "role.html",
        "result": result,
        "styles": styles,
        "figures": [performance_profiles(result, styles)],
        "standings": tables.roles(found)
        .of(result.standings)
        .grid(["label", "iqm", "random_in_place", "num_runs"], {"label": role}),
        "improvement": pairings.of(result.pairings).spread(
            ["first"], "second", labels, "improvement", headings={"first": "row > column"}
        ),
        "differences": pairings.of(result.unordered_pairings).grid(
            ["first", "second", "difference", "num_pairs"]
        ),
    }


def _head_to_head(found: Findings, played: HeadToHead) -> _Section:
    cross_play = [
        {
            "id": f"cross-{'full-' * is_full}{place}",
            "what": ", by what they were trained with" * is_full,
            "role": table.role,
            "is_folded": is_full,
            "grid": tables.cross_play(table).spread(
                ["player", "merit"],
                "others",
                {others: f"vs {others}" for others in table.others},
                "score",
                headings={"player": f"{table.role} played by"},
            ),
        }
        for is_full, group in ((False, played.by_label), (True, played.by_contestant))
        for place, table in enumerate(group)
    ]
    return {
        "id": "head-to-head",
        "title": "Head to head",
        "template": "head_to_head.html",
        "cross_play": cross_play,
        "matches": tables.matches(found).grid(
            ["role", "player", "others", "return", "num_episodes", "run", "other_run"]
        ),
    }


def _runs(found: Findings) -> _Section:
    main = _titles(found.main_subjects)
    table = tables.runs(found)
    return {
        "id": "runs",
        "title": "All runs",
        "template": "runs.html",
        "grid": table.of(run for run in table.rows if run.subject in main).spread(
            ["contestant", "seed", "run"],
            "subject",
            main,
            "return",
            ["num_episodes", "env_steps", "time_s", "assignment"],
        ),
    }


def _titles(subjects: Sequence[Subject]) -> dict[str, str]:
    return {subject.key: subject.title for subject in subjects}
