"""Starts the processes of servers as copies of one process that has imported torch already.

Importing torch takes seconds of processor time and hundreds of MiB, in every server again. The fork
server imports it once, and is forked for each server: the copies start at once, also after a
restart, and share the memory of what was imported. The fork server imports while the command that
has started it (`begin`) reads its experiment. It ends with that command's process; its copies live
on.

A fork is safe because the fork server has a single thread and uses no accelerator. If a library
starts another thread all the same, nothing is forked: `fork` returns None, and the server's process
is started in the ordinary way. So are processes with a GPU, and processes on other machines of a
cluster.

The fork server of `multiprocessing` is not used: it runs the user's script again in each copy.
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
"""Environment variable with the fork server's socket, by which a sweep's trials find it, too."""
_OURS = f"muxrl-{zlib.crc32(f'{sys.executable} {__file__}'.encode()):x}-"
"""Prefix of the sockets of fork servers that run exactly this code."""
_ANSWER_S = 120.0
"""How long to wait for a fork: the imports may go on, on a machine that does much else."""
_RECEIVE_S = 5.0

_process: Child | None = None


def begin() -> bool:
    """Starts the fork server, if there is none yet and this is Linux, where a fork is safe.

    Returns:
        Whether it was started.
    """
    global _process
    is_there = os.environ.get(_VARIABLE, "").startswith(_OURS)
    if _process is not None or is_there or sys.platform != "linux":
        return False
    name = f"{_OURS}{secrets.token_hex(8)}"  # an abstract socket leaves no file
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        number = listener.fileno()
        command = [sys.executable, "-P", "-m", __name__, str(number)]
        _process = Child(command, env=worker_environment(), pass_fds=[number])
    os.environ[_VARIABLE] = name
    atexit.register(end)  # while it imports, it would notice the end of this process late
    return True


def end() -> None:
    """Ends the fork server that `begin` has started, if it has started any."""
    global _process
    if _process is not None:
        os.environ.pop(_VARIABLE, None)
        _process.end(0.0)
        _process = None


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Keeps a fork server while the ``with`` block lasts; nested blocks share the outer one's."""
    is_mine = begin()
    try:
        yield
    finally:
        if is_mine:
            end()


def early(address: str) -> contextlib.AbstractContextManager[None]:
    """Returns `running`, to be entered before a run's experiment is read, if the run is local.

    Args:
        address: the address of the Ray cluster for the run; "": it runs on this machine.
    """
    return contextlib.nullcontext() if address else running()


class Forked:
    """A process that `fork` has made, a copy of the fork server."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = status

    def wait(self) -> int | None:
        """Waits for the end of the process; returns its exit code, None if it is unknown."""
        with os.fdopen(self._status, "rb") as status:
            code = status.read()
        return int(code) if code else None


def fork(connection: int, log: Path, environment: Mapping[str, str]) -> Forked | None:
    """Makes the fork server start a process, which runs `muxrl.orchestrator.supervise.working`.

    Args:
        connection: file descriptor of the pipe over which the process is called.
        log: file to which its output goes.
        environment: all of its environment variables.

    Returns:
        The process; None if there is no fork server, or it cannot fork.
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
    """Serves requests for forks until standard input ends."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    wake, woken = socket.socketpair()
    for end_of_pair in (wake, woken):
        end_of_pair.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken.fileno())
    _import_libraries()
    statuses: dict[int, int] = {}
    """By process id: the file descriptor to which the exit code is written."""
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
    import gymnasium  # noqa: F401  # trainers need its spaces
    import torch  # noqa: F401

    import muxrl.orchestrator.supervise.server_process
    import muxrl.orchestrator.supervise.working
    import muxrl.servers.algorithms.qmix.trainer
    import muxrl.servers.run_service
    import muxrl.servers.server  # noqa: F401

    gc.freeze()  # else a copy that collects garbage writes to this memory, and shares it no more
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
    """Asks the system for threads, since Python does not know those of libraries."""
    return len(os.listdir("/proc/self/task")) == 1


def _become(pipe: int, folder: str, log: str, environment: dict[str, str]) -> None:
    """Turns this copy into the process that was asked for; does not return."""
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
    """Seeds the random generators of this copy anew; whatever has a fixed seed sets it later."""
    import numpy as np
    import torch

    random.seed()
    np.random.seed()
    torch.seed()


def _send_ends(statuses: dict[int, int]) -> None:
    """Sends the exit codes of copies that have ended, and kills what they have left running."""
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
