"""The report: one HTML file with everything in it, for a desk and for a phone.

Sections are made as values, each kind in a module of its own; `page.html` only lays them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from muxrl.orchestrator.comparisons.comparison import Comparison
from muxrl.orchestrator.comparisons.head_to_head_section import head_to_head_section
from muxrl.orchestrator.comparisons.page_values import Section
from muxrl.orchestrator.comparisons.provenance import Provenance
from muxrl.orchestrator.comparisons.returns_sections import ReturnsSections
from muxrl.orchestrator.comparisons.role_section import role_section
from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.records.json_files import write_text

REPORT_FILE = "report.html"
_TEMPLATE = "page.html"


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
    provenance = Provenance(comparison, folder)
    html = template.render(
        title=_title(comparison),
        facts=_facts(comparison, provenance.rule),
        notes=comparison.notes,
        sections=list(_sections(comparison, provenance)),
        definitions=list(_definitions(comparison)),
    )
    path = folder / REPORT_FILE
    write_text(path, html)
    return path


def _title(comparison: Comparison) -> str:
    name = comparison.env.rpartition(":")[2] or comparison.env
    num = len(comparison.contestants)
    return f"{name}: {num} assignment{'s'[: num != 1]} compared"


def _facts(comparison: Comparison, rule: str) -> str:
    kwargs = ", ".join(f"{key}={value}" for key, value in comparison.kwargs.items())
    roles = "; ".join(f"{role}: {listed(agents)}" for role, agents in comparison.roles.items())
    return f"Simulation {comparison.env}({kwargs}). Roles: {roles}. {rule}"


def _sections(comparison: Comparison, provenance: Provenance) -> Iterator[Section]:
    contestants = ReturnsSections(comparison, provenance)
    yield contestants.returns()
    yield from contestants.learning()
    for result in comparison.roles_compared:
        yield role_section(comparison, result, provenance)
    if comparison.head_to_head is not None:
        yield head_to_head_section(comparison.head_to_head, provenance)
    yield contestants.runs()


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
