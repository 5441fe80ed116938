"""Writes expected.json: `python -m tests.past.expect`. It was made once; see README.md."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.past.figures import PAST, figures, outputs, unpack


def main() -> None:
    """Writes what the past's files give."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(Path(folder))
        found = {"figures": figures(Path(folder)), "outputs": outputs(Path(folder))}
    (PAST / "expected.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
