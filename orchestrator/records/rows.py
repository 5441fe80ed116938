"""What a run records, as one row for each line of its metrics; all names and units are here.

A row is written with all of its fields except those that are marked "rarely", which are written
where they say something. Older runs lack some fields, which then have their defaults, and
fields that are not declared here are passed over. Env steps and seconds are those of training,
over all processes and resumptions of the run. NaN and infinities are written as null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

AgentReturns = Mapping[str, Sequence[float | None]]
"""For each agent, one return for each episode; None where it was not in it."""
Metrics = Mapping[str, AgentReturns]
"""By metric the same, with `COMMON` in an agent's place where it is of the whole episode."""
Means = Mapping[str, float | None]
"""For each agent, or `COMMON`, a mean over recent training episodes; None: it is not known."""


def _always(default: Any) -> Any:
    """A field that is written even where it is its default; others are not written then."""
    return msgspec.field(default_factory=lambda: default)


class IterationRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One training iteration of a server, in ``SERVER.jsonl``; the server's process makes it.

    Attributes:
        time_s: seconds since the server was made.
        env_steps: that the server has seen.
        agent_steps: the same, counted once for each of its agents.
        episodes: that ended.
        iteration: its number, from 1.
        env_steps_per_s: mean since the server was made.
        episode_return_mean: mean of recent episodes, in each the mean over those of its agents that
            were in it, raw; None: no episode has ended.
        weights_seq_no: version of the weights, 0 before any update.
        policy_lag_mean, policy_lag_max: versions by which the batch's actions were behind.
        loss: sum over the policies; None: it names none.
        learner: by policy the numbers of its learner.
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
    """How a server stands, in a `JointRow`.

    Attributes:
        is_lost: it is being started again; then nothing else is known but the next (rarely).
        lost_s: seconds in which it was lost, since the run was launched or resumed (rarely).
        time_s, learning_s, held_s: seconds, see `muxrl.servers.episodes.feed.Activity`; they and
            the next two are None before it has reported.
        num_refused: items of messages that its process has refused.
        num_env_steps: env steps of training in which one of its agents acted.
        num_logged_actions: in training, that simulations chose themselves (rarely).
        weights_seq_no: version of its weights, 0 before any update.
        exchange_p50_s, exchange_p99_s, forward_p50_s, forward_p99_s: quantiles in seconds since
            the last row, see `muxrl.servers.network.latency`; None: it was asked nothing (rarely).
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
        restarted: names of processes that were started again since the last row (rarely).
        time_s: seconds since training began.
        cpu_s: processor seconds of servers and simulations, without the evaluation process.
        env_steps: over all simulations.
        episodes: that ended.
        env_steps_per_s: over the last seconds.
        num_mismatches: episodes whose steps or returns a server counted differently.
        num_lost_episodes: that were closed early since a process was lost.
        num_bad_episodes: that ended at a value that a server refused (rarely).
        num_lost_steps: of which a server may know nothing, since it was lost (rarely).
        num_random_episodes: by server, episodes in which its agents acted at random, since it was
            lost (rarely).
        episode_return_mean: by agent, raw, mean over recent episodes.
        returns: the same of SERVER and SERVER/ROLE, in each episode the mean over those of their
            agents that were in it; "total": their sum over all agents (rarely, as metrics).
        metrics: by metric the same as `episode_return_mean` (rarely: a run that ended an episode
            has some).
        group_metrics: by metric the same as `returns`, but "total" is that of the episode, else the
            mean over all agents (rarely).
        servers: by server its state.
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
        time_s: seconds of training before it; NaN: not recorded.
        env_steps: the point for which it stands, a multiple of the interval or the budget, by
            which runs are compared.
        env_steps_played: what open episodes have played beyond it, too.
        should_explore: whether policies sampled their actions.
        num_episodes: that were to be played.
        first_seed: of the first one's reset, the next ones count on; None: the episodes are an
            external simulation's own.
        is_final: whether it is the one at the end.
        replaced: the condition, see `muxrl.orchestrator.records.conditions`; None: all agents
            acted as learned.
        agents: of the side that was replaced (rarely).
        returns: raw, of each agent in each episode; all conditions play the same episodes.
        metrics: by metric the same.
        logged_agents: of whose actions an external simulation chose any itself (rarely).
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
