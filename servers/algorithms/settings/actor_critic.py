"""The settings of actor-critics that learn from whole batches."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from muxrl.servers.agents.inputs import AgentId, Alive, Mask, Own, State
from muxrl.servers.agents.keys import AGENT_ID, ALIVE
from muxrl.servers.agents.seating import Seating
from muxrl.servers.algorithms.settings.model import OF_LSTM, AlgorithmSettings, ModelSettings
from muxrl.servers.trainers.declared_settings import (
    Count,
    Limit,
    NotNegative,
    Positive,
    Schedule,
    Share,
)
from muxrl.servers.trainers.interface import LearnsFrom
from muxrl.servers.trainers.spaces import AgentSpaces

CENTRAL = Seating(
    inputs=(Own, Mask, State, AgentId, Alive),
    reward="team",
    is_joint=True,
    read_if=((AGENT_ID, "settings", "obs_agent_id"), (ALIVE, "model", "use_lstm")),
)
"""What a policy observes: the agent's own observation, and for the critic the state.

The agents of a group get the team's reward and the team's state; an agent without a group gets the
state of all agents of the server. An agent in a group is recorded at every step of its team, even
if it does not act or has departed. Such a step has `ALIVE` 0: it trains the critic, which learns
what the team still earns, but not the actor.
"""


class ActorCriticSettings(AlgorithmSettings):
    """The settings that all actor-critics have."""

    learns_from: ClassVar[LearnsFrom] = "newest"
    gives_log_probs: ClassVar[bool] = True
    space_check: ClassVar[AgentSpaces] = AgentSpaces()

    model: ModelSettings = ModelSettings()
    """Settings of the networks."""
    entropy_coeff: Schedule = 0.0
    """Weight of the entropy bonus in the loss."""
    grad_clip_by: Literal["value", "norm", "global_norm"] = "global_norm"
    """What `grad_clip` limits: each number of a gradient (`value`), the norm of each tensor's
    gradient (`norm`), or the norm of all gradients together (`global_norm`)."""
    lr: Schedule = 5e-5
    """Learning rate."""
    train_batch_size: Count = 4_000
    """RLlib's old name of `train_batch_size_per_learner`; if both are set, this one is used."""
    train_batch_size_per_learner: Count = 4_000
    """Env steps that make up a batch; the policies learn once from each."""
    vf_loss_coeff: float = 1.0
    """Weight of the value function's loss."""

    @property
    def batch_env_steps(self) -> int:
        """Env steps between two updates, whichever of the two settings gives them."""
        is_given = self.train_batch_size != type(self).train_batch_size
        return self.train_batch_size if is_given else self.train_batch_size_per_learner


class OnPolicySettings(ActorCriticSettings):
    """Settings of algorithms that learn from batches of the very policy that they update."""

    lambda_: Share = 1.0
    """GAE's lambda."""
    optimizer_epsilon: Positive = 1e-5
    """Adam's epsilon."""


class ClippedRatioSettings(OnPolicySettings):
    """Settings of algorithms with several updates on a batch, which PPO's clipped ratio allows."""

    clip_param: NotNegative = 0.3
    """How far from 1 the probability ratio may lie before it is clipped."""
    minibatch_size: Count | None = 128
    """Transitions (steps of single agents) of a policy in a minibatch; None: the whole batch."""
    num_epochs: Count = 30
    """Passes over each batch."""
    shuffle_batch_per_epoch: bool = True
    """Whether the batch is shuffled before each pass."""


class PPOSettings(ClippedRatioSettings):
    """PPO's settings, with RLlib's defaults.

    Advantages are standardised over those transitions of a batch whose actions the policy chose.
    """

    kl_coeff: NotNegative = 0.2
    """Weight of the KL penalty at the beginning; it then adapts, see `kl_target`."""
    kl_target: NotNegative = 0.01
    """Desired KL divergence: the penalty's weight rises above twice this, and falls below half of
    this."""
    use_critic: bool = True
    """Whether a value function is the baseline of advantages; without it, what follows the end of a
    batch counts as 0."""
    use_kl_loss: bool = True
    """Whether the loss has a penalty on the KL divergence from the policy that acted."""
    vf_clip_param: Limit = None
    """Largest squared error of a value in the loss: larger ones are cut to this; None: no limit."""


class A2CSettings(OnPolicySettings):
    """A2C's settings: one update on each whole batch, without epochs, minibatches, ratio or KL.

    With ``lambda_=1`` (default) advantages are n-step returns up to the end of the batch, as in the
    paper; below 1 they are GAE advantages.
    """

    unused = frozenset(
        {"clip_param", "kl_coeff", "kl_target", "minibatch_size", "num_epochs", "use_kl_loss"}
    )

    lr = 1e-3
    train_batch_size = 200
    train_batch_size_per_learner = 200
    vf_loss_coeff = 0.5
    entropy_coeff = 0.01
    grad_clip = 40.0
    optimizer_epsilon = 1e-8  # torch's
    # One training record for about so many env steps, not one for each update.
    min_sample_timesteps_per_iteration = 1_000

    standardize_advantages: bool = False
    """Whether each batch's advantages are scaled to mean 0 and standard deviation 1."""


