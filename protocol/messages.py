"""Every message, defined once.

A frame is a `Batch`: a list of items for any number of episodes. A `BatchReply` answers it, with
one reply for each item, in order. Over HTTP each kind of item also has an endpoint.

`t` counts the steps of one episode *on one server*, from 0. The results of the actions of step
``t - 1`` (rewards, terminations, truncations, final observations) travel with the observations of
step ``t``, so that each step takes one round trip. All dicts are keyed by agent id.
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

    Unknown fields are refused: otherwise a `reward` instead of `rewards` would silently teach
    nothing.
    """

    episode_id: EpisodeId

    @property
    def episode_ids(self) -> Sequence[str]:
        """Ids of all episodes that the item is about."""
        return (self.episode_id,)


class StartEpisode(Item, tag="start"):
    """Opens an episode.

    `mode`: an episode in mode "eval" is measured and never trained on. `should_explore`: whether
    policies explore; None: in mode "train" only. `untrained`: in mode "eval", agents that act with
    the weights that the server began with, if the server has kept them. `seed`: from it a server
    whose spec says `takes_seed` draws whatever it draws once per episode, such as the member of a
    pool; without a seed it draws from the episode's id. `wants_log_probs`: whether answers have
    `log_probs`, from a server whose spec says `gives_log_probs`; see `Actions`.
    """

    mode: Mode = "train"
    should_explore: bool | None = None
    untrained: list[str] = []
    seed: int | None = None
    wants_log_probs: bool = False


class Step(Item, tag="step"):
    """Asks for the actions at `t`, and reports the results of the actions at ``t - 1``.

    `late_rewards` are rewards that came after the end of their agent, where the same message
    reports this end. They count in the agent's return, but are credited to no action.
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
    """Closes an episode after ``t`` steps.

    Agents that are not done yet are truncated with `is_truncated`, else terminated. `late_rewards`
    are the same as in a `Step`.

    `metrics` are numbers that only the simulation knows, of the episode (``{"win": 1}``) or by
    agent (``{"travel_s": {"driver_0": 310}}``). A gateway records them, except null, NaN and
    infinity; a server ignores them.
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
    """Closes an episode early; the server keeps it as truncated at its last full step."""

    reason: str = ""


class PlayedSteps(Item, tag="played"):
    """Consecutive steps in which the client chose the actions itself, with the server's weights.

    Each of `steps` has a logged action of every agent that observes. `logits`, if the server wants
    them, are the logits that these actions were drawn from: by agent float32 ``[its steps here,
    n]``. `states` are the states of recurrent networks after the last of these steps: by group
    float32 ``[members, hidden]``. The server skips steps that it already has, so the same item may
    be sent again.
    """

    weights_seq_no: int
    steps: list[Step]
    logits: dict[str, Value] = {}
    states: dict[str, Value] = {}


