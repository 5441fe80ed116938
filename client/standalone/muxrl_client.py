"""A client of a muxrl server or gateway in one file: copy it to where your simulation runs.

It needs Python 3.8 or newer, and the standard library only. Observations are numbers, nested lists,
arrays, tensors or dicts of them; actions are ints, or lists of numbers. Ids may be numbers or
UUIDs, which are used as text. The methods and errors are those of ``muxrl.PolicyClient``. If an
answer is lost, the client sends its request again; the server records nothing twice.

    with PolicyClient("127.0.0.1:9900") as client:
        episode_id = client.start_episode()
        actions = client.get_action(episode_id, {"a": [0.1, 0.2]})
        client.log_returns(episode_id, {"a": 1.0})
        client.end_episode(episode_id, {"a": [0.3, 0.4]}, truncated=True)
"""

from __future__ import annotations

import copy
import http.client
import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

PROTOCOL_VERSION = 1


class ClientError(Exception):
    """Base of the errors below."""


class EpisodeMisuse(ClientError):
    """Fix the code: a method, an episode or a thread is not allowed now; nothing was sent."""


class EpisodeAborted(ClientError):
    """The episode `episode_id` is closed; another one may be started."""

    def __init__(self, message: str, episode_id: str) -> None:
        super().__init__(message)
        self.episode_id = episode_id


class EpisodeLost(EpisodeAborted):
    """The server does not know the episode (any more): the server was restarted, say."""


class RunIsOver(EpisodeAborted):
    """Stop: the run behind the gateway has ended as it should."""


class RefusedByServer(EpisodeAborted):
    """Fix what the sentence says. `code` is an HTTP status; docs/protocol.md has them all."""

    def __init__(self, refusal: Mapping[str, Any], episode_id: str) -> None:
        super().__init__(refusal["message"], episode_id)
        self.code = refusal["code"]
        self.agent_id = refusal.get("agent_id")
        self.expected = refusal.get("expected")
        self.got = refusal.get("got")


class ServerUnavailable(ClientError):
    """Give up: the server lets nobody in, speaks another protocol, or learns for too long."""


class ServerLost(ServerUnavailable):
    """No answer for `patience_s`; the next `start_episode` waits for the server again."""


