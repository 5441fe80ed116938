"""Runs a client's program against a strict server, and finds which rules the client keeps."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Mapping, Sequence

from muxrl.orchestrator.compliance.notes import Notes
from muxrl.orchestrator.compliance.strict_server import StrictServer
from muxrl.orchestrator.compliance.verdicts import Verdict
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.supervise.child import Program
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.network.listening import Network

MORNINGS: Mapping[str, tuple[Space, Space]] = {
    "driver_0": (Box((2,)), Discrete(3)),
    "driver_1": (Box((2,)), Discrete(3)),
    "toll": (Box((1,)), Box((1,), low=0.0, high=5.0)),
}
"""Spaces of the agents in docs/protocol.md, for which the loops of docs/languages.md act."""
_LOOK_EVERY_S = 0.1
_OWN_END_S = 10.0
"""How long a program may take to end by itself once all rules have been tried."""
_STOP_S = 10.0
_STDERR = 2


def judge_client(
    command: Sequence[str],
    agents: Mapping[str, tuple[Space, Space]] = MORNINGS,
    state_size: int | None = None,
    *,
    agents_return: bool = False,
    port: int = 0,
    timeout_s: float = 120.0,
) -> list[Verdict]:
    """Runs a client against a strict server, and returns what became of each rule.

    Args:
        command: program and arguments; in them ``{gateway}`` stands for the server's address.
        agents: the agents whose observations it sends: by id, observation and action space.
        state_size: length of the global state that it sends; None: none.
        agents_return: whether agents may observe again after their end.
        port: the port that the server listens on; 0 takes a free one.
        timeout_s: seconds until the program is ended, if it has not ended by itself.

    Raises:
        CannotListen: the port is taken.
        ConfigError: the program cannot be started.
    """
    network = Network("the strict server", "127.0.0.1", port)
    notes = Notes()
    server = StrictServer(agents, state_size, network, notes, agents_return=agents_return)
    network.start(server, asyncio.Event().wait, max_connections=100, keep_alive_s=600.0)
    try:
        url = f"http://{network.address}"
        # The program's output must not be mixed with the table on stdout.
        program = Program([part.replace("{gateway}", url) for part in command], _STDERR)
    except OSError as error:
        network.stop(_STOP_S)
        raise ConfigError([f"{command[0]!r} cannot be started: {error.strerror}"]) from None
    try:
        code = _watch(program, server, timeout_s)
    finally:
        program.end(0.0, _STOP_S)
        network.stop(_STOP_S)
    if code == 0:
        notes.kept("exit")
    elif code is not None and not server.has_ended_run:
        notes.broken("exit", "exit code 0", f"exit code {code}")
    elif not server.has_seen_enough.is_set():
        notes.broken("exit", f"an end within {timeout_s:g} s", "the program was still running")
    server.finish(was_ended=code is None or (server.has_ended_run and code != 0))
    return notes.verdicts()


def _watch(program: Program, server: StrictServer, timeout_s: float) -> int | None:
    """Returns the exit code; None if the program did not end in time."""
    deadline = time.monotonic() + timeout_s
    is_enough = False
    while time.monotonic() < deadline:
        if server.has_seen_enough.is_set() and not is_enough:
            is_enough, deadline = True, min(deadline, time.monotonic() + _OWN_END_S)
        try:
            return program.wait(_LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            continue
    return None
