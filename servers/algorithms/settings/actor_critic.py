"""The settings of actor-critics that learn from whole batches."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from muxrl.servers.agents.inputs import AgentId, Alive, Mask, Own, State
from muxrl.servers.agents.keys import AGENT_ID, ALIVE
from muxrl.servers.agents.seating import Seating
from muxrl.servers.algorithms.settings.model import AlgorithmSettings, ModelSettings
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
    """Of its networks."""
    entropy_coeff: Schedule = 0.0
    """Weight of the entropy bonus; a number or a schedule."""
    grad_clip_by: Literal["value", "norm", "global_norm"] = "global_norm"
    """`value`, `norm` or `global_norm`."""
    lr: Schedule = 5e-5
    """Learning rate; a number or a schedule."""
    train_batch_size: Count = 4_000
    """RLlib's old name of `train_batch_size_per_learner`."""
    train_batch_size_per_learner: Count = 4_000
    """Env steps between two updates."""
    vf_loss_coeff: float = 1.0
    """Weight of the value loss."""

    @property
    def batch_env_steps(self) -> int:
        """Env steps between two updates, whichever of the two settings gives them."""
        is_given = self.train_batch_size != type(self).train_batch_size
        return self.train_batch_size if is_given else self.train_batch_size_per_learner


class OnPolicySettings(ActorCriticSettings):
    """Settings of algorithms that learn from batches of the very policy that they update."""

    lambda_: Share = 1.0
    """GAE's lambda; 1: returns up to the end of the batch."""
    optimizer_epsilon: Positive = 1e-5
    """What Adam adds to the root of the mean squared gradient."""


class ClippedRatioSettings(OnPolicySettings):
    """Settings of algorithms with several updates on a batch, which PPO's clipped ratio allows."""

    clip_param: NotNegative = 0.3
    """Clip range of the probability ratio."""
    minibatch_size: Count | None = 128
    """Transitions of a policy in a minibatch, one for each step of an agent; None: the batch."""
    num_epochs: Count = 30
    """Passes over each batch."""
    shuffle_batch_per_epoch: bool = True
    """Whether new minibatches are drawn for each pass."""


class PPOSettings(ClippedRatioSettings):
    """PPO's settings, with RLlib's defaults.

    Advantages are standardised over those transitions of a batch whose actions the policy chose.
    """

    kl_coeff: NotNegative = 0.2
    """First weight of the KL penalty; it adapts."""
    kl_target: NotNegative = 0.01
    """KL divergence that the weight is adapted to."""
    use_critic: bool = True
    """Whether a value function is the baseline; without it, rewards after a batch's end count 0."""
    use_kl_loss: bool = True
    """Whether the KL penalty is used."""
    vf_clip_param: Limit = None
    """Where the squared error of a value is cut off; None: nowhere."""


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
    """Whether a batch's advantages are shifted to mean 0 and scaled to deviation 1."""


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
    """Steps after which V-trace restarts from the value function; `max_seq_len` if that is less and
    there is an LSTM."""
    vtrace_clip_pg_rho_threshold: NotNegative = 1.0
    """Largest weight of V-trace in the policy's gradient."""
    vtrace_clip_rho_threshold: NotNegative = 1.0
    """Largest weight of V-trace in the correction of values."""


class APPOSettings(IMPALASettings):
    """APPO's settings, with RLlib's defaults."""

    circular_buffer_iterations_per_batch: Count = 2
    """Updates on each batch."""
    clip_param: NotNegative = 0.4
    """Clip range of the probability ratio."""
    kl_coeff: NotNegative = 1.0
    """Weight of the KL penalty; it adapts."""
    kl_target: NotNegative = 0.01
    """KL divergence that the weight is adapted to."""
    target_network_update_freq: Count = 2
    """Batches between two updates of the target policy, each counted with its updates."""
    tau: Share = 1.0
    """How far the target policy moves towards the policy then."""
    use_kl_loss: bool = False
    """Whether there is a KL penalty to the target policy."""


class CentralModel(ModelSettings):
    """Network settings of a separate actor and critic."""

    refused = {"vf_share_layers": "its actor and its critic do not see the same"}


class CentralSettings(ClippedRatioSettings):
    """The settings of MAPPO and HAPPO.

    Defaults are the paper's for small tasks: ten passes over a batch, no minibatches, no KL. But
    values are not normalised: with the paper's normalisation the critic learned so fast, while
    bootstrapped returns still fell, that simple_spread's agents left its landmarks.
    """

    own_module_refused = "its critic sees the state, apart from what its actor sees"
    seating = CENTRAL
    space_check = AgentSpaces(reads_images=False)

    model: CentralModel = CentralModel()
    """Of its networks."""
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
    """Whether the critic also reads its agent's id and observation."""
    clip_jointly: bool = False
    """Whether `grad_clip` bounds the gradients of actor and critic as one."""
    grad_clip: Limit = 10.0
    """Largest norm of the gradient, of actor and critic each; None: no clip."""
    huber_delta: Limit = None
    """Error, in the critic's units, from which the value loss is linear; None: never."""
    normalize_values: bool = False
    """Whether the critic learns in units of the returns' running mean and deviation."""
    vf_clip_param: Limit = None
    """How far a value may gain from moving in one update, in the critic's units; None: no limit."""


class MAPPOSettings(CentralSettings):
    """MAPPO's settings; HAPPO's agents need no ids, since each has its own policy."""

    obs_agent_id: bool = False
    """Whether the actor reads its agent's id, one-hot."""


class HAPPOModel(CentralModel):
    """Network settings without an LSTM."""

    refused = CentralModel.refused | {
        "use_lstm": "it compares agents row by row, and recurrent ones learn from padded "
        "sequences; use MAPPO",
    }


class HAPPOSettings(CentralSettings):
    """HAPPO's settings, with MAPPO's defaults; every agent needs its own policy."""

    own_module_refused = "its critics see the state, apart from what its actors see"
    unused = frozenset({"obs_agent_id"})
    seating = replace(CENTRAL, shares_policies=False)

    model: HAPPOModel = HAPPOModel()
    """Of its networks."""
