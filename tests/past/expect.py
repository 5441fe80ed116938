"""Writes expected.json: `python -m tests.past.expect`. It was made once; see README.md."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.past.figures import PAST, figures, unpack


def main() -> None:
    """Writes what the past's files come to."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(Path(folder))
        text = json.dumps(figures(Path(folder)))
    (PAST / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
