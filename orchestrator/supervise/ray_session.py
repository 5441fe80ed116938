"""Ray for the length of a block: of a cluster, or a local one for the trials of a sweep.

A run on one machine needs none.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.supervise.signals import without_hangup

PREFIX = "muxrl-"
"""Of the name of a temporary folder."""
_LOCK = "in_use"

# Ray's Python error does not tell a cluster that wants a token from one that is not there.
_TOKEN_REMEDY = (
    "; if Ray says before that an authentication token is missing, set RAY_AUTH_MODE=token for "
    "this command: `ray start` does so by itself where ~/.ray/auth_token exists, and joining does "
    "not"
)


@contextlib.contextmanager
def ray_session(
    num_cpus: int | None = None, address: str = "", env_vars: Mapping[str, str] | None = None
) -> Iterator[Path | None]:
    """Connects this process to Ray while the ``with`` block lasts.

    If it is connected already, that Ray is used, and left alone.

    Args:
        num_cpus: logical CPUs of a local Ray.
        address: of the cluster to join, as Ray takes it; "" starts a local Ray.
        env_vars: environment variables of all workers, on top of this process's.

    Yields:
        The temporary folder of a local Ray that was started here, else None.

    Raises:
        RunFailed: Ray did not start, or there is no such cluster.
    """
    if find_spec("ray") is None:
        raise RunFailed(
            "sweeps, leagues and runs on several machines need ray, not installed here; it comes "
            "with: pip install 'muxrl[tune]'"
        )
    import ray

    if ray.is_initialized():
        yield None
        return
    doing("joining Ray" if address else "starting Ray")
    with contextlib.ExitStack() as stack:
        folder = None
        options: dict[str, object] = {"address": address}
        if not address:
            # Ray's workers run at niceness 15 by default: any other process would starve the run.
            os.environ.setdefault("RAY_worker_niceness", "0")
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
            folder = RayFolder()
            stack.callback(folder.remove)
            options = {
                "num_cpus": num_cpus,
                "include_dashboard": False,
                "_temp_dir": str(folder.path),
            }
        try:
            with _quiet(), without_hangup():
                stack.callback(_shut_down)
                ray.init(
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"env_vars": dict(env_vars)} if env_vars else None,
                    **options,
                )
        except Exception as error:  # Ray may raise anything
            what = f"no Ray cluster at {address!r} to join" if address else "Ray did not start"
            remedy = _TOKEN_REMEDY if address and "RAY_AUTH_MODE" not in os.environ else ""
            raise RunFailed(f"{what}: {type(error).__name__}: {error}{remedy}") from error
        yield None if folder is None else folder.path


def _shut_down() -> None:
    """Ends Ray, whose crash handler puts SIGTERM back to its default then."""
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    ray.shutdown()
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Swallows what Ray prints on starting; errors are raised."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


class RayFolder:
    """A new temporary folder for a Ray of our own, locked as long as this process lives.

    A process that is killed leaves its own; whoever makes one removes those that nobody holds.
    """

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Locked before it has its name: nobody finds it there unlocked.
        new = self.path / "new"
        self._lock = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Removes it; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_abandoned(where: Path) -> None:
    """Removes the folders below `where` whose process has ended."""
    for lock in where.glob(f"{PREFIX}*/{_LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:  # another user's, or gone since
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # in use
        else:
            shutil.rmtree(lock.parent, ignore_errors=True)
        finally:
            os.close(descriptor)
