"""What the README and the documents show is what is there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
# <!-- path --> and the code block below it.
SHOWN_FILE = re.compile(r"<!-- (\S+\.(?:py|yaml)) -->\n```\w+\n(.*?)```\n", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]*)(?:#([^)]*))?\)")
CODE_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SETTINGS = re.compile(r"<!-- settings of (\w+) -->")
# A file or folder of a room, in backticks.
PATH = re.compile(
    r"`((?:protocol|client|servers|orchestrator|experiments|benchmarks|tests)/[\w/.-]*)`"
)
# A function of a file, `path/file.py:name` or `path/file.py:Class.name`.
FUNCTION = re.compile(r"`([\w/]+\.py):([\w.]+)`")
ALGORITHM_HEADINGS = [
    "What it is",
    "Source",
    "When to use it",
    "Settings",
    "Where it departs, and why",
    "What it cannot do",
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """Returns a page without its code blocks."""
    return CODE_BLOCK.sub("", page.read_text())


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)


def anchor(heading: str) -> str:
    """Returns what a heading is linked by: its letters, digits and hyphens in lower case."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Yields text, file and anchor ("" for none) of each link that stays in the project."""
    for text, target, fragment in LINK.findall(prose(page)):
        if "://" not in target:
            yield text, (page.parent / target).resolve() if target else page, fragment


def table(page: Path, heading: str) -> list[list[str]]:
    """Returns the cells of the table below a heading, without its head."""
    section = page.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \|$", section, re.MULTILINE)
    return [row.split(" | ") for row in rows[1:]]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_shown_files_are_verbatim(page: Path) -> None:
    for path, shown in SHOWN_FILE.findall(page.read_text()):
        assert shown == (ROOT / path).read_text(), f"{page.name} shows another {path}"


def test_the_readme_shows_the_loop() -> None:
    shown = [path for path, _ in SHOWN_FILE.findall((ROOT / "README.md").read_text())]
    assert "experiments/examples/twenty_lines.py" in shown


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    missing = [
        f"{file.name}#{fragment}"
        for _, file, fragment in links(page)
        if not file.exists() or (fragment and fragment not in map(anchor, headings(file)))
    ]
    assert not missing


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    todo = list(reached)
    while todo:
        for _, file, _ in links(todo.pop()):
            if file.suffix == ".md" and file not in reached:
                reached.add(file)
                todo.append(file)
    assert set(PAGES) <= reached


def test_all_files_say_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nVersion {version}, " in (ROOT / "README.md").read_text()
    (newest, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version


def test_the_citation_has_what_its_format_requires() -> None:
    """https://github.com/citation-file-format/citation-file-format, schema 1.2.0."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited.keys() <= {
        *("cff-version", "message", "type", "title", "abstract", "authors", "version", "license"),
        *("keywords", "date-released", "doi", "identifiers", "repository-code", "url"),
    }
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited["license"] == project["license"]
    assert cited["message"]
    assert project["name"] in cited["title"]
    assert cited["authors"]
    for author in cited["authors"]:
        assert author.keys() in ({"name"}, {"family-names", "given-names"})


# --- algorithms -----------------------------------------------------------------------------


def algorithm_names() -> list[str]:
    from muxrl.servers.fixed_policies import FIXED
    from muxrl.servers.lookup import own_algorithms

    return [entry.name for entry in (*own_algorithms(), *FIXED)]


def test_every_algorithm_has_a_page_with_the_same_headings() -> None:
    names = algorithm_names()
    pages = {page.stem.upper(): page for page in (DOCS / "algorithms").glob("*.md")}
    assert sorted(pages) == sorted(names)
    for name in names:
        assert headings(pages[name]) == [name, *ALGORITHM_HEADINGS], pages[name]


def test_the_index_lists_every_algorithm() -> None:
    index = DOCS / "algorithms.md"
    listed = [text for text, file, _ in links(index) if file.parent == DOCS / "algorithms"]
    assert set(algorithm_names()) <= set(listed)


def test_settings_are_documented_as_they_are_declared() -> None:
    from muxrl.orchestrator.settings_reference import SHOWN_BY, with_lists
    from muxrl.servers.lookup import find, own_algorithms

    index = (DOCS / "algorithms.md").read_text()
    assert "<!-- common settings -->" in index
    assert with_lists(index) == index, "the common list is not new: run make docs"
    for entry in own_algorithms():
        page = (DOCS / "algorithms" / f"{entry.name.lower()}.md").read_text()
        assert with_lists(page) == page, f"{entry.name}'s list is not new: run make docs"
        if entry.name in SHOWN_BY:
            others = find(SHOWN_BY[entry.name]).settings()
            assert others == others | entry.settings(), entry.name
        else:
            assert SETTINGS.findall(page) == [entry.name], entry.name


# --- files and functions --------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_of_the_checkout_exist(page: Path) -> None:
    missing = [path for path in PATH.findall(prose(page)) if not (ROOT / path).exists()]
    assert not missing


def test_the_map_names_files() -> None:
    rows = table(ROOT / "CONTRIBUTING.md", "Where is it?")
    assert rows
    for question, answer in rows:
        assert PATH.findall(answer), question
