"""Connects to Ray for the length of a ``with`` block: to a cluster, or a local Ray for a sweep.

A run on one machine needs no Ray.
"""

from __future__ import annotations

import contextlib
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
from muxrl.servers.checkpoints.folder_lock import held, is_held

PREFIX = "muxrl-"
"""Prefix of the names of temporary folders."""
_LOCK = "in_use"

# Ray raises the same error if a cluster wants a token and if there is no cluster.
_TOKEN_REMEDY = (
    "; if Ray has printed that an authentication token is missing, set RAY_AUTH_MODE=token for "
    "this command: `ray start` uses ~/.ray/auth_token by itself if that file exists, but joining "
    "does not"
)


@contextlib.contextmanager
def ray_session(
    num_cpus: int | None = None, address: str = "", env_vars: Mapping[str, str] | None = None
) -> Iterator[Path | None]:
    """Connects this process to Ray while the ``with`` block lasts.

    If it is connected to a Ray already, that Ray is used, and stays connected afterwards.

    Args:
        num_cpus: logical CPUs of a local Ray.
        address: address of the cluster to join, as `ray.init` takes it; "" starts a local Ray.
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
            folder = stack.enter_context(ray_folder())
            options = {
                "num_cpus": num_cpus,
                "include_dashboard": False,
                "_temp_dir": str(folder),
            }
        try:
            with (
                open(os.devnull, "w") as nowhere,  # Ray prints as it starts; errors are raised
                contextlib.redirect_stdout(nowhere),
                contextlib.redirect_stderr(nowhere),
                without_hangup(),
            ):
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
        yield folder


def _shut_down() -> None:
    """Shuts Ray down, and restores the handler of SIGTERM, which Ray resets to the default."""
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    ray.shutdown()
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def ray_folder() -> Iterator[Path]:
    """Makes a temporary folder for a local Ray, locked and kept while the ``with`` block lasts.

    A process that is killed leaves its folder behind. So whoever makes a folder removes all others
    that no process has locked.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        # The lock gets its name when it is held, so that no process finds it unlocked.
        with held(folder / "new", lambda: RunFailed(f"{folder} is in use")):
            (folder / "new").rename(folder / _LOCK)
            for lock in folder.parent.glob(f"{PREFIX}*/{_LOCK}"):
                # On a file system without locks, the lock held here seems free, too.
                if is_held(folder / _LOCK) and not is_held(lock):
                    shutil.rmtree(lock.parent, ignore_errors=True)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
