"""Starts servers' processes as copies of one that has imported torch and Ray already.

Importing them takes seconds of processor time and hundreds of MiB, in every server anew. Here one
process per local Ray does it, and is forked for each: copies start at once, those of servers that
were lost, too, and share the memory of what was imported. It imports Ray when the first server
starts, and all else before, beside a command that looks at its experiment (`begin_early`).

Ray starts a worker by the command that ``py_executable`` in its runtime environment names; here
that is `fork_client`, which has this process fork, and waits for the copy to end. Where nobody
answers, it becomes the worker itself.

A fork is safe since this process has a single thread, is not connected to Ray, and uses no
accelerator. If a library begins another thread all the same, nothing is forked. So servers with a
GPU, and those on other machines of a cluster, start as Ray does it. Ray's library reads its
environment once, when it is imported. So the first client's environment is this process's, and a
client whose variables of Ray are others (another job) is not served.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import random
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SOCKET = "fork_server"
"""Its name in the folder of the local Ray, in which only this user may look."""
_VARIABLE = "MUXRL_FORK_SERVER"
"""Environment variable of this process and of Ray's workers (a trial has servers, too): the path of
the socket, while there is a fork server."""
_FORKED = b"forked"
_RECEIVE_S = 5.0
_WAIT_S = 600.0
"""For a local Ray; what `begin_early` has begun for one that never started ends then."""


class _Process:
    """Will be the fork server once it has a listener; it ends with the process that made it.

    Args:
        environment: variables on top of this process's.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._line, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                env={**os.environ, **environment},
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is not for it
            )
        self.pid = self._child.pid

    def listen(self, listener: socket.socket) -> bool:
        """Has it serve whoever connects there; False: it has ended."""
        try:
            socket.send_fds(self._line, [b"listen"], [listener.fileno()])
        except OSError:
            self.end()
            return False
        return True

    def end(self) -> None:
        """Kills it."""
        self._line.close()
        self._child.kill()
        self._child.wait()


_early: _Process | None = None
"""Will be the fork server of this process's next local Ray."""


def begin_early(environment: Mapping[str, str]) -> None:
    """Starts the process of the next `ForkServer`, which imports while this one does other things.

    Args:
        environment: as for `ForkServer`.
    """
    global _early
    if sys.platform == "linux" and _early is None:
        _early = _Process(environment)
        atexit.register(_end_early)  # it may be importing, and hear only later that this one ends


def _end_early() -> None:
    if _early is not None:
        _early.end()


class ForkServer:
    """The process, from the side that starts it.

    It ends by itself when the process that made it is gone.

    Args:
        folder: of the local Ray, for its socket.
        environment: variables that all workers have, on top of this process's.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        global _early
        path = folder / _SOCKET
        early, _early = _early, None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen()
            if early is None or not early.listen(listener):
                early = _Process(environment)
                early.listen(listener)
        self._process = early
        self.pid = early.pid
        os.environ[_VARIABLE] = str(path)

    @classmethod
    def if_possible(cls, folder: Path, environment: Mapping[str, str]) -> ForkServer | None:
        """Makes one, where a fork after all these imports is safe."""
        return cls(folder, environment) if sys.platform == "linux" else None

    def workers(self) -> list[Any]:
        """Returns its copies that live, as psutil's processes."""
        import psutil  # type: ignore[import-untyped]  # Ray brings it along, once it is imported

        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children()
        return []

    def stop(self) -> None:
        """Ends it; its copies live on."""
        os.environ.pop(_VARIABLE, None)
        self._process.end()


def forked_worker() -> dict[str, str]:
    """Returns what Ray's runtime environment needs so that a worker is forked, if it can be."""
    path = os.environ.get(_VARIABLE)
    if path is None:
        return {}
    client = Path(__file__).with_name("fork_client.py")
    # -I -S: it imports nothing but a few modules of the standard library.
    return {"py_executable": shlex.join([sys.executable, "-I", "-S", str(client), path])}


def main() -> None:
    """Forks for whoever asks, until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended: none is kept
    _import_libraries()
    line = socket.socket(fileno=os.dup(0))
    line.settimeout(_WAIT_S)
    try:
        listeners = socket.recv_fds(line, 16, 1)[1]
    except TimeoutError:
        listeners = []
    if not listeners:
        return
    listener = socket.socket(fileno=listeners[0])
    of_ray: dict[str, str] | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(line, selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in selector.select()):
            connection = listener.accept()[0]
            with contextlib.suppress(OSError, ValueError), connection:
                request, descriptors = _receive(connection)
                if of_ray is None:
                    os.environ.clear()  # this process may have begun before a local Ray was set up
                    os.environ.update(request["environment"])
                    _import_ray()
                    of_ray = _of_ray(request)
                is_ours = _of_ray(request) == of_ray
                if is_ours and _is_single_threaded() and os.fork() == 0:
                    for inherited in (listener, line, selector):
                        inherited.close()
                    connection.send(_FORKED)
                    connection.detach()  # it is closed when the copy ends, and so tells the client
                    _become(request, descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)


def _import_libraries() -> None:
    """Imports what knows nothing of Ray, whose environment the first client brings along."""
    gc.disable()  # nothing is garbage yet, and there is much to look through
    import gymnasium  # noqa: F401  # for spaces of trainers
    import torch._dynamo  # noqa: F401  # the first optimizer that is made imports it

    import muxrl.servers.algorithms.qmix.trainer
    import muxrl.servers.server  # noqa: F401


def _import_ray() -> None:
    import ray  # noqa: F401

    gc.freeze()  # nor does a copy look through it, and so make it its own
    gc.enable()


def _is_single_threaded() -> bool:
    """Asks the system, since Python does not know the threads of libraries."""
    return len(os.listdir("/proc/self/task")) == 1


def _of_ray(request: dict[str, Any]) -> dict[str, str]:
    return {k: v for k, v in request["environment"].items() if k.startswith("RAY_")}


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns what the client is, and its standard streams."""
    connection.settimeout(_RECEIVE_S)
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while part := connection.recv(1 << 16):
        data += part
    connection.settimeout(None)
    return json.loads(data), descriptors


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Goes on as the worker that the client was started as; does not return."""
    code = 1
    try:
        os.setsid()  # Ray kills the process group of a worker that died
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked_signals"])
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        _draw_anew()
        sys.argv = request["argv"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  # the top of a process
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _draw_anew() -> None:
    """Gives this copy random numbers of its own; what is seeded is seeded after this."""
    import numpy as np
    import torch

    random.seed()
    np.random.seed()
    torch.seed()


if __name__ == "__main__":
    main()
