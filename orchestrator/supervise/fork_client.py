"""What Ray starts as a worker's Python: has the fork server make the worker, and ends with it.

    python -I -S fork_client.py SOCKET SCRIPT ARGUMENTS...

See `fork_server`. If that is gone, this process becomes ``python SCRIPT ARGUMENTS...`` itself. It
imports little, since it is there for as long as the worker is.
"""

import json
import os
import signal
import socket
import sys


def main() -> None:
    path, argv = sys.argv[1], sys.argv[2:]
    request = {
        "argv": argv,
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "blocked_signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        data = json.dumps(request).encode()
        num_sent = socket.send_fds(connection, [data], [0, 1, 2])
        connection.sendall(data[num_sent:])
        connection.shutdown(socket.SHUT_WR)
        is_forked = bool(connection.recv(16))
    except OSError:
        is_forked = False
    if not is_forked:
        os.execv(sys.executable, [sys.executable, *argv])
    connection.recv(16)  # nothing comes: it is closed when the worker has ended


if __name__ == "__main__":
    main()
