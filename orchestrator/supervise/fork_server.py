"""Starts servers' processes as copies of one that has imported torch already.

Importing it takes seconds of processor time and hundreds of MiB, in every server anew. Here one
process does it, and is forked for each: copies start at once, those of servers that were lost, too,
and share the memory of what was imported. It imports beside a command that looks at its experiment
(`begin`), and ends with the process that began it; its copies live on.

A fork is safe since this process has a single thread and uses no accelerator. If a library begins
another thread all the same, nothing is forked: `fork` returns None, and the process is started
otherwise. So are those with a GPU, and those on other machines of a cluster.

`multiprocessing`'s own server of this kind runs the user's script again in each copy.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import random
import secrets
import selectors
import signal
import socket
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from muxrl.orchestrator.supervise.child import Child
from muxrl.orchestrator.supervise.process import kill_group, worker_environment

_VARIABLE = "MUXRL_FORK_SERVER"
"""Environment variable: the socket, while there is a fork server. A sweep's trials find it so."""
_OURS = f"muxrl-{zlib.crc32(f'{sys.executable} {__file__}'.encode()):x}-"
"""How the names of those begin that run this very code."""
_ANSWER_S = 120.0
"""For imports, perhaps on a machine that does much else."""
_RECEIVE_S = 5.0

_process: Child | None = None


def begin() -> bool:
    """Starts the process, if there is none and a fork after all these imports is safe here."""
    global _process
    is_there = os.environ.get(_VARIABLE, "").startswith(_OURS)
    if _process is not None or is_there or sys.platform != "linux":
        return False
    name = f"{_OURS}{secrets.token_hex(8)}"  # abstract: it leaves no file
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        number = listener.fileno()
        command = [sys.executable, "-P", "-m", __name__, str(number)]
        _process = Child(command, env=worker_environment(), pass_fds=[number])
    os.environ[_VARIABLE] = name
    atexit.register(end)  # it may be importing, and hear only later that this process ends
    return True


def end() -> None:
    """Ends the process that `begin` has started."""
    global _process
    if _process is not None:
        os.environ.pop(_VARIABLE, None)
        _process.end(0.0)
        _process = None


@contextlib.contextmanager
def running() -> Iterator[None]:
    """A fork server while the ``with`` block lasts, and those around it."""
    is_mine = begin()
    try:
        yield
    finally:
        if is_mine:
            end()


def early(address: str) -> contextlib.AbstractContextManager[None]:
    """`running`, from before a run on this machine is looked at.

    Args:
        address: of the Ray cluster on which the run is; "": it is here.
    """
    return contextlib.nullcontext() if address else running()


class Forked:
    """A copy of the fork server, as `fork` has made it."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = status

    def wait(self) -> int | None:
        """Waits for its end; returns its exit code, None if nobody knows."""
        with os.fdopen(self._status, "rb") as status:
            code = status.read()
        return int(code) if code else None


def fork(connection: int, log: Path, environment: Mapping[str, str]) -> Forked | None:
    """Has the fork server make a process that works; see `muxrl.orchestrator.supervise.working`.

    Args:
        connection: file descriptor of the pipe over which it is called.
        log: where its output goes.
        environment: its variables, all of them.

    Returns:
        It; None if there is no fork server, or that cannot fork.
    """
    name = os.environ.get(_VARIABLE, "")
    if not name.startswith(_OURS):
        return None
    request = json.dumps([os.getcwd(), str(log.absolute()), dict(environment)]).encode()
    status, theirs = os.pipe()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(_ANSWER_S)
            line.connect(f"\0{name}")
            num_sent = socket.send_fds(line, [request], [connection, theirs])
            line.sendall(request[num_sent:])
            line.shutdown(socket.SHUT_WR)
            pid = int(line.recv(16) or b"0")
    except OSError:
        pid = 0
    finally:
        os.close(theirs)
    if not pid:
        os.close(status)
        return None
    return Forked(pid, status)


# --- in the fork server -----------------------------------------------------------------


def main() -> None:
    """Forks for whoever asks, until standard input ends."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    wake, woken = socket.socketpair()
    for end_of_pair in (wake, woken):
        end_of_pair.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken.fileno())
    _import_libraries()
    statuses: dict[int, int] = {}
    """By process, where its exit code goes."""
    with selectors.DefaultSelector() as selector:
        for readable in (listener, wake, sys.stdin):
            selector.register(readable, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if sys.stdin in ready:
                return
            if wake in ready:
                wake.recv(4096)
                _send_ends(statuses)
            if listener in ready:
                connection = listener.accept()[0]
                with connection, contextlib.suppress(OSError, ValueError):
                    _serve(connection, statuses, [listener, wake, woken, selector])


def _import_libraries() -> None:
    gc.disable()  # nothing is garbage yet, and there is much to look through
    import gymnasium  # noqa: F401  # for spaces of trainers
    import torch  # noqa: F401

    import muxrl.orchestrator.supervise.server_process
    import muxrl.orchestrator.supervise.working
    import muxrl.servers.algorithms.qmix.trainer
    import muxrl.servers.run_service
    import muxrl.servers.server  # noqa: F401

    gc.freeze()  # nor does a copy look through it, and so make it its own
    gc.enable()


def _serve(connection: socket.socket, statuses: dict[int, int], inherited: list[Any]) -> None:
    connection.settimeout(_RECEIVE_S)
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    if struct.unpack("3i", credentials)[1] != os.getuid():
        return
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 2)
    while part := connection.recv(1 << 16):
        data += part
    pipe, status = descriptors
    pid = 0
    if _is_single_threaded():
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for one in (*inherited, connection):
                one.close()
            for one in (status, *statuses.values()):
                os.close(one)
            _become(pipe, *json.loads(data))
    os.close(pipe)
    if pid:
        statuses[pid] = status
    else:
        os.close(status)
    connection.sendall(str(pid).encode())


def _is_single_threaded() -> bool:
    """Asks the system, since Python does not know the threads of libraries."""
    return len(os.listdir("/proc/self/task")) == 1


def _become(pipe: int, folder: str, log: str, environment: dict[str, str]) -> None:
    """Continues as the process that was asked for; does not return."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number, of_mine in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(of_mine, number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        _draw_again()
        from muxrl.orchestrator.supervise import working

        working.work(pipe)
    except BaseException:  # noqa: BLE001  # the top of a process
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(1)


def _draw_again() -> None:
    """Gives this copy random numbers of its own; what is seeded is seeded after this."""
    import numpy as np
    import torch

    random.seed()
    np.random.seed()
    torch.seed()


def _send_ends(statuses: dict[int, int]) -> None:
    """Writes down how copies have ended, and ends what they have left."""
    for pid in list(statuses):
        found, how = os.waitpid(pid, os.WNOHANG)
        if not found:
            continue
        kill_group(pid)
        status = statuses.pop(pid)
        with contextlib.suppress(OSError):
            os.write(status, str(os.waitstatus_to_exitcode(how)).encode())
        os.close(status)


if __name__ == "__main__":
    main()
