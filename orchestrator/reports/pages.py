"""Writes self-contained HTML pages from the templates of a package and of this one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.measure.number_text import number
from muxrl.orchestrator.storage.json_files import write_text
from muxrl.protocol.suggestions import listed

if TYPE_CHECKING:
    from jinja2 import Environment

    from muxrl.orchestrator.reports.table import Grid

REPORT_FILE = "report.html"


def write_page(folder: Path, template: str, package: str = "", **values: Any) -> Path:
    """Writes ``report.html``, and returns its path.

    Args:
        folder: where the page is written; its links to folders are relative to it.
        template: name of a template of this package, or of `package`.
        package: a package whose folder ``templates`` is looked at first; "": none.
        **values: values that the template shows.

    Raises:
        OSError: the folder cannot be written to.
    """
    path = folder / REPORT_FILE
    write_text(path, _environment(folder, package).get_template(template).render(values))
    return path


def _environment(folder: Path, package: str = "") -> Environment:
    """Returns the templates of this package and of another one, if given."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    own = __name__.rpartition(".")[0]
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in (package, own) if name]),
        autoescape=True,  # names of agents, runs and settings are text, not HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def href(link: str | Path) -> str:
        return from_folder(link, folder) if isinstance(link, Path) else link

    def listed_as_text(values: Iterable[object], most: int = 8) -> str:
        return listed(map(str, values), most)

    def unbroken(text: str) -> str:
        """Keeps a line from breaking within an interval."""
        return re.sub(r"\[[^]]*", lambda found: found[0].replace(" ", "\u00a0"), text)

    environment.filters.update(href=href, listed=listed_as_text, number=number, unbroken=unbroken)
    return environment


def notebook_html(
    title: str, sentences: Iterable[str], grid: Grid | None, notes: Iterable[str] = ()
) -> str:
    """Returns the HTML that a notebook shows for a result.

    Args:
        title: the heading.
        sentences: are shown below the heading.
        grid: the table, if there is one.
        notes: on what limits the results, each a sentence without its full stop.
    """
    template = _environment(Path()).get_template("notebook.html")
    return template.render(title=title, sentences=sentences, grid=grid, notes=notes)


def from_folder(path: Path, folder: Path) -> str:
    """Returns a path relative to the folder of a page, so that both can be moved together."""
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
