"""Acts on waiting steps at once, as a server's event loop does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from muxrl.protocol.messages import Actions, EndEpisode, StartEpisode, Step
from muxrl.servers.acting import Acting
from muxrl.servers.episodes.blocks import Awaited


def act_on(acting: Acting, *awaited: Any) -> list[Any]:
    """Acts in one pass on steps that a store has taken in; returns the answer to each."""
    assert all(isinstance(one, Awaited) for one in awaited)
    blocks = [block for one in awaited for block in one.blocks]
    for block, chosen in zip(blocks, acting.act(blocks), strict=True):
        block.finish(*chosen)
    return [one.answer() for one in awaited]


def actions_of(acting: Acting, awaited: Any) -> dict[str, Any]:
    """Acts on one step; returns the actions by agent."""
    (answer,) = act_on(acting, awaited)
    assert isinstance(answer, Actions)
    return answer.actions


def played(
    policies: Any,
    episode_id: str,
    observations: Sequence[dict[str, Any]],
    rewards: Mapping[str, float] = MappingProxyType({}),
    logged: Sequence[dict[str, Any]] = (),
    **start: Any,
) -> list[Any]:
    """Plays an episode on scripted observations; returns its steps, which have been acted on.

    Args:
        policies: their `store` and `acting` are used.
        episode_id: of the new episode.
        observations: by agent, for each step.
        rewards: by agent, the same after each step.
        logged: by agent, for each step: actions that were chosen elsewhere.
        start: fields of `StartEpisode`.
    """
    store = policies.store
    store.accept(StartEpisode(episode_id, **start), 0.0)
    steps: list[Any] = []
    for t, seen in enumerate(observations):
        item = Step(episode_id, t, seen, dict(rewards) if t else {})
        item.logged_actions = logged[t] if logged else {}
        steps.append(store.accept(item, 0.0))
        act_on(policies.acting, steps[-1])
    store.accept(EndEpisode(episode_id, len(steps), rewards=dict(rewards)), 0.0)
    return steps
