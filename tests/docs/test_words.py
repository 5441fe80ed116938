"""Identifiers use words of the field, or words that the glossary explains.

`words.txt` has three sections: words of the field, which `python tests/docs/test_words.py` collects
from installed packages; and by hand, names, and plain English with no special meaning here.
"""

from __future__ import annotations

import ast
import functools
import re
import sysconfig
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("words.txt")
ROOMS = ("protocol", "client", "servers", "orchestrator")
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
GLOSSARY = re.compile(r"^- \*\*(\w+)\*\*: ", re.MULTILINE)
FIELD = ("ray/rllib", "stable_baselines3", "gymnasium", "pettingzoo", "torch")
LEFT_OUT = {"site-packages", "tests", "test", "testing", "examples", "idlelib", "lib2to3"}
MIN_FILES = 5
"""A word in fewer files is one author's; if only one package has it, it takes twice as many."""

Found = dict[str, Counter[Path]]
"""By word: how often it is in each file."""


def words_of(folder: Path, found: Found) -> Found:
    """Adds the words in names of functions, classes, arguments, variables and attributes."""
    for path in folder.rglob("*.py"):
        if LEFT_OUT.isdisjoint(path.relative_to(folder).parts):
            for node in ast.walk(ast.parse(path.read_bytes())):
                name = getattr(node, "name", None) if isinstance(node, ast.stmt) else None
                if isinstance(node, ast.arg):
                    name = node.arg
                elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                    name = node.id if isinstance(node, ast.Name) else node.attr
                for word in WORD.findall(name or ""):
                    if len(word) > 2:
                        found[word.lower()][path] += 1
    return found


@functools.cache
def ours() -> Found:
    found: Found = defaultdict(Counter)
    for room in ROOMS:
        words_of(ROOT / room, found)
    return found


def forms(word: str) -> Iterator[str]:
    """Yields a word, and words of which it may be the plural or another tense."""
    yield word
    for suffix in ("s", "es", "d", "ed", "ing"):
        stem = word.removesuffix(suffix)
        if len(word) > len(stem) > 2 and not word.endswith("ss"):
            yield from forms(stem)
            yield stem + "e"
            if stem[-1] in ("i", stem[-2]):  # as in tries and planned
                yield stem[:-1] + "y" * (stem[-1] == "i")


def sections() -> list[set[str]]:
    """Returns the words of each section: the field's, names, plain English."""
    return [set(part.split()) for part in re.split("^#.*\n", LIST.read_text(), flags=re.M)[1:]]


def glossary() -> list[str]:
    return GLOSSARY.findall((ROOT / "docs/concepts.md").read_text())


def test_identifiers_have_no_private_words() -> None:
    known = set(glossary()).union(*sections())
    found = {word: files for word, files in ours().items() if known.isdisjoint(forms(word))}
    lines = [
        f"  {word}: {files.total()} times, in "
        + ", ".join(str(path.relative_to(ROOT)) for path, _ in files.most_common(3))
        for word, files in sorted(found.items(), key=lambda one: -one[1].total())
    ]
    if lines:
        pytest.fail(
            "\n".join(
                [
                    "words of identifiers that are neither the field's nor in the glossary:",
                    *lines,
                    "Use the field's word. One of our own earns a line in the glossary of",
                    f"docs/concepts.md; plain English, a place in the last section of {LIST.name}.",
                ]
            ),
            pytrace=False,
        )


def test_the_glossary_has_at_most_ten_words() -> None:
    assert 0 < len(glossary()) <= 10


def test_sections_by_hand_hold_only_what_is_needed() -> None:
    """Longer lists would not be read."""
    field, names, english = sections()
    used = {form for word in ours() for form in forms(word)}
    assert not (names | english) - used
    assert not {word for word in names | english if not field.isdisjoint(forms(word))}


def main() -> None:
    """Writes the section of the field's words anew."""
    paths, found = sysconfig.get_paths(), defaultdict(Counter)
    num_packages: Counter[str] = Counter()
    for folder in (Path(paths["stdlib"]), *(Path(paths["purelib"]) / name for name in FIELD)):
        new = words_of(folder, defaultdict(Counter))
        num_packages.update(new.keys())
        for word, files in new.items():
            found[word].update(files)
    few = {w for w, files in found.items() if len(files) < MIN_FILES * (1 + (num_packages[w] < 2))}
    field = found.keys() - few
    words = sorted(word for word in field if field.isdisjoint([*forms(word)][1:]))
    text = textwrap.fill(" ".join(words), 100)
    LIST.write_text(re.sub(r"(?<=\n)[^#]*", f"{text}\n", LIST.read_text(), count=1))


if __name__ == "__main__":
    main()
