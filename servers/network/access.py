"""Who may use a policy server: programs on this machine, or holders of the token; no web page.

A browser sends whatever a page tells it to, also to servers on loopback. But it names the page in
``Origin``, and in ``Host`` the name that the page has used for the server (a page can make the name
of its own host resolve to 127.0.0.1).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable

from muxrl.protocol.errors import Forbidden, Unauthorized


def check_access(server: str, token: str, header: Callable[[str], str | None]) -> None:
    """Raises unless a request may be answered.

    Args:
        server: for messages, such as "server 'qmix' (127.0.0.1:9900)".
        token: the server's token; "" if it has none.
        header: returns a header of the request by its name, None if it is missing.

    Raises:
        Forbidden: a web page has sent the request; or there is no token, and the request calls the
            server by a name that is not this machine's own.
        Unauthorized: the token is missing or wrong.
    """
    authorization, origin, host = map(header, ("authorization", "origin", "host"))
    if origin is not None:
        raise Forbidden(
            f"{server} answers programs, not web pages: the request has the header "
            f"'Origin: {origin[:100]}'",
            expected="no Origin header",
            got=origin[:100],
        )
    if not token:
        if host is not None and not is_loopback(host):
            raise Forbidden(
                f"{server} has no token, so it answers loopback names only, and the request calls "
                f"it {host[:100]!r}; use 127.0.0.1, or give it a token",
                expected="127.0.0.1, [::1] or localhost",
                got=host[:100],
            )
        return
    scheme, _, given = (authorization or "").partition(" ")
    is_bearer = scheme.lower() == "bearer"
    if not (is_bearer and hmac.compare_digest(_bytes(given.strip()), _bytes(token))):
        if authorization is None:
            came = "none came"
        else:
            came = "another one came" if is_bearer else "one without 'Bearer' came"
        raise Unauthorized(
            f"{server} wants the header 'Authorization: Bearer TOKEN' with its token; {came}"
        )


def is_loopback(host: str) -> bool:
    """Whether a host, or a ``Host`` header with or without a port, names this machine."""
    before, _, port = host.rpartition(":")
    has_port = port.isdigit() and (":" not in before or before.endswith("]"))  # "::1" has none
    name = (before if has_port else host).strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
