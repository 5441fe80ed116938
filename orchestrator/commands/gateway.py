"""``muxrl gateway``: put one address in front of servers that run already.

Listens at one address and answers for all of these servers, until Ctrl-C: a simulation in any
language then holds one conversation. 'muxrl launch' with 'env: external' starts a gateway by
itself.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
from pathlib import Path

from muxrl.orchestrator.errors import ConfigError, ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("servers", nargs="*", metavar="HOST:PORT", help="where the servers listen")
    parser.add_argument(
        "--run", type=Path, metavar="RUN", help="a run that goes on, in place of its servers"
    )
    parser.add_argument("--host", default="127.0.0.1", help="to listen on; default: %(default)s")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="has the token that clients must present"
    )
    parser.add_argument(
        "--server-token-file", type=Path, metavar="FILE", help="has the token of the servers"
    )


def run(args: argparse.Namespace) -> int:
    """Answers until Ctrl-C, and returns the exit code."""
    from muxrl.client.errors import ClientError
    from muxrl.client.multiplexer import MultiplexingClient
    from muxrl.orchestrator.config.checks import access_problems
    from muxrl.orchestrator.config.schema import GatewayConfig
    from muxrl.orchestrator.gateway.served import ServedGateway
    from muxrl.servers.network.listening import CannotListen

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    config = GatewayConfig(args.host, args.port, _read(args.token_file))
    if problems := list(access_problems("the gateway", "give it --token-file", config)):
        raise ConfigError(problems)
    servers = _find_servers(args.servers, args.run)
    server_token = _read(args.server_token_file)
    is_over = threading.Event()
    try:
        served = ServedGateway(
            lambda: MultiplexingClient(servers, token=server_token),
            host=config.host,
            port=config.port,
            token=config.token,
            on_shutdown=is_over.set,
        )
        try:
            served.start()
            names = ", ".join(served.gateway.behind)
            sys.stdout.write(f"gateway to {names}: http://{served.address}; Ctrl-C ends it\n")
            sys.stdout.flush()
            is_over.wait()
        finally:
            served.stop()
    except (CannotListen, ClientError) as error:
        sys.stderr.write(f"muxrl: {error}\n")
        return ExitCode.FAILED
    return ExitCode.DONE


def _find_servers(given: list[str], directory: Path | None) -> list[str]:
    """Returns the addresses.

    Raises:
        ConfigError: there are none, or no more, or two ways to find them.
    """
    if (directory is None) == (not given):
        raise ConfigError(["needs either the servers' addresses, HOST:PORT, or --run RUN"])
    if directory is None:
        return given
    from muxrl.orchestrator.records.run_directory import RunDirectory
    from muxrl.orchestrator.records.run_status import read_status

    folder = RunDirectory.open(directory)
    status = read_status(folder)
    if status is not None and status.is_over:
        raise ConfigError(
            [
                f"run {str(directory)!r} has ended ({status.state_now}), and its servers with it; "
                "--run takes a run that goes on. To play with what it learned, serve its "
                "checkpoints by FROZEN"
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
