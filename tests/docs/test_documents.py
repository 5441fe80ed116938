"""Links, shown files, tables and lists of the README and the documents are true."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from muxrl.protocol.spaces import Box, Discrete, MultiDiscrete, Space
from muxrl.servers.agents.seat_actions import TeamChoices
from muxrl.servers.config import AgentPlan

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
# <!-- path --> and the code block below it.
SHOWN_FILE = re.compile(r"<!-- (\S+\.(?:py|yaml)) -->\n```\w+\n(.*?)```\n", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]*)(?:#([^)]*))?\)")
CODE_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SETTINGS = re.compile(r"<!-- settings of (\w+) -->")
# A file or folder of the project, in backticks.
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


def prose(page: Path) -> str:
    """Returns a page without its code blocks."""
    return CODE_BLOCK.sub("", page.read_text())


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)


def anchor(heading: str) -> str:
    """Returns the anchor of a heading: its letters, digits and hyphens in lower case."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Yields text, file and anchor ("" for none) of each link to a place in the project."""
    for text, target, fragment in LINK.findall(prose(page)):
        if "://" not in target:
            yield text, (page.parent / target).resolve() if target else page, fragment


def table(page: Path, heading: str) -> list[list[str]]:
    """Returns the rows of cells of the table below a heading, without the table's head."""
    section = page.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \|$", section, re.MULTILINE)
    return [row.split(" | ") for row in rows[1:]]


def test_shown_files_are_verbatim() -> None:
    for page in PAGES:
        for path, shown in SHOWN_FILE.findall(page.read_text()):
            assert shown == (ROOT / path).read_text(), f"{page.name} shows another {path}"


def test_the_readme_shows_the_loop() -> None:
    shown = [path for path, _ in SHOWN_FILE.findall((ROOT / "README.md").read_text())]
    assert "experiments/examples/twenty_lines.py" in shown


