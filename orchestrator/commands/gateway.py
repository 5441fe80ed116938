"""``muxrl gateway``: put one address in front of servers that run already.

Listens at one address for all of these servers, until Ctrl-C: a simulation in any language then
needs a single connection. 'muxrl launch' with 'env: external' starts a gateway by itself.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.errors import ConfigError, ExitCode


@command(is_long=True)
def gateway(
    servers: Sequence[str] = (),
    *,
    run: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    token_file: Path | None = None,
    server_token_file: Path | None = None,
) -> int:
    """Answers until Ctrl-C, and returns the exit code.

    Args:
        servers (HOST:PORT): addresses of the servers.
        run (RUN): take the addresses of this run's servers; the run must not have ended.
        host: address to listen on.
        port: port to listen on; default: any free one.
        token_file (FILE): file with the token that clients must send.
        server_token_file (FILE): file with the token of the servers.
    """
    from muxrl.client.errors import ClientError
    from muxrl.client.multiplexer import MultiplexingClient
    from muxrl.orchestrator.config.checks import access_problems
    from muxrl.orchestrator.config.schema import GatewayConfig
    from muxrl.orchestrator.gateway.served import ServedGateway
    from muxrl.servers.network.listening import CannotListen

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    config = GatewayConfig(host, port, _read(token_file))
    if problems := list(access_problems("the gateway", "give it --token-file", config)):
        raise ConfigError(problems)
    addresses = _find_servers(servers, run)
    server_token = _read(server_token_file)
    is_over = threading.Event()
    try:
        served = ServedGateway(
            lambda: MultiplexingClient(addresses, token=server_token),
            host=config.host,
            port=config.port,
            token=config.token,
            on_shutdown=is_over.set,
        )
        try:
            served.start()
            names = ", ".join(served.gateway.client.specs)
            sys.stdout.write(f"gateway to {names}: http://{served.address}; Ctrl-C ends it\n")
            sys.stdout.flush()
            is_over.wait()
        finally:
            served.stop()
    except (CannotListen, ClientError) as error:
        sys.stderr.write(f"muxrl: {error}\n")
        return ExitCode.FAILED
    return ExitCode.DONE


def _find_servers(given: Sequence[str], directory: Path | None) -> list[str]:
    """Returns the servers' addresses.

    Raises:
        ConfigError: neither or both of addresses and a run are given, or the run has no servers
            now.
    """
    if (directory is None) == (not given):
        raise ConfigError(["needs either the servers' addresses, HOST:PORT, or --run RUN"])
    if directory is None:
        return list(given)
    from muxrl.orchestrator.records.run_directory import RunDirectory
    from muxrl.orchestrator.records.run_status import read_status

    folder = RunDirectory.open(directory)
    status = read_status(folder)
    if status is not None and status.is_over:
        raise ConfigError(
            [
                f"run {str(directory)!r} has ended ({status.state_now}), and its servers with it; "
                "--run takes a run that has not ended. To play with its policies, serve its "
                "checkpoints with the algorithm FROZEN"
            ]
        )
    path = folder.path / "servers.json"
    if not path.is_file():
        raise ConfigError([f"run {str(directory)!r} has no servers.json: no server listens yet"])
    return list(json.loads(path.read_text(encoding="utf-8")).values())


def _read(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError([f"{str(path)!r} cannot be read: {error.strerror}"]) from None
