"""What is said about a config that cannot be run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class ConfigError(Exception):
    """A config cannot be run as it is: fix the file or the command line.

    Args:
        problems: one sentence each, all that were found.
        source: the config's file, "" if it came from elsewhere.
    """

    def __init__(self, problems: Sequence[str], source: str = "") -> None:
        self.problems = list(problems)
        self.source = source
        super().__init__("\n".join(f"{source}: {p}" if source else p for p in self.problems))


def listed(names: Iterable[str], most: int = 8) -> str:
    """Returns names as "a, b, c", cut after `most` of them."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