class PolicyClient:
    """Plays episodes with one server, or with a gateway; one thread at a time may use it.

    Args:
        address: "host:port", "http://host:port" or "https://host:port".
        token: bearer token, "" for none.
        patience_s: how long the server may be lost (it refuses or cuts connections, or is silent);
            None: 30 s, and 300 s until its first answer.
        update_timeout_s: how long the server may hold an answer back while it learns.

    Raises:
        ServerUnavailable: the server cannot be reached, or does not let this client in.
        ValueError: `address` is no address.
    """

    def __init__(
        self,
        address: str,
        token: str = "",
        patience_s: float | None = None,
        update_timeout_s: float = 600.0,
    ) -> None:
        url = urlsplit(address if "//" in address else "http://" + address)
        if url.scheme not in ("http", "https") or not url.hostname or url.port is None:
            raise ValueError(f"an address is HOST:PORT or http://HOST:PORT, got {address!r}")
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = "Bearer " + token.strip()
        self._patience_s = 300.0 if patience_s is None else patience_s
        self._update_timeout_s = update_timeout_s
        self._silence_s = min(3.0, max(0.3, self._patience_s / 3))
        self._connection: http.client.HTTPConnection | None = None
        self._episodes: dict[str, _Episode] = {}
        self.parameters: dict[str, float] = {}
        """Parameters, if a run gives any, for the episode that was started last."""
        self.is_evaluation = False
        """Whether a run plays that episode as an evaluation; then no action may be logged."""
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._user = ""
        try:
            self.spec = self._fetch_spec()
            """The server's spec: its agents with their spaces, its limits; see docs/protocol.md."""
            self._patience_s = 30.0 if patience_s is None else patience_s
        except BaseException:
            self._drop()
            raise

    def start_episode(
        self,
        episode_id: Any = None,
        training_enabled: bool = True,
        should_explore: bool | None = None,
    ) -> str:
        """Opens an episode and returns its id; waits for a server that is lost.

        Args:
            episode_id: unique; None makes one.
            training_enabled: False: the episode is only measured; no server learns from it.
            should_explore: None: explore if training is enabled.
        """
        is_given = episode_id is not None and episode_id != ""
        episode_id = str(episode_id) if is_given else uuid.uuid4().hex
        if episode_id in self._episodes:
            raise EpisodeMisuse(f"episode {episode_id} is open already")
        mode = "train" if training_enabled else "eval"
        started = self._send("start", episode_id, {"mode": mode, "should_explore": should_explore})
        self._episodes[episode_id] = _Episode()
        self.parameters = started.get("parameters", {})
        self.is_evaluation = started.get("is_evaluation", False)
        return episode_id

    def get_action(
        self, episode_id: str, observations: Mapping[str, Any], state: Any = None
    ) -> dict[str, Any]:
        """Returns the actions of exactly the agents in `observations`.

        Args:
            episode_id: of the episode.
            observations: by agent id.
            state: the global state, a list of numbers, if ``spec["state_size"]`` is set.
        """
        named = _by_agent("observations", observations)
        if len(named) < len(observations):
            raise EpisodeMisuse(f"two of these agents have the same name: {list(observations)}")
        actions = self._step(episode_id, {"observations": named, "state": state})
        return {agent_id: actions[str(agent_id)] for agent_id in observations}

    def log_action(
        self,
        episode_id: str,
        observations: Mapping[str, Any],
        actions: Mapping[str, Any],
        log_probs: Mapping[str, float] | None = None,
        state: Any = None,
    ) -> None:
        """Records actions of the agents in `observations`, chosen elsewhere, to learn from.

        `log_probs` are logarithms of the probabilities (Box: densities) with which the actions were
        chosen.
        """
        observations = _by_agent("observations", observations)
        actions = _by_agent("actions", actions)
        if actions.keys() != observations.keys():
            raise EpisodeMisuse(
                f"log_action needs an action of each agent that observes, {list(observations)}, "
                f"but got actions of {list(actions)}"
            )
        fields = {"observations": observations, "state": state, "logged_actions": actions}
        self._step(episode_id, {**fields, "logged_log_probs": _by_agent("log_probs", log_probs)})

    def log_returns(
        self,
        episode_id: str,
        rewards: Mapping[str, float],
        infos: Mapping[str, Any] | None = None,
        terminations: Mapping[str, bool] | None = None,
        truncations: Mapping[str, bool] | None = None,
        final_observations: Mapping[str, Any] | None = None,
    ) -> None:
        """Keeps rewards and ends that followed from the last actions, for the next message.

        Rewards add up until then. A truncated agent needs a final observation. `infos` is ignored.
        """
        results = self._find(episode_id).results
        sums = results["rewards"]
        for agent_id, reward in _by_agent("rewards", rewards).items():
            value, before = _number(reward), _number(sums.get(agent_id, 0.0))
            if before is not None:  # else its server refuses the one that is there
                sums[agent_id] = reward if value is None else before + value
        for name, ends in (("terminations", terminations), ("truncations", truncations)):
            flags = _by_agent(name, ends).items()
            results[name].update({a: True for a, is_set in flags if is_set and a != "__all__"})
        # Until the next message the simulation may overwrite its arrays.
        finals = copy.deepcopy(_by_agent("final observations", final_observations))
        results["final_observations"].update(finals)

    def end_episode(
        self,
        episode_id: str,
        observations: Mapping[str, Any] | None = None,
        truncated: bool = False,
        state: Any = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Closes an episode; returns the server's counts, "num_steps" and "returns" by agent.

        Args:
            episode_id: of the episode.
            observations: final observations of the agents that have not ended yet.
            truncated: whether these agents were truncated (a time limit, say) rather than
                terminated.
            state: as for `get_action`.
            metrics: numbers that only the simulation knows, {"win": 1}, or by agent,
                {"travel_s": {"driver_0": 310}}; the gateway of a run records them.
        """
        episode = self._find(episode_id)
        last = _by_agent("last observations", observations)
        episode.results["final_observations"].update(last)
        fields = {"t": episode.t, "is_truncated": truncated, "state": state}
        fields["metrics"] = _by_agent("metrics", metrics)
        reply = self._send("end", episode_id, {**fields, **episode.results})
        del self._episodes[str(episode_id)]
        if reply["type"] != "ended":  # the server had aborted it
            raise EpisodeLost(
                f"the server had already closed episode {episode_id} when the client ended it, so "
                "its last steps are not recorded; was it silent for limits.episode_timeout_s, or "
                "is training over?",
                episode_id,
            )
        return {"num_steps": reply["num_steps"], "returns": reply.get("returns", {})}

    def abort_episode(self, episode_id: str, reason: str = "") -> None:
        """Closes an episode early; its recorded part counts as truncated."""
        self._find(episode_id)
        self._send("abort", episode_id, {"reason": reason})
        del self._episodes[str(episode_id)]

    def close(self) -> None:
        """Aborts open episodes, and closes the connection; raises nothing."""
        if os.getpid() != self._process_id:  # in a fork: they belong to its parent
            return
        self._patience_s = min(self._patience_s, 5.0)
        try:
            for episode_id in list(self._episodes):
                self.abort_episode(episode_id, "the client closed")
        except ClientError:
            pass  # the server closes them itself, after limits.episode_timeout_s
        self._episodes.clear()
        self._drop()

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- items --------------------------------------------------------------------------

    def _find(self, episode_id: str) -> _Episode:
        episode_id = str(episode_id)
        if episode_id not in self._episodes:
            raise EpisodeMisuse(
                f"episode {episode_id} is not open in this client; it was never started, or it "
                "has ended or was aborted"
            )
        return self._episodes[episode_id]

    def _step(self, episode_id: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        episode = self._find(episode_id)
        item = {"t": episode.t, **fields, **episode.results}
        actions: dict[str, Any] = self._send("step", episode_id, item)["actions"]
        episode.t += 1
        episode.results = _no_results()
        return actions

    def _send(self, kind: str, episode_id: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Sends an item and returns the reply; a refusal, or no reply at all, ends the episode."""
        self._check_user()
        episode_id = str(episode_id)
        item = {"type": kind, "episode_id": episode_id, **fields}
        try:
            body = json.dumps({"items": [item]}, default=_plain, allow_nan=False).encode()
        except (TypeError, ValueError):  # a number is not finite, or a key is no text
            body = json.dumps({"items": [_readable(item)]}).encode()
        limit = self.spec.get("max_message_bytes", 0)
        try:
            if 0 < limit < len(body):  # the server would close the connection
                detail = f"{kind} of episode {episode_id}: {len(body)} bytes are over the limit of "
                detail += f"{limit} bytes (limits.max_message_bytes)"
                reply: dict[str, Any] = {"type": "refused", "code": 413, "message": detail}
            else:
                answer = self._exchange("POST", "/v1/step", body, is_start=kind == "start")
                reply = answer["replies"][0] if "replies" in answer else answer
        except ServerUnavailable:
            self._episodes.pop(episode_id, None)
            raise
        is_refused = reply["type"] == "refused"
        answered = (episode_id, item.get("t") if reply["type"] == "actions" else None)
        if (reply.get("episode_id"), reply.get("t")) != answered and not is_refused:
            self._drop()
            self._episodes.pop(episode_id, None)
            raise ServerUnavailable(
                f"server {self._url.netloc} answered {kind} of episode {episode_id} with a "
                f"reply that belongs to another episode or step: {str(reply)[:200]}"
            )
        if not is_refused:
            return reply
        if reply["code"] not in (410, 423) and kind in ("step", "end"):
            self._send("abort", episode_id, {"reason": reply["message"][:500]})
        self._episodes.pop(episode_id, None)
        if reply["code"] == 410:
            raise EpisodeLost(reply["message"], episode_id)
        if reply["code"] == 423:
            raise RunIsOver(reply["message"], episode_id)
        raise RefusedByServer(reply, episode_id)

    # --- the connection -----------------------------------------------------------------

    def _fetch_spec(self) -> dict[str, Any]:
        spec = self._exchange("GET", "/v1/spec")
        if spec.get("protocol_version") != PROTOCOL_VERSION:
            raise ServerUnavailable(
                f"server {self._url.netloc} speaks protocol version "
                f"{spec.get('protocol_version')}, this client {PROTOCOL_VERSION}; take "
                "muxrl_client.py from the server's muxrl"
            )
        return spec

    def _exchange(
        self, method: str, path: str, body: bytes = b"", is_start: bool = False
    ) -> dict[str, Any]:
        """Repeats a request until it is answered; raises `ServerUnavailable` if it never is."""
        if not self._lock.acquire(blocking=False):
            raise self._is_in_use()
        self._user = threading.current_thread().name
        try:
            return self._exchange_alone(method, path, body, is_start)
        finally:
            self._lock.release()

    def _check_user(self) -> None:
        """Raises `EpisodeMisuse` if another thread waits for an answer, or this is a fork."""
        if os.getpid() != self._process_id:
            raise EpisodeMisuse(
                f"this client belongs to process {self._process_id}, and process {os.getpid()}, a "
                "fork of it, uses its connection; make a client in each process, after the fork"
            )
        if self._lock.locked():
            raise self._is_in_use()

    def _is_in_use(self) -> EpisodeMisuse:
        return EpisodeMisuse(
            f"thread {threading.current_thread().name!r} uses this client while thread "
            f"{self._user!r} waits for an answer; make a client in each thread"
        )

    def _exchange_alone(
        self, method: str, path: str, body: bytes, is_start: bool
    ) -> dict[str, Any]:
        began_at = received_at = time.monotonic()
        pause_s = 0.0
        while True:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                answer = self._request(self._connection, method, path, body)
                if is_start and answer.get("replies", [{}])[0].get("code") == 503:
                    raise OSError(answer["replies"][0]["message"])  # another server may follow
                return answer
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                failure = error
            if isinstance(failure, socket.timeout) and self._is_learning(began_at):
                received_at = time.monotonic()
                continue
            away_s = time.monotonic() - received_at
            if away_s >= self._patience_s and pause_s:  # after two attempts at least
                raise ServerLost(
                    f"server {self._url.netloc} is lost: no answer for {away_s:.1f} s (patience_s "
                    f"is {self._patience_s:g}); {failure!r}; is it running?"
                )
            time.sleep(min(pause_s, max(0.0, self._patience_s - away_s)))
            pause_s = min(2.0, max(0.05, 2 * pause_s))

    def _is_learning(self, began_at: float) -> bool:
        """Whether the status of a silent server says that it holds its answer back to learn."""
        connection = self._connect()
        try:
            status = self._request(connection, "GET", "/v1/status")
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        waited_s = time.monotonic() - began_at
        is_learning = status.get("is_waiting_for_learner", False)
        if is_learning and (status.get("problem") or waited_s >= self._update_timeout_s):
            raise ServerUnavailable(
                f"server {self._url.netloc} is learning, and has not answered for {waited_s:.0f} s "
                f"(update_timeout_s is {self._update_timeout_s:g}) {status.get('problem', '')}"
            )
        return bool(is_learning)

    def _connect(self) -> http.client.HTTPConnection:
        """Returns a connection that opens at its first request, with TCP_NODELAY."""
        is_tls = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        assert self._url.hostname is not None
        return kind(self._url.hostname, self._url.port, timeout=self._silence_s)

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b""
    ) -> dict[str, Any]:
        """Sends a request once and returns the answer; after an OSError another try may help."""
        if connection.sock is None:
            connection.connect()
        # A slow link takes a second for a megabyte.
        connection.sock.settimeout(self._silence_s + len(body) // 1_000_000)
        connection.request(method, path, body, self._headers)
        response = connection.getresponse()
        data = response.read()
        if not data and not response.getheader("Content-Length"):
            raise OSError("the connection closed before the head of an answer was complete")
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if response.status in (502, 503, 504):  # too many connections, or a proxy without a server
            raise OSError(f"it answered {response.status}: {data[:200]!r}")
        is_refused_item = response.status in (400, 413)
        if not isinstance(answer, dict) or not (response.status == 200 or is_refused_item):
            shown = answer.get("message") if isinstance(answer, dict) else repr(data[:200])
            raise ServerUnavailable(
                f"server {self._url.netloc} answered {response.status} to {method} {path}: {shown}"
            )
        return answer

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Episode:
    """An open episode: the number of its next step, and the results of the last step, which are
    sent with it."""

    def __init__(self) -> None:
        self.t = 0
        self.results = _no_results()


def _no_results() -> dict[str, dict[str, Any]]:
    return {"rewards": {}, "terminations": {}, "truncations": {}, "final_observations": {}}


def _by_agent(what: str, value: Any) -> dict[str, Any]:
    """Returns a dict by agent name; refuses a single agent's value, which RLlib's methods took."""
    if value is None and what not in ("observations", "rewards", "actions"):
        return {}
    if not isinstance(value, Mapping):
        raise EpisodeMisuse(
            f'{what} must be a dict by agent, {{"agent": ...}}, even for a single agent; got '
            f"{repr(value)[:100]}"
            + ("; if all agents are done, call end_episode()" if value is True else "")
        )
    return {str(key): one for key, one in value.items()}


def _number(value: Any) -> float | None:
    """Returns a value as one finite number; None if it is not one."""
    value = _plain(value) if hasattr(value, "tolist") else value
    while isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    try:
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _plain(value: Any) -> Any:
    """Returns an array, tensor or number as Python's types; else its type's name, to be refused."""
    return value.tolist() if hasattr(value, "tolist") else f"a {type(value).__name__}"


def _readable(value: Any) -> Any:
    """Returns a value that JSON has; NaN and infinities become null, which the server refuses."""
    if isinstance(value, Mapping):
        return {str(key): _readable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_readable(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float)):
        return value
    plain = _plain(value)
    return plain if isinstance(plain, str) else _readable(plain)
