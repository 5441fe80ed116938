"""A terminal on which only muxrl speaks."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(but_raise: tuple[type[Exception], ...]) -> Iterator[None]:
    """Keeps what RLlib and environments print while they load off the terminal.

    File descriptors are turned, not `sys.stderr`: loggers made meanwhile keep the stream they
    find, and must speak again later. After an unexpected exception all of it is shown.
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
        except but_raise:
            raise
        except BaseException:
            failed = True
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
