"""Every message, defined once.

A frame is a `Batch`: a list of items for any number of episodes, answered by a `BatchReply`
with one reply for each item, in order. Over HTTP every item has an endpoint as well.

`t` counts the steps of one episode *on one server*, from 0. What belongs to the actions of
step ``t - 1`` (rewards, terminations, truncations, final observations) travels with the
observations of step ``t``: one round trip a step. All dicts are keyed by agent id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from muxrl.protocol.episode import MAX_ID_CHARS
from muxrl.protocol.spaces import Space

Mode = Literal["train", "eval"]
Number = Annotated[Any, Meta(extra_json_schema={"type": "number"})]
"""Decoded unchecked; `muxrl.protocol.values.number` checks it where its agent is known."""
_OF_AGENTS = {"type": "object", "additionalProperties": {"type": "number"}}
Metric = Annotated[Any, Meta(extra_json_schema={"anyOf": [{"type": "number"}, _OF_AGENTS]})]
Value = Annotated[Any, Meta(extra_json_schema={"$ref": "#/components/schemas/Value"})]
"""A value of the agent's space, or an array; `muxrl.protocol.openapi` has its schema."""
_ROW: dict[str, Any] = {"type": "array", "items": {"type": "number"}}
Row = Annotated[Any, Meta(extra_json_schema=_ROW)]
RowOrNone = Annotated[Any, Meta(extra_json_schema={**_ROW, "type": ["array", "null"]})]
Matrix = Annotated[Any, Meta(extra_json_schema={"type": "array", "items": {"type": "array"}})]
EpisodeId = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_ID_CHARS})]
Time = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
Flag = bool | None
"""None: not set."""
Phase = Literal["starting", "ready", "training_failed", "stopping"]


