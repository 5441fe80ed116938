"""Ray for the length of a block: a local one that leaves nothing behind, or a cluster's.

Environment variables are set here, before numpy or torch is imported where that can be helped:
with several processes on few cores, their thread pools would only get in each other's way.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.supervise import fork_server
from muxrl.orchestrator.supervise.fork_server import ForkServer
from muxrl.orchestrator.supervise.signals import without_hangup
from muxrl.orchestrator.user_modules import worker_variables

PREFIX = "muxrl-"
"""Of the name of a temporary folder."""
_LOCK = "in_use"

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment of every process; a server's `num_torch_threads` asks torch for more."""

_ENDS_S = 3.0
"""For Ray's processes to end once it has been shut down."""

# Ray's Python error does not tell a cluster that wants a token from one that is not there.
_TOKEN_CURE = (
    "; if Ray says before that an authentication token is missing, set RAY_AUTH_MODE=token for "
    "this command: `ray start` does so by itself where ~/.ray/auth_token exists, and joining does "
    "not"
)


def worker_environment() -> dict[str, str]:
    """Returns the environment variables of every process of a run."""
    python_path = os.environ.get("PYTHONPATH")  # a cluster's workers do not inherit it
    return {
        **ONE_THREAD,
        **worker_variables(),
        **({"PYTHONPATH": python_path} if python_path else {}),
    }


def begin_early(address: str) -> None:
    """Has what a local Ray will need imported, while this process looks at the experiment.

    Args:
        address: as for `ray_session`; with one, or where Ray runs already, there is nothing to do.
    """
    ray = sys.modules.get("ray")
    if not address and (ray is None or not ray.is_initialized()):
        fork_server.begin_early(worker_environment())


@contextlib.contextmanager
def ray_session(
    num_cpus: int,
    address: str = "",
    env_vars: Mapping[str, str] | None = None,
    say: Callable[[str], object] = lambda sentence: None,
) -> Iterator[Path | None]:
    """Connects this process to Ray while the ``with`` block lasts.

    If it is connected already, that Ray is used, and left alone.

    Args:
        num_cpus: logical CPUs of a local Ray.
        address: of the cluster to join, as Ray takes it; "" starts a local Ray.
        env_vars: environment variables of all workers, on top of this process's.
        say: is told what Ctrl-C does while a local Ray starts; that takes seconds.

    Yields:
        The temporary folder of a local Ray that was started here, else None.

    Raises:
        RunFailed: Ray did not start, or there is no such cluster.
    """
    import ray

    if ray.is_initialized():
        yield None
        return
    doing("joining Ray" if address else "starting Ray")
    try:
        local = None if address else _LocalRay(num_cpus, env_vars, say)
        if address:
            logging.getLogger("ray").setLevel(logging.ERROR)
            _init(env_vars, address=address)
    except Exception as error:  # Ray may raise anything
        what = f"no Ray cluster at {address!r} to join" if address else "Ray did not start"
        cure = _TOKEN_CURE if address and "RAY_AUTH_MODE" not in os.environ else ""
        raise RunFailed(f"{what}: {type(error).__name__}: {error}{cure}") from error
    try:
        yield None if local is None else local.folder.path
    finally:
        if local is None:
            ray.shutdown()
        else:
            local.stop()


class _LocalRay:
    """Ray on this machine, in a folder of its own, so that nothing of it is left.

    Args:
        num_cpus, env_vars, say: see `ray_session`.
    """

    def __init__(
        self, num_cpus: int, env_vars: Mapping[str, str] | None, say: Callable[[str], object]
    ) -> None:
        import ray

        class OwnPath(ray.job_config.JobConfig):
            """Keeps Ray from putting the current folder first in its workers' ``sys.path``.

            `muxrl.orchestrator.user_modules` puts it last there. Ray has no option for this, but it
            leaves the path alone where it believes that the job brings a working directory.
            """

            def _runtime_env_has_working_dir(self) -> bool:
                return True

        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # Ray's workers run at niceness 15 by default: any other process would starve the run.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Without a runtime environment, one for each CPU: none of ours can be one of them.
        os.environ.setdefault("RAY_enable_worker_prestart", "0")
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
        # By default a minute; the first worker of the `fork_server` waits for imports, perhaps on a
        # machine that does much else.
        os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")
        self.folder = RayFolder()
        self._fork_server = None
        try:
            with _quiet(), _without_helpers(), without_hangup():
                self._fork_server = ForkServer.if_possible(self.folder.path, worker_environment())
                _init(
                    env_vars,
                    num_cpus=num_cpus,
                    include_dashboard=False,
                    job_config=OwnPath(),
                    _temp_dir=str(self.folder.path),
                )
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                say("interrupted while Ray started: ending what there is of it")
            self.stop()
            raise

    def stop(self) -> None:
        """Ends Ray and all its processes, and removes the folder."""
        import ray

        started = _processes_of_raylet()
        if self._fork_server is not None:
            started += self._fork_server.workers()
            self._fork_server.stop()
        ray.shutdown()
        _end(started)
        self.folder.remove()


def _processes_of_raylet() -> list[Any]:
    import psutil  # type: ignore[import-untyped]  # Ray brings it along, once it is imported

    raylets = [p for p in psutil.Process().children() if p.name() == "raylet"]
    return [child for raylet in raylets for child in raylet.children(recursive=True)]


def _end(processes: list[Any]) -> None:
    """Kills those that do not end: Ray's agents seek a GCS that has died for a minute."""
    import psutil

    _, living = psutil.wait_procs(processes, timeout=_ENDS_S)
    for process in living:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(living, timeout=_ENDS_S)


def _init(env_vars: Mapping[str, str] | None, **arguments: Any) -> None:
    import ray
    from ray._private import ray_constants, utils

    # Ray's crash handler resets SIGTERM to its default when Ray is shut down: one that comes then
    # would end this process before it has cleaned up. Ray's workers keep the handler.
    ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True
    # A SIGTERM while it starts would likewise end this process, by a handler of Ray's own.
    with mock.patch.object(utils, "set_sigterm_handler"):
        ray.init(
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": dict(env_vars)} if env_vars else None,
            **arguments,
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Swallows what Ray prints on starting; errors are raised."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


@contextlib.contextmanager
def _without_helpers() -> Iterator[None]:
    """Has `ray.init` start no dashboard, log monitor or autoscaler, which nobody here would ask.

    Each is a process that imports Ray for itself. `ray start` has options for two of them,
    `ray.init` for none; without ``include_dashboard`` there is still one for usage statistics.
    """
    from ray._private.node import Node

    with (
        mock.patch.object(Node, "start_api_server"),
        mock.patch.object(Node, "start_log_monitor"),
        mock.patch.object(Node, "start_monitor"),
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