class IMPALASettings(ActorCriticSettings):
    """IMPALA's settings, with RLlib's defaults."""

    learns_from = "recent"

    lr = 5e-4
    entropy_coeff = 0.01
    grad_clip = 40.0
    train_batch_size = 500
    train_batch_size_per_learner = 500
    vf_loss_coeff = 0.5
    min_sample_timesteps_per_iteration = 1_000

    rollout_fragment_length: Count = 50
    """Most steps over which V-trace sums corrections before it bootstraps from the value function.
    With an LSTM, `max_seq_len` if that is less."""
    vtrace_clip_pg_rho_threshold: NotNegative = 1.0
    """V-trace's limit on the importance weight of each action in the policy's gradient."""
    vtrace_clip_rho_threshold: NotNegative = 1.0
    """V-trace's limit on the importance weight of each action in the targets of values."""


class APPOSettings(IMPALASettings):
    """APPO's settings, with RLlib's defaults."""

    circular_buffer_iterations_per_batch: Count = 2
    """Number of updates on each batch."""
    clip_param: NotNegative = 0.4
    """How far from 1 the probability ratio may lie before it is clipped."""
    kl_coeff: NotNegative = 1.0
    """Weight of the KL penalty at the beginning; it then adapts, see `kl_target`."""
    kl_target: NotNegative = 0.01
    """Desired KL divergence: the penalty's weight rises above twice this, and falls below half of
    this."""
    target_network_update_freq: Count = 2
    """Batches between two updates of the target policy."""
    tau: Share = 1.0
    """How far each update moves the target policy towards the policy that learns; 1: it becomes a
    copy."""
    use_kl_loss: bool = False
    """Whether the loss has a penalty on the KL divergence from the target policy."""


class CentralModel(ModelSettings):
    """Network settings of a separate actor and critic."""

    refused = {"vf_share_layers": "its actor and its critic read different inputs"}


class CentralSettings(ClippedRatioSettings):
    """The settings of MAPPO and HAPPO.

    Defaults are the paper's for small tasks: ten passes over a batch, no minibatches, no KL. But
    values are not normalised: with the paper's normalisation the critic learned so fast, while
    bootstrapped returns still fell, that simple_spread's agents left its landmarks.
    """

    own_module_refused = "its critic reads the global state, its actor does not"
    seating = CENTRAL
    space_check = AgentSpaces(reads_images=False)

    model: CentralModel = CentralModel()
    """Settings of the networks."""
    lr = 7e-4
    # The paper collects 3,200 (128 environments, 25 steps) for its small tasks.
    train_batch_size = 1_000
    train_batch_size_per_learner = 1_000
    minibatch_size = None
    num_epochs = 10
    lambda_ = 0.95
    clip_param = 0.2
    entropy_coeff = 0.01

    agent_specific_state: bool = True
    """Whether the critic reads the id and the observation of its agent besides the state."""
    clip_jointly: bool = False
    """Whether `grad_clip` limits the gradients of actor and critic together, instead of each
    alone."""
    grad_clip: Limit = 10.0
    """Limit on the gradients of actor and critic, each of which is clipped as `grad_clip_by` says;
    None: they are not clipped."""
    huber_delta: Limit = None
    """Error of a value, in the critic's units, from which its loss is linear instead of quadratic;
    None: it is always quadratic."""
    normalize_values: bool = False
    """Whether the critic learns returns normalised by their running mean and standard deviation."""
    vf_clip_param: Limit = None
    """How far an update may move a value, in the critic's units: moving it farther does not lower
    the loss; None: no limit."""


class MAPPOSettings(CentralSettings):
    """MAPPO's settings; HAPPO's agents need no ids, since each has its own policy."""

    obs_agent_id: bool = False
    """Whether the actor also reads the id of its agent, one-hot."""


class HAPPOModel(CentralModel):
    """Network settings without an LSTM."""

    refused = CentralModel.refused | {
        "use_lstm": "it compares agents row by row, while recurrent policies learn from padded "
        "sequences; use MAPPO",
    }
    unused = OF_LSTM


class HAPPOSettings(CentralSettings):
    """HAPPO's settings, with MAPPO's defaults; every agent needs its own policy."""

    own_module_refused = "its critics read the global state, its actors do not"
    unused = frozenset({"obs_agent_id"})
    seating = replace(CENTRAL, shares_policies=False)

    model: HAPPOModel = HAPPOModel()
    """Settings of the networks."""
