"""HTTP/1.1 with JSON, by `requests`: the control plane, and a transport where only HTTP passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import requests

from muxrl.client.errors import ServerUnavailable
from muxrl.client.transport import AnyItem, base_url
from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.codec import decode_batch_reply, decode_json, encode_json
from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.messages import AnyReply, Batch, Refused, ServerSpec, Status

_CONNECT_TIMEOUT_S = 5.0


class HttpTransport:
    """Talks JSON over one keep-alive connection.

    Args:
        address: "host:port" or "http://host:port".
        token: bearer token, "" for none.
        timeout_s: longest wait for an answer. A server may hold one while it learns.
    """

    def __init__(self, address: str, *, token: str = "", timeout_s: float = 120.0) -> None:
        self.url = base_url(address)
        self._timeout = (_CONNECT_TIMEOUT_S, timeout_s)
        self._session = requests.Session()
        self._session.trust_env = False  # a policy server is never behind the web's proxy
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"
        # `requests` cannot send without waiting for the answer, so a thread does the waiting.
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="http-transport")
        self._answer: Future[bytes] | None = None

    def fetch_spec(self) -> ServerSpec:
        spec = decode_json(self._get("/v1/spec"), ServerSpec)
        if spec.protocol_version != PROTOCOL_VERSION:
            raise ServerUnavailable(
                f"server {spec.server_id!r} ({self.url}) speaks protocol version "
                f"{spec.protocol_version}, this client {PROTOCOL_VERSION}; install the same muxrl",
                server_id=spec.server_id,
            )
        return spec

    def fetch_status(self) -> Status:
        """Returns where the server's training stands."""
        return decode_json(self._get("/v1/status"), Status)

    def send(self, items: Sequence[AnyItem]) -> None:
        body = encode_json(Batch(list(items)))
        self._answer = self._waiter.submit(self._post, "/v1/step", body)

    def receive(self) -> list[AnyReply]:
        assert self._answer is not None, "send() comes before receive()"
        answer, self._answer = self._answer.result(), None
        try:
            return decode_batch_reply(answer.decode()).replies
        except (MalformedMessage, UnicodeDecodeError) as error:
            raise ServerUnavailable(
                f"server at {self.url}: its answer cannot be read: {error}", server_id=self.url
            ) from None

    def close(self) -> None:
        self._waiter.shutdown(wait=False, cancel_futures=True)
        self._session.close()

    def _get(self, path: str) -> bytes:
        return self._checked(lambda: self._session.get(self.url + path, timeout=self._timeout))

    def _post(self, path: str, body: bytes) -> bytes:
        # Every item is idempotent by (episode, t), so a lost answer may simply be asked for again.
        headers = {"Content-Type": "application/json"}

        def post() -> requests.Response:
            return self._session.post(self.url + path, body, headers=headers, timeout=self._timeout)

        return self._checked(post, num_attempts=2)

    def _checked(self, call: Callable[[], requests.Response], num_attempts: int = 1) -> bytes:
        for attempt in range(1, num_attempts + 1):
            try:
                response = call()
                break
            except requests.Timeout as error:
                raise ServerUnavailable(
                    f"server at {self.url} did not answer within {self._timeout[1]:g} s: {error}",
                    server_id=self.url,
                ) from None
            except requests.RequestException as error:
                if attempt == num_attempts:
                    raise ServerUnavailable(
                        f"server at {self.url} cannot be reached ({_reason(error)}); "
                        "is it running?",
                        server_id=self.url,
                    ) from None
        if response.status_code != 200:
            raise ServerUnavailable(
                f"server at {self.url} answered {response.status_code}: "
                f"{story_of(response.content)}",
                server_id=self.url,
            )
        return response.content


def _reason(error: Exception) -> str:
    root: BaseException = error
    while root.__context__ is not None:
        root = root.__context__
    return str(root) or type(root).__name__


def story_of(body: bytes) -> str:
    """Returns the sentence in a refusal's body, or the body's beginning if it is none."""
    try:
        return decode_json(body, Refused).message
    except MalformedMessage:
        return body[:200].decode(errors="replace")
