"""Sets the width of tables, and keeps the output of libraries off the terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from muxrl.orchestrator.errors import is_expected

if TYPE_CHECKING:
    from rich.console import Console


def table_console() -> Console:
    """Returns the console for tables; in a pipe or file it is 160 columns wide, not 80."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps what libraries and environments print while they load off the terminal.

    File descriptors are redirected, rather than `sys.stderr`: loggers that are made meanwhile keep
    the stream that they find, which must work later. After an unexpected exception all output is
    shown.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    saved = os.dup(1), os.dup(2)
    failed = False
    with tempfile.TemporaryFile() as noise:
        os.dup2(noise.fileno(), 1)
        os.dup2(noise.fileno(), 2)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except BaseException as error:
            failed = not is_expected(error)
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in enumerate(saved, start=1):
                os.dup2(copy, number)
                os.close(copy)
            if failed:
                noise.seek(0)
                sys.stderr.write(noise.read().decode(errors="replace"))
