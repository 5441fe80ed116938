"""``muxrl watch``: show a run, a sweep or a folder of runs as a live page.

Serves a page on this machine that shows the files of runs as they grow, until Ctrl-C. It only reads
files.
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
        path (RUN|FOLDER): directory of a run or a sweep, or a folder that holds runs.
        port (N): port of the page; default: any free one.
    """
    from muxrl.orchestrator.supervise.page_process import address_of, listen
    from muxrl.orchestrator.watch.serving import serve

    if not path.is_dir():
        raise ConfigError(
            [f"there is no folder {str(path)!r}; name a run, or a folder that holds runs"]
        )
    try:
        listening = listen(port)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            [f"--port: cannot listen on port {port}: {error}; leave --port out for any free one"]
        ) from None
    with listening:
        sys.stdout.write(f"{address_of(listening)}\n")
        sys.stdout.flush()
        serve(path, listening)
