"""Declares the rows of a run's metrics, one for each line of a file, with all names and units.

A row is written with all of its fields, except that a field marked "rarely" is left out where it
has its default. A field that an older run lacks has its default when read, and fields that are not
declared here are ignored. Env steps and seconds are those of training, over all
processes and resumptions of the run. NaN and infinities are written as null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

AgentReturns = Mapping[str, Sequence[float | None]]
"""By agent: its return in each episode; None: the agent was not in it."""
Metrics = Mapping[str, AgentReturns]
"""By metric and agent: the value in each episode; `COMMON` stands for the whole episode."""
Means = Mapping[str, float | None]
"""By agent, or `COMMON`: a mean over recent training episodes; None: not known."""


def _always(default: Any) -> Any:
    """Returns a field that is written even if it has its default, unlike other fields."""
    return msgspec.field(default_factory=lambda: default)


class IterationRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One training iteration of a server, in ``SERVER.jsonl``; the server's process makes it.

    Attributes:
        time_s: seconds since the server was made.
        env_steps: env steps that the server has seen.
        agent_steps: agent steps of the server's agents.
        episodes: number of episodes that have ended.
        iteration: number of the iteration, from 1.
        env_steps_per_s: mean since the server was made.
        episode_return_mean: raw return, mean over recent episodes; an episode counts as the mean
            over the server's agents that were in it; None: no episode has ended.
        weights_seq_no: version of the weights, 0 before any update.
        policy_lag_mean, policy_lag_max: lag of the batch's actions, in versions of the weights.
        loss: sum over the policies; None: the learner reports no loss.
        learner: by policy: the numbers of its learner.
    """

    env_steps: int
    time_s: float | None = None
    agent_steps: int | None = None
    episodes: int | None = None
    iteration: int | None = None
    env_steps_per_s: float | None = None
    episode_return_mean: float | None = None
    weights_seq_no: int | None = None
    policy_lag_mean: float | None = None
    policy_lag_max: int | float | None = None
    loss: float | None = None
    learner: Mapping[str, Mapping[str, float | None]] = {}


class ServerState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a server, in a `JointRow`.

    Attributes:
        is_lost: whether it is being started again; then only `lost_s` is known besides (rarely).
        lost_s: seconds for which it was lost since the run was launched or resumed (rarely).
        time_s, learning_s, held_s: seconds, see `muxrl.servers.episodes.feed.Activity`; these and
            the next two are None before the server has reported.
        num_refused: items of messages that the server has refused.
        num_env_steps: env steps of training in which one of its agents acted.
        num_logged_actions: actions in training that simulations chose themselves (rarely).
        weights_seq_no: version of the server's weights, 0 before any update.
        exchange_p50_s, exchange_p99_s, forward_p50_s, forward_p99_s: quantiles in seconds since
            the last row, see `muxrl.servers.network.latency`; None: there was no request (rarely).
    """

    is_lost: bool = False
    lost_s: float = 0.0
    time_s: float | None = None
    learning_s: float | None = None
    held_s: float | None = None
    num_refused: int | None = None
    num_env_steps: int | None = None
    num_logged_actions: int = 0
    weights_seq_no: int | None = None
    exchange_p50_s: float | None = None
    exchange_p99_s: float | None = None
    forward_p50_s: float | None = None
    forward_p99_s: float | None = None


class JointRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole run once a second, in ``joint.jsonl``.

    Attributes:
        resumed_from: env steps of the checkpoint, in the first row after the run was resumed
            (rarely).
        restarted: names of lost processes that were started again since the last row (rarely).
        time_s: seconds since training began.
        cpu_s: processor seconds of servers and simulations, without the evaluation process.
        env_steps: env steps of all simulations.
        episodes: number of episodes that have ended.
        env_steps_per_s: mean over the last seconds.
        num_mismatches: episodes whose steps or returns a server counted differently.
        num_lost_episodes: episodes that were closed early because a process was lost.
        num_bad_episodes: episodes that ended because a server refused a value (rarely).
        num_lost_steps: steps that a server may not have got because it was lost (rarely).
        num_random_episodes: by server: episodes in which its agents acted at random, because it was
            lost (rarely).
        episode_return_mean: by agent: raw return, mean over recent episodes.
        returns: by SERVER and SERVER/ROLE: raw return, mean over recent episodes; of each episode,
            the mean over those of its agents that were in it; "total": the sum over all agents
            (rarely, as metrics).
        metrics: by metric: means as `episode_return_mean` (rarely: there are some as soon as an
            episode has ended).
        group_metrics: by metric: means as `returns`, but "total" is the episode's own value, or the
            mean over all agents if it has none (rarely).
        servers: by server: its state.
    """

    resumed_from: int | None = None
    restarted: Sequence[str] = ()
    time_s: float | None = _always(None)
    cpu_s: float | None = _always(None)
    env_steps: int
    episodes: int | None = _always(None)
    env_steps_per_s: float | None = _always(None)
    num_mismatches: int = _always(0)
    num_lost_episodes: int = _always(0)
    num_bad_episodes: int = 0
    num_lost_steps: int = 0
    num_random_episodes: Mapping[str, int] = msgspec.field(default_factory=dict)
    episode_return_mean: Means = _always({})
    returns: Means = msgspec.field(default_factory=dict)
    metrics: Mapping[str, Means] = msgspec.field(default_factory=dict)
    group_metrics: Mapping[str, Means] = msgspec.field(default_factory=dict)
    servers: Mapping[str, ServerState] = _always({})


class EvaluationRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One condition of one evaluation, in ``evaluation.jsonl``.

    Attributes:
        time_s: seconds of training before the evaluation; NaN: not recorded.
        env_steps: the nominal env steps of the evaluation, by which runs are compared: a multiple
            of the interval, or the budget.
        env_steps_played: `env_steps` and the env steps that open episodes have played beyond.
        should_explore: whether policies sampled their actions.
        num_episodes: number of episodes that were to be played.
        first_seed: seed of the first episode's reset, the next ones count on; None: an external
            simulation chose the episodes.
        is_final: whether it is the evaluation at the end of the run.
        replaced: the condition, see `muxrl.orchestrator.records.conditions`; None: all agents
            acted as learned.
        agents: agents of the side that was replaced (rarely).
        returns: raw return of each agent in each episode; all conditions play the same episodes.
        metrics: by metric: the value of each agent in each episode.
        logged_agents: agents for which an external simulation chose any action itself (rarely).
    """

    time_s: float | None = _always(math.nan)
    env_steps: int
    env_steps_played: int | None = _always(None)
    should_explore: bool = _always(False)
    num_episodes: int | None = _always(None)
    first_seed: int | None = None
    is_final: bool = _always(False)
    replaced: str | None
    agents: Sequence[str] = ()
    returns: AgentReturns
    metrics: Metrics = _always({})
    logged_agents: Sequence[str] = ()
