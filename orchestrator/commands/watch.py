"""``muxrl watch``: show a run, a sweep or a folder of runs as a live page.

Serves a page on this machine that shows what the files say, live; it reads only. Ctrl-C ends it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.errors import ConfigError


@command()
def watch(path: Path = Path("runs"), *, port: int = 0) -> None:
    """Serves the page until it is ended.

    Args:
        path (RUN|FOLDER): directory of a run or a sweep, or the parent of runs.
        port (N): of the page; default: any free one.
    """
    from muxrl.orchestrator.supervise.page_process import address_of, listen
    from muxrl.orchestrator.watch.serving import serve

    if not path.is_dir():
        raise ConfigError([f"there is no folder {str(path)!r}; name a run, or their parent"])
    try:
        listening = listen(port)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            [f"--port: the page cannot be on port {port}: {error}; leave it out for any"]
        ) from None
    with listening:
        sys.stdout.write(f"{address_of(listening)}\n")
        sys.stdout.flush()
        serve(path, listening)