class Item(msgspec.Struct, tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    """Base of what a client sends about one episode.

    A field that is not known is refused: `reward` for `rewards` would teach nothing, in silence.
    """

    episode_id: EpisodeId

    @property
    def episode_ids(self) -> Sequence[str]:
        """All episodes that it is about."""
        return (self.episode_id,)


class StartEpisode(Item, tag="start"):
    """Opens an episode.

    `mode` "eval": measured, never trained on. `should_explore` None: explore in mode "train"
    only. `untrained`, in mode "eval": agents that act with the weights that the server began with,
    if it has kept these. `seed`, for servers whose spec says `takes_seed`: with it they draw what
    they draw for an episode as a whole, such as the member of a pool; without it, with its id.
    `wants_log_probs`, for servers whose spec says `gives_log_probs`: see `Actions`.
    """

    mode: Mode = "train"
    should_explore: bool | None = None
    untrained: list[str] = []
    seed: int | None = None
    wants_log_probs: bool = False


class Step(Item, tag="step"):
    """Asks for actions at `t`, and reports what followed from those at ``t - 1``.

    `late_rewards` came later than an end of their agent that the same message tells of: they count
    in its return, and are credited to no action.
    """

    t: Time
    observations: dict[str, Value]
    rewards: dict[str, Number] = {}
    terminations: dict[str, Flag] = {}
    truncations: dict[str, Flag] = {}
    final_observations: dict[str, Value] = {}
    logged_actions: dict[str, Value] = {}
    state: RowOrNone = None
    logged_log_probs: dict[str, Number] = {}
    late_rewards: dict[str, Number] = {}


class EndEpisode(Item, tag="end"):
    """Closes an episode after ``t`` steps; agents not done yet are terminated or truncated.

    `late_rewards` as in a step.

    `metrics` are what only the simulation knows of the episode (``{"win": 1}``), or by agent
    (``{"travel_s": {"driver_0": 310}}``). A gateway records them, but for null, NaN and infinity; a
    server does not look at them.
    """

    t: Time
    is_truncated: bool = False
    rewards: dict[str, Number] = {}
    terminations: dict[str, Flag] = {}
    truncations: dict[str, Flag] = {}
    final_observations: dict[str, Value] = {}
    state: RowOrNone = None
    metrics: dict[str, Metric] = {}
    late_rewards: dict[str, Number] = {}


class AbortEpisode(Item, tag="abort"):
    """Closes an episode early; it is kept as truncated at its last full step."""

    reason: str = ""


class PlayedSteps(Item, tag="played"):
    """Steps in a row in which the client acted by itself, with the server's own weights.

    Each of `steps` has a logged action of every agent that observes. `logits` are what these were
    drawn from, if the server wants them: by agent float32 ``[its steps here, n]``. `states` are
    those of recurrent networks after the last of these steps, by group, float32 ``[members,
    hidden]``. Steps that the server has already are passed over, so that the same item may be sent
    again.
    """

    weights_seq_no: int
    steps: list[Step]
    logits: dict[str, Value] = {}
    states: dict[str, Value] = {}


class StepRows(Item, tag="rows", kw_only=True):
    """The next steps of several episodes, in all of which the same agents act, as arrays.

    It says what as many steps would say that have observations, rewards, a state and logged
    actions, and nothing else; in msgpack only, and to servers whose spec says `takes_rows`. Of
    ``E`` episodes and ``A`` agents: `t` is int64 ``[E]``; `observations` has rows for each kind of
    observation space (see `muxrl.protocol.rows`); `rewards` float64 ``[E, A]``, None: there are
    none yet; `state` is float32 ``[E, state_size]``. `agents` empty: all of the server's, in the
    order of its spec. `logged_actions` has rows for each kind of action space, `logged_log_probs`
    is float64 ``[E, A]``, NaN where one is not known; None: no action was chosen elsewhere.
    """

    episode_id: str = ""
    """None: there are several."""
    episode_ids: list[str]
    t: Any
    observations: list[Any]
    agents: list[str] = []
    rewards: Any = None
    state: Any = None
    logged_actions: list[Any] | None = None
    logged_log_probs: Any = None


class PlayedRows(StepRows, tag="played_rows", kw_only=True):
    """A step of several episodes in which the client acted by itself, see `PlayedSteps`.

    `logged_actions` are those of all agents. `logits` has rows for each kind of action space,
    float32 ``[E, A, n]``, if the server wants them. `states` are those of recurrent networks after
    the step, by group, float32 ``[E, members, hidden]``.
    """

    weights_seq_no: int
    logits: list[Any] = []
    states: dict[str, Any] = {}


ItemInJson = StartEpisode | Step | EndEpisode | AbortEpisode | PlayedSteps
AnyItem = ItemInJson | StepRows | PlayedRows


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """One frame of a client."""

    items: list[AnyItem]


class Reply(msgspec.Struct, tag_field="type", omit_defaults=True):
    """Base of what a server answers about one episode."""

    episode_id: str


class Started(Reply, tag="started"):
    """The episode is open.

    `is_evaluation`: a gateway plays it as one, though it was to be training. It is measured and
    never trained on; the simulation plays it like any other, but with the actions that it gets.
    `member`: who plays it, on a server that draws from several.
    """

    parameters: dict[str, int | float] = {}
    """By name, with which the simulation is to play it; of the gateway of a run that gives some."""
    is_evaluation: bool = False
    member: str = ""


class Actions(Reply, tag="actions"):
    """The actions of step `t`, for exactly the agents whose observations were sent.

    `log_probs`, where the episode wants them: the logarithms of the probabilities with which they
    were drawn, of agents with discrete actions, as far as the policy knows.
    """

    t: int
    actions: dict[str, Value]
    weights_seq_no: int = 0
    log_probs: dict[str, Number] = {}


class Refused(Reply, tag="refused"):
    """The item was refused and nothing of it was recorded; `code` is an HTTP status.

    `is_unsound`: it is as declared but for a number that is not finite, or beyond a limit.
    """

    code: int
    message: str
    agent_id: str | None = None
    expected: str | None = None
    got: str | None = None
    is_unsound: bool = False


class Recorded(Reply, tag="recorded"):
    """Played steps are recorded; `num_steps` of the episode have been observed, if it is one.

    `num_wanted` is after how many env steps the client should send what it has played then, so that
    the next batch is of one version of the weights; 0: the server does not mind. `epsilon` is that
    of `PolicyWeights`, as of now. Of several episodes `refused` are those of which the step is not
    recorded.
    """

    num_steps: int
    weights_seq_no: int = 0
    num_wanted: int = 0
    epsilon: float | None = None
    refused: list[Refused] = []


class Ended(Reply, tag="ended"):
    """The episode is closed; the server's counts, to be compared with the client's."""

    num_steps: int
    returns: dict[str, float] = {}


class Aborted(Reply, tag="aborted"):
    """The episode is closed, or was never open on this server."""


class ActionRows(Reply, tag="rows", kw_only=True):
    """What a `StepRows` is answered with: all of its actions, or else a reply for each episode.

    `actions` has rows for each kind of action space. `replies`, in the order of the episodes, come
    in their place where one of the steps is a repeat, or is refused. `log_probs`: those of
    `Actions`, float64 ``[E, A]``, NaN where one is not known; None: none is.
    """

    episode_id: str = ""
    actions: list[Any] = []
    weights_seq_no: int = 0
    replies: list[Actions | Refused] = []
    log_probs: Any = None


ReplyInJson = Started | Actions | Recorded | Ended | Aborted | Refused
AnyReply = ReplyInJson | ActionRows


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
    """What a client needs to know of a server before it starts (``GET /v1/spec``).

    `agents_return`: an agent that is done may observe again, which begins a new life of it.
    """

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
    offers: list[str] = []
    takes_rows: bool = False
    takes_seed: bool = False
    gives_log_probs: bool = False
    agents_return: bool = False


class ServerWarning(msgspec.Struct, omit_defaults=True, frozen=True):
    """What whoever reads a server's results has to know: `what` happened `num` times, first after
    `env_steps` of training; `text` is a sentence about that first time."""

    what: str
    num: int = 1
    env_steps: int = 0
    text: str = ""


class Status(msgspec.Struct, omit_defaults=True):
    """Training progress of a server (``GET /v1/status``).

    `episode_return_mean` is over the last `num_returns` training episodes that its agents were in.
    `checkpoint_problem` says why the last checkpoint was not written, "" if it was;
    `num_refused_checkpoints` counts all such of the process.
    """

    server_id: str
    phase: Phase
    is_waiting_for_learner: bool = False
    is_learning: bool = False
    num_open_episodes: int = 0
    num_env_steps: int = 0
    num_agent_steps: int = 0
    num_episodes: int = 0
    num_expired: int = 0
    iteration: int = 0
    weights_seq_no: int = 0
    num_refused: int = 0
    num_stale_steps: int = 0
    num_logged_actions: int = 0
    episode_return_mean: float | None = None
    num_returns: int | None = None
    problem: str = ""
    warnings: list[ServerWarning] = []
    num_refused_checkpoints: int = 0
    checkpoint_problem: str = ""


class DenseLayer(msgspec.Struct, tag_field="type", tag="dense", omit_defaults=True):
    """``activation(x @ weight + bias)``: `weight` is float32 ``[in, out]``, `bias` ``[out]``."""

    weight: Matrix
    bias: RowOrNone = None
    activation: Literal["none", "tanh", "relu"] = "none"


class GruLayer(msgspec.Struct, tag_field="type", tag="gru"):
    """torch's ``GRUCell``, whose output is its next state too; gates are reset, update, new.

    `weight_x` is float32 ``[in, 3 hidden]``, `weight_h` ``[hidden, 3 hidden]``, `bias_x` and
    `bias_h` ``[3 hidden]``.
    """

    weight_x: Matrix
    weight_h: Matrix
    bias_x: Row
    bias_h: Row


Layer = DenseLayer | GruLayer


class PolicyNetwork(msgspec.Struct, omit_defaults=True):
    """From an agent's flattened observation to a number for each of its actions.

    A team's members share one, and act all at once. Each reads its observation, padded with zeros,
    then, with `reads_last_action`, its last action one-hot, zeros before its first, and, with
    `reads_member_id`, its place in the team one-hot. A member that does not observe while others do
    reads zeros, but for its id. A recurrent state begins with zeros in each episode.
    """

    layers: list[Layer]
    reads_last_action: bool = False
    reads_member_id: bool = False


class PolicyWeights(msgspec.Struct, omit_defaults=True):
    """The policies of a server, to act with elsewhere (``GET /v1/policies``, in msgpack).

    With `follows_masks` an observation's action mask is not a part of what the networks read, and
    what it forbids is not done. With `epsilon` None actions are drawn from the networks' numbers as
    logits; else these are values: the highest is taken, and with this probability, while exploring,
    any action. `wants_logits` says whether `PlayedSteps` are to have them. `problem` says why a
    server has no policies to give.
    """

    server_id: str
    weights_seq_no: int = 0
    policies: dict[str, PolicyNetwork] = {}
    follows_masks: bool = False
    epsilon: float | None = None
    wants_logits: bool = True
    problem: str = ""


class Health(msgspec.Struct):
    """Whether a server is ready (``GET /v1/health``); `status` is the phase of its `Status`."""

    status: Phase
    server_id: str
    problem: str = ""


class Stopping(msgspec.Struct):
    """The server was asked to stop (``POST /v1/shutdown``)."""

    status: Literal["stopping"] = "stopping"


MIN_LOG_PROB = -80.0
"""Least log-probability of a drawn discrete action. At -88 the probability underflows in float32,
which would spoil a learner's probability ratios, losses and weights."""
MAX_REASON_CHARS = 2_000
"""Maximum length of a refusal's message: enough for a sentence, not for a traceback."""
