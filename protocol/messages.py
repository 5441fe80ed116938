"""Every message, defined once.

A frame is a `Batch`: a list of items for any number of episodes, answered by a `BatchReply`
with one reply for each item, in order. Over HTTP every item has an endpoint as well.

`t` counts the steps of one episode *on one server*, from 0. What belongs to the actions of
step ``t - 1`` (rewards, terminations, truncations, final observations) travels with the
observations of step ``t``: one round trip a step. All dicts are keyed by agent id.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from muxrl.protocol.spaces import Space

Mode = Literal["train", "eval"]


class Item(msgspec.Struct, tag_field="type", omit_defaults=True):
    """Base of what a client sends about one episode."""

    episode_id: str


class StartEpisode(Item, tag="start"):
    """Opens an episode.

    `mode` "eval": measured, never trained on. `should_explore` None: explore in mode "train"
    only.
    """

    mode: Mode = "train"
    should_explore: bool | None = None


class Step(Item, tag="step"):
    """Asks for actions at `t`, and reports what followed from those at ``t - 1``."""

    t: int
    observations: dict[str, Any]
    rewards: dict[str, float] = {}
    terminations: dict[str, bool] = {}
    truncations: dict[str, bool] = {}
    final_observations: dict[str, Any] = {}
    logged_actions: dict[str, Any] = {}
    state: Any = None
    logged_log_probs: dict[str, float] = {}


class EndEpisode(Item, tag="end"):
    """Closes an episode after ``t`` steps; agents not done yet are terminated or truncated."""

    t: int
    is_truncated: bool = False
    rewards: dict[str, float] = {}
    terminations: dict[str, bool] = {}
    truncations: dict[str, bool] = {}
    final_observations: dict[str, Any] = {}
    state: Any = None


class AbortEpisode(Item, tag="abort"):
    """Closes an episode early; it is kept as truncated at its last full step."""

    reason: str = ""


class Batch(msgspec.Struct):
    """One frame of a client."""

    items: list[StartEpisode | Step | EndEpisode | AbortEpisode]


class Reply(msgspec.Struct, tag_field="type", omit_defaults=True):
    """Base of what a server answers about one episode."""

    episode_id: str


class Started(Reply, tag="started"):
    """The episode is open."""


class Actions(Reply, tag="actions"):
    """The actions of step `t`, for exactly the agents whose observations were sent."""

    t: int
    actions: dict[str, Any]
    weights_seq_no: int = 0


class Ended(Reply, tag="ended"):
    """The episode is closed; the server's counts, to be compared with the client's."""

    num_steps: int
    returns: dict[str, float] = {}


class Aborted(Reply, tag="aborted"):
    """The episode is closed, or was never open on this server."""


class Refused(Reply, tag="refused"):
    """The item was refused and nothing of it was recorded; `code` is an HTTP status."""

    code: int
    message: str
    agent_id: str | None = None
    expected: str | None = None
    got: str | None = None


AnyReply = Started | Actions | Ended | Aborted | Refused


class BatchReply(msgspec.Struct):
    """One frame of a server."""

    replies: list[AnyReply]


class AgentInfo(msgspec.Struct, omit_defaults=True):
    """Where an agent belongs on its server."""

    policy_id: str
    observation_space: Space
    action_space: Space
    group: str | None = None


class ServerSpec(msgspec.Struct, omit_defaults=True):
    """What a client needs to know of a server before it starts (``GET /v1/spec``)."""

    protocol_version: int
    server_id: str
    algorithm: str
    agents: dict[str, AgentInfo]
    groups: dict[str, list[str]] = {}
    state_size: int | None = None
    max_episodes: int = 0
    max_message_bytes: int = 0
    episode_timeout_s: float = 0.0
    while_learning: Literal["serve", "wait"] = "serve"


class Status(msgspec.Struct, omit_defaults=True):
    """Training progress of a server (``GET /v1/status``)."""

    server_id: str
    phase: Literal["starting", "ready", "training_failed", "stopping"]
    is_waiting_for_learner: bool = False
    num_open_episodes: int = 0
    num_env_steps: int = 0
    num_agent_steps: int = 0
    num_episodes: int = 0
    num_expired: int = 0
    iteration: int = 0
    weights_seq_no: int = 0
    num_refused: int = 0
    episode_return_mean: float | None = None
    problem: str = ""


ERROR_STORY_CHARS = 2_000
"""Maximum length of a refusal's message: enough for a sentence, not for a traceback."""
