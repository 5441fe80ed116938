"""The Ray of a run: one's own on this machine, that leaves nothing behind, or a cluster's.

Environment variables are set here, before numpy or torch is imported where that can be helped:
with several processes on few cores, their thread pools would only get into each other's way.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment of every process; a server's `num_torch_threads` asks torch for more."""

RAY_FOLDER_PREFIX = "muxrl-"
"""Of the name of a local Ray's temporary folder."""


def worker_environment() -> dict[str, str]:
    """Returns what every process of a run finds in its environment.

    It imports the user's own modules as this process does, from the current folder too.
    """
    paths = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)}


def start_local_ray(num_cpus: int, env_vars: Mapping[str, str] | None = None) -> str:
    """Starts Ray for this process and its children.

    Args:
        num_cpus: logical ones, for placement.
        env_vars: environment of all its workers, on top of this process's.

    Returns:
        Ray's folder, to be given to `stop_local_ray`.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray's workers run at niceness 15 by default: any other process would starve the run.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Its own folder, so that nothing of it is left when the run is over.
    folder = tempfile.mkdtemp(prefix=RAY_FOLDER_PREFIX)
    try:
        with _quiet():
            _init(env_vars, num_cpus=num_cpus, include_dashboard=False, _temp_dir=folder)
    except BaseException:  # Ctrl-C in the middle of it, too
        stop_local_ray(folder)
        raise
    return folder


def stop_local_ray(folder: str) -> None:
    """Ends Ray and removes its folder."""
    import ray

    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def join_ray(address: str, env_vars: Mapping[str, str] | None = None) -> None:
    """Joins the cluster at an address, until ``ray.shutdown()``.

    Args:
        address: as Ray takes it.
        env_vars: as of `start_local_ray`.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    _init(env_vars, address=address)


@contextlib.contextmanager
def local_ray(num_cpus: int) -> Iterator[None]:
    """Ray while the ``with`` block lasts; one that is running already is used, and left alone."""
    import ray

    if ray.is_initialized():
        yield
        return
    folder = start_local_ray(num_cpus)
    try:
        yield
    finally:
        stop_local_ray(folder)


def _init(env_vars: Mapping[str, str] | None, **arguments: Any) -> None:
    import ray
    from ray._private import ray_constants

    # Ray's crash handler leaves SIGTERM at its default when Ray is shut down: one that comes then
    # would end this process before it has cleaned up. Its workers keep theirs.
    ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True
    ray.init(
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": dict(env_vars)} if env_vars else None,
        **arguments,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Swallows what Ray prints on starting; what goes wrong is raised."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield
