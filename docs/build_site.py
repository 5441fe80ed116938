"""Builds the site of mkdocs.yml from the checkout's Markdown, as it is, and Python's docstrings.

    python docs/build_site.py [FOLDER]

Links in the checkout lead from file to file, also out of docs/. So the site is made of a copy in
which all these lie as they do in the checkout. FOLDER/site is the site; it is build/site if none is
named.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import muxrl

ROOT = Path(__file__).resolve().parents[1]
TAKEN = (
    ":(glob)*.md",
    "LICENSE",
    "CITATION.cff",
    "docs",
    "deploy",
    "experiments",
    "benchmarks",
    ".github",
)
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s:]+)\)")


def main(folder: Path) -> int:
    """Copies, builds, and returns mkdocs' exit code: not 0 after any warning, as of a dead link."""
    source = folder / "site-source"
    shutil.rmtree(source, ignore_errors=True)
    for file in taken_files():
        copy = source / in_site(str(file.relative_to(ROOT)))
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            copy.write_text(in_site(without_folders(file)), encoding="utf-8")
        else:
            shutil.copyfile(file, copy)
    # In docs/, since docstrings link as from there: tables of it are made of them.
    named = (f"::: muxrl.{name}\n" for name in muxrl.__all__)
    (source / "docs/python.md").write_text("# From Python\n\n" + "\n".join(named), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # --quiet would hide warnings
    command += ["--site-dir", str(folder / "site")]
    variables = {"MUXRL_SITE_SOURCE": str(source), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, check=False
    ).returncode


def taken_files() -> list[Path]:
    """Returns the files of the checkout that pages are made of, or that they lead to."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *TAKEN]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    files = [ROOT / name for name in listed.split("\0") if name]
    return [file for file in files if file.is_file() and file != Path(__file__).resolve()]


def in_site(text: str) -> str:
    """Returns a path, or a page with links, without the dot of a folder that mkdocs would skip."""
    return text.replace(".github/", "github/")


def without_folders(page: Path) -> str:
    """Returns a page's text in which a link to a folder is plain: the site has no page of it."""

    def plain(link: re.Match[str]) -> str:
        return link[1] if (page.parent / link[2]).is_dir() else link[0]

    return LINK.sub(plain, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"))