def test_links_lead_to_files_and_headings() -> None:
    missing = [
        f"{page.name}: {file.name}#{fragment}"
        for page in PAGES
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


def test_all_files_name_the_version_of_the_package() -> None:
    """`test_files_are_of_their_format` tests the format of the citation file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    assert f"\nVersion {version}, " in (ROOT / "README.md").read_text()
    (newest, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest == version
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == version
    assert cited["license"] == project["license"]
    assert project["name"] in cited["title"]


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


def test_the_index_says_from_which_samples_and_for_whom_each_algorithm_learns() -> None:
    """Other pages use these kinds."""
    from muxrl.servers.lookup import own_algorithms

    index = (DOCS / "algorithms.md").read_text()
    for one in own_algorithms():
        row = re.search(rf"^\| \[{one.name}\].*\| (.*) \| (.*) \|$", index, re.MULTILINE)
        assert row, one.name
        samples = "a replay of " if one.learns_from == "replay" else f"{one.learns_from} samples"
        assert row[1].startswith(samples), one.name
        whom = "teams" if one.seating.forms_teams else "single agents"
        assert row[2] == whom + ", teams" * is_grouped(one), one.name


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


SEEN, BOUNDED = Box((4,)), Box((1,), "float32", -1.0, 1.0)
IMAGE = Box((64, 64, 3), "uint8", 0.0, 255.0)


def takes(algorithm: Any, actions: Space, observed: Space = SEEN) -> bool:
    return bool(algorithm.takes("a", AgentPlan("", observed, actions)))


def form_of_choices(algorithm: Any) -> Space:
    agent = AgentPlan("", SEEN, MultiDiscrete((2, 3)))
    space: Space = algorithm.seating.action_form(agent).space
    return space


def has(setting: str) -> Callable[[Any], bool]:
    return lambda one: setting in one.settings()


def is_grouped(algorithm: Any) -> bool:
    return algorithm.seating.is_joint and not algorithm.seating.forms_teams


# By page and words around a list ({}): which algorithms the list has to name.
LISTS: dict[tuple[str, str], Callable[[Any], bool]] = {
    ("algorithms", "images, too; {} refuse"): lambda one: (
        not takes(one, Discrete(2) if takes(one, Discrete(2)) else BOUNDED, IMAGE)
    ),
    ("algorithms", "`start` | all but {} |"): lambda one: not takes(one, Discrete(2)),
    ("algorithms", "| {}: one distribution for each"): lambda one: isinstance(
        form_of_choices(one), MultiDiscrete
    ),
    ("algorithms", "for each; {}: each combination"): lambda one: (
        isinstance(form_of_choices(one), Discrete) and takes(one, MultiDiscrete((2, 3)))
    ),
    ("algorithms", "of any shape | {} |"): lambda one: takes(one, BOUNDED),
    ("algorithms", "as it is; {} need bounds"): lambda one: (
        takes(one, BOUNDED) and not takes(one, Box((1,)))
    ),
    ("algorithms", "optionally for {}, whose"): is_grouped,
    ("algorithms", "| {} | episodes: first"): has("num_episodes_before_learning"),
    ("algorithms", "| {} | env steps: first"): has("num_steps_sampled_before_learning_starts"),
    ("algorithms", "| {} | steps of a team"): has("num_steps_before_learning"),
    ("algorithms", "| {} | env steps: a batch"): lambda one: one.learns_from != "replay",
    ("algorithms", "`tanh`; {} have `relu`"): lambda one: (
        one.model_settings().get("fcnet_activation") == "relu"
    ),
    ("algorithms", "probabilities of its actions: {}, RLLIB_PPO"): lambda one: one.gives_log_probs,
    ("algorithms", "makes {} recurrent"): lambda one: one.memory() == "LSTM",
    ("client", "| {} | MLPs"): lambda one: one.seating.reads_no_others,
    ("client", "| {} | GRU and"): lambda one: one.seating.actions is TeamChoices,
    ("concepts", "members of a {} group"): is_grouped,
    ("export", "float32 | {}: the value of each"): lambda one: one.make.scores_name == "q_values",
}


def spelled(text: str) -> str:
    """Returns a pattern of a text that allows line breaks between its words."""
    return r"\s+".join(map(re.escape, text.split()))


def test_lists_of_algorithms_name_all_algorithms_of_their_kind() -> None:
    from muxrl.orchestrator.settings_reference import _LIST
    from muxrl.servers.lookup import own_algorithms

    pages = {page.stem: _LIST.sub("", page.read_text()) for page in DOCS.glob("*.md")}
    own = own_algorithms()
    name = rf"\b(?:{'|'.join(one.name for one in own)})\b"
    several = rf"{name}(?:(?:,| and| or|, and)\s{name})*"
    for (page, words), is_true_of in LISTS.items():
        before, after = map(spelled, words.split("{}"))
        found = re.search(rf"{before}\s*({several})\s*{after}", pages[page])
        assert found, f"{page}.md has no {words!r}"
        true_of = {one.name for one in own if is_true_of(one)}
        assert set(re.findall(name, found[1])) == true_of, (page, words)
        pages[page] = pages[page][: found.start(1)] + pages[page][found.end(1) :]
    # These pages compare muxrl with others, and tell how it was.
    compared = {"alternatives", "decisions"}
    for page in pages.keys() - compared:
        more = re.search(rf"{name}(?:(?:,| and| or|, and)\s{name}){{2,}}", pages[page])
        assert not more, f"{page}.md lists {more and more[0]}: say which kind they are, or hold it"


def test_pages_give_the_right_number_of_algorithms() -> None:
    from muxrl.servers.lookup import own_algorithms

    num = len(own_algorithms())
    assert f"[{num} algorithms](docs/algorithms.md)" in (ROOT / "README.md").read_text()
    assert f"| algorithms | {num}, and four" in (DOCS / "alternatives.md").read_text()


# --- files and functions --------------------------------------------------------------------


def test_paths_of_the_checkout_exist() -> None:
    missing = [
        f"{page.name}: {path}"
        for page in PAGES
        for path in PATH.findall(prose(page))
        if not (ROOT / path).exists()
    ]
    assert not missing


def test_each_answer_to_where_is_it_names_a_file() -> None:
    rows = table(ROOT / "CONTRIBUTING.md", "Where is it?")
    assert rows
    for question, answer in rows:
        assert PATH.findall(answer), question