class StepRows(Item, tag="rows", kw_only=True):
    """The next steps of several episodes in which the same agents act, as arrays.

    It means the same as one `Step` for each episode with observations, rewards, a state and logged
    actions, and nothing else. It can be sent in msgpack only, to servers whose spec says
    `takes_rows`. With ``E`` episodes and ``A`` agents: `t` is int64 ``[E]``; `observations` has
    rows for each kind of observation space (see `muxrl.protocol.rows`); `rewards` is float64
    ``[E, A]``, None if there are none yet; `state` is float32 ``[E, state_size]``. If `agents` is
    empty, all agents of the server act, in the order of its spec. `logged_actions` has rows for
    each kind of action space, and `logged_log_probs` is float64 ``[E, A]``, NaN where one is not
    known; both are None if no action was chosen elsewhere.
    """

    episode_id: str = ""
    """Always empty, since there are several episodes."""
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

    `logged_actions` has the actions of all agents. `logits` has rows for each kind of action space,
    float32 ``[E, A, n]``, if the server wants them. `states` are the states of recurrent networks
    after the step: by group float32 ``[E, members, hidden]``.
    """

    weights_seq_no: int
    logits: list[Any] = []
    states: dict[str, Any] = {}


ItemInJson = StartEpisode | Step | EndEpisode | AbortEpisode | PlayedSteps
AnyItem = ItemInJson | StepRows | PlayedRows


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """One frame that a client sends."""

    items: list[AnyItem]


class Reply(msgspec.Struct, tag_field="type", omit_defaults=True):
    """Base of what a server answers about one episode."""

    episode_id: str


class Started(Reply, tag="started"):
    """The episode is open.

    `is_evaluation`: whether a gateway uses the episode as an evaluation, although it was started in
    mode "train". Then it is measured and never trained on. The simulation plays it like any other
    episode, with the actions that it receives. `member`: on a server that draws one of several
    members for each episode, the name of the member that was drawn.
    """

    parameters: dict[str, int | float] = {}
    """By name: the values with which the simulation has to play the episode, from the gateway of a
    run whose config has parameters."""
    is_evaluation: bool = False
    member: str = ""


class Actions(Reply, tag="actions"):
    """The actions of step `t`, for exactly the agents whose observations were sent.

    `log_probs`, if the episode was started with `wants_log_probs`: for agents with discrete
    actions, the logarithms of the probabilities with which the actions were drawn, as far as the
    policy knows them.
    """

    t: int
    actions: dict[str, Value]
    weights_seq_no: int = 0
    log_probs: dict[str, Number] = {}


class Refused(Reply, tag="refused"):
    """The item was refused and nothing of it was recorded; `code` is an HTTP status.

    `is_unsound`: the only fault of the item is a number that is not finite, or beyond a limit.
    """

    code: int
    message: str
    agent_id: str | None = None
    expected: str | None = None
    got: str | None = None
    is_unsound: bool = False


class Recorded(Reply, tag="recorded"):
    """Played steps are recorded.

    `num_steps`: number of the episode's steps that the server has recorded so far, if the item was
    about one episode. `num_wanted`: after how many further env steps the client should send what it
    has played by then, so that all of the next batch is played with one version of the weights; 0:
    at any time. `epsilon`: the current `epsilon` of `PolicyWeights`. `refused`: if the item was
    about several episodes, a refusal for each episode whose step is not recorded.
    """

    num_steps: int
    weights_seq_no: int = 0
    num_wanted: int = 0
    epsilon: float | None = None
    refused: list[Refused] = []


class Ended(Reply, tag="ended"):
    """The episode is closed; has the server's counts, to compare with the client's."""

    num_steps: int
    returns: dict[str, float] = {}


class Aborted(Reply, tag="aborted"):
    """The episode is closed, or was never open on this server."""


class ActionRows(Reply, tag="rows", kw_only=True):
    """The answer to a `StepRows`: the actions of all episodes, or a reply for each episode.

    `actions` has rows for each kind of action space. If one of the steps is a repeat or is refused,
    `actions` is empty and `replies` has a reply for each episode, in their order. `log_probs` are
    the same as in `Actions`: float64 ``[E, A]``, NaN where one is not known; None if none is known.
    """

    episode_id: str = ""
    actions: list[Any] = []
    weights_seq_no: int = 0
    replies: list[Actions | Refused] = []
    log_probs: Any = None


ReplyInJson = Started | Actions | Recorded | Ended | Aborted | Refused
AnyReply = ReplyInJson | ActionRows


class BatchReply(msgspec.Struct):
    """One frame that a server answers with."""

    replies: list[AnyReply]


class AgentInfo(msgspec.Struct, omit_defaults=True):
    """An agent's policy, spaces and group on its server."""

    policy_id: str
    observation_space: Space
    action_space: Space
    group: str | None = None


class ServerSpec(msgspec.Struct, omit_defaults=True):
    """What a client needs to know of a server before it starts (``GET /v1/spec``).

    `agents_return`: whether an agent that is done may observe again in the same episode, which
    begins a new trajectory of the agent.
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
    """Something that readers of a server's results have to know.

    `what` happened `num` times, for the first time after `env_steps` of training; `text` describes
    that first time in a sentence.
    """

    what: str
    num: int = 1
    env_steps: int = 0
    text: str = ""


class Status(msgspec.Struct, omit_defaults=True):
    """Training progress of a server (``GET /v1/status``).

    `episode_return_mean` is over the last `num_returns` training episodes that its agents were in.
    `checkpoint_problem` says why the last checkpoint could not be written, "" if it was written;
    `num_refused_checkpoints` counts the checkpoints that this process could not write.
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
    """torch's ``GRUCell``, whose output is also its next state.

    The gates are in the order reset, update, new. `weight_x` is float32 ``[in, 3 hidden]``,
    `weight_h` ``[hidden, 3 hidden]``, `bias_x` and `bias_h` ``[3 hidden]``.
    """

    weight_x: Matrix
    weight_h: Matrix
    bias_x: Row
    bias_h: Row


Layer = DenseLayer | GruLayer


class PolicyNetwork(msgspec.Struct, omit_defaults=True):
    """A network that maps an agent's flattened observation to a number for each of its actions.

    The members of a team share one network and act all at once. Each member's input is its
    observation, padded with zeros; then, with `reads_last_action`, its last action one-hot (zeros
    before its first action); then, with `reads_member_id`, its place in the team one-hot. A member
    that does not observe while others do reads zeros, except for its place. A recurrent state
    begins with zeros in each episode.
    """

    layers: list[Layer]
    reads_last_action: bool = False
    reads_member_id: bool = False


class PolicyWeights(msgspec.Struct, omit_defaults=True):
    """The policies of a server, for clients that act with them (``GET /v1/policies``, in msgpack).

    `follows_masks`: whether the networks do not read the action mask of an observation, and actions
    that the mask forbids are never taken. `epsilon`: None if the networks' outputs are logits, from
    which actions are drawn. Otherwise the outputs are values: the action with the highest value is
    taken, and with probability `epsilon`, while exploring, a random one. `wants_logits`: whether
    `PlayedSteps` must have `logits`. `problem`: why the server cannot give its policies.
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
