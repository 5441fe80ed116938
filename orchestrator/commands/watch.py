"""``muxrl watch``: show a run, a sweep or a folder of runs as a live page.

Serves a page on this machine that shows what the files say, live; it reads only. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from muxrl.orchestrator.errors import ConfigError, ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        default=Path("runs"),
        metavar="RUN|FOLDER",
        help="directory of a run or a sweep, or the parent of runs; default: runs",
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="of the page; default: any free one"
    )


def run(args: argparse.Namespace) -> int:
    """Serves the page until it is ended, and returns the exit code."""
    from muxrl.orchestrator.supervise.page_process import address_of, listen
    from muxrl.orchestrator.watch.serving import serve

    if not args.path.is_dir():
        raise ConfigError([f"there is no folder {str(args.path)!r}; name a run, or their parent"])
    try:
        listening = listen(args.port)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            [f"--port: the page cannot be on port {args.port}: {error}; leave it out for any"]
        ) from None
    with listening:
        sys.stdout.write(f"{address_of(listening)}\n")
        sys.stdout.flush()
        serve(args.path, listening)
    return ExitCode.DONE
