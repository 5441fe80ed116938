"""The site is built without a warning, and no link of its pages is dead."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest

import muxrl

ROOT = Path(__file__).parents[2]
LINK = re.compile(r'(?:href|src)="([^"]+)"')
ELSEWHERE = re.compile(r"[a-z]+:|//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if lacking := [name for name in ("material", "mkdocstrings_handlers") if not find_spec(name)]:
        pytest.skip(f"{' and '.join(lacking)} not installed here: make setup")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "docs/build_site.py", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_every_link_and_every_anchor_exists(site: Path) -> None:
    dead = [
        f"{page.relative_to(site)}: {link}"
        for page in site.rglob("*.html")
        for link in LINK.findall(page.read_text())
        if not ELSEWHERE.match(link) and not _leads(site, page, link)
    ]
    assert not dead


def test_the_site_has_every_page_and_every_exported_name(site: Path) -> None:
    for page in _pages():
        folder = site / page.replace(".github", "github").removesuffix(".md")
        folder = folder.parent if folder.name == "README" else folder
        assert (folder / "index.html").is_file(), page
    found = set(re.findall(r'<h2 id="muxrl\.(\w+)"', (site / "docs/python/index.html").read_text()))
    assert found == set(muxrl.__all__)


def _pages() -> Iterator[str]:
    yield from (path.name for path in ROOT.glob("*.md"))
    for folder in ("docs", "experiments", ".github"):
        yield from (str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.md"))


def _leads(site: Path, page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    path = path.partition("?")[0]
    start = site if path.startswith("/") else page.parent
    target = (start / path.lstrip("/")).resolve() if path else page
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return False
    return not anchor or target.suffix != ".html" or unquote(anchor) in _anchors(target)


@cache
def _anchors(page: Path) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', page.read_text()))
