"""What the page shows of a folder: its runs and sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muxrl.orchestrator.manage.listing import Listing


class FolderView:
    """Reads a folder again and again.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.resolve().name
        self._listing = Listing(path)

    def read(self) -> dict[str, Any]:
        """Returns the folder as it stands now; see `muxrl.orchestrator.manage.listing`.

        Raises:
            OSError: it cannot be read.
        """
        entries = self._listing.read()
        return {
            "kind": "folder",
            "name": self._name,
            "is_whole": True,
            "num_left_out": self._listing.num_left_out,
            "entries": entries,
        }
