"""Rules of values: observations, rewards and logged actions that are not as declared."""

from __future__ import annotations

from typing import Any

import numpy as np

from muxrl.orchestrator.compliance.subject import Subject, refused, same
from muxrl.orchestrator.compliance.verdicts import Rules, Skipped, expect
from muxrl.protocol.messages import Refused
from muxrl.protocol.spaces import ACTION_MASK_KEY, bounds
from muxrl.protocol.values import conform

RULES = Rules()


def _is_refused(server: Subject, agent_id: str, value: Any) -> Refused:
    """Sends a wrong observation of one agent; returns its refusal, which names the agent."""
    episode = server.start()
    observations = server.observe() | {agent_id: value}
    refusal = refused(server.ask(episode.next(observations=observations)), 422)
    expect(refusal.agent_id == agent_id, f"agent_id {agent_id!r}", refusal)
    expect(refusal.expected and refusal.got, "expected and got", refusal)
    return refusal


@RULES.of("refusals")
def shapes(server: Subject) -> None:
    """an observation of a wrong shape is refused at once, and the refusal names the agent"""
    agent_id, space = server.one_with_box()
    _is_refused(server, agent_id, np.zeros((*space.shape, 2), np.float32))
    _is_refused(server, agent_id, [])
    _is_refused(server, agent_id, {"a": 1.0})


@RULES.of("refusals")
def no_numbers(server: Subject) -> None:
    """NaN, null, strings and infinities in an observation are refused"""
    agent_id, space = server.one_with_box()
    for wrong in (np.nan, np.inf):
        _is_refused(server, agent_id, np.full(space.shape, wrong, np.float32))
    for no_number in (None, "1"):
        _is_refused(server, agent_id, np.full(space.shape, no_number, object).tolist())


@RULES.of("refusals", has_items=False, is_needed=True)
def dtypes(server: Subject) -> None:
    """arrays of any dtype are accepted if their numbers fit the space's dtype (msgpack)"""
    agent_id, space = server.one_with_box()
    server.over_websocket = True
    episode = server.start()
    for dtype in (np.float16, np.float64, np.int64):
        episode.step(observations=server.observe() | {agent_id: np.zeros(space.shape, dtype)})


@RULES.of("refusals", is_needed=True)
def observation_bounds(server: Subject) -> None:
    """the bounds of an observation are not checked"""
    agent_id, space = server.one_with_box()
    _, high = bounds(space)
    above = np.where(np.isfinite(high), high + 1.0, 1e6).astype(np.float32)
    server.start().step(observations=server.observe() | {agent_id: above})


@RULES.of("refusals")
def unknown_agents(server: Subject) -> None:
    """an agent that is not in the spec is refused, and the refusal names it"""
    unknown_id = "nobody at all"
    seen = server.observe()
    for fields in (
        {"observations": seen | {unknown_id: next(iter(seen.values()))}},
        {"rewards": {unknown_id: 1.0}},
        {"terminations": {unknown_id: True}},
    ):
        refusal = refused(server.ask(server.start().next(**fields)), 422)
        expect(refusal.agent_id == unknown_id, f"agent_id {unknown_id!r}", refusal)


@RULES.of("refusals")
def corrections(server: Subject) -> None:
    """after a refusal, a corrected step with the same t is accepted"""
    if server.is_gateway:
        raise Skipped("a gateway closes the episode on all servers when one of them refuses")
    agent_id, space = server.one_with_box()
    episode = server.begun()
    wrong = np.zeros((*space.shape, 2), np.float32)
    refused(server.ask(episode.next(observations=server.observe() | {agent_id: wrong})), 422)
    episode.step()
    episode.end()


@RULES.of("refusals")
def states(server: Subject) -> None:
    """if the spec has a state_size, a step without a state of that length is refused"""
    size = server.spec.state_size
    if size is None:
        raise Skipped("the spec has no state_size")
    for wrong in (None, np.zeros(size + 1, np.float32)):
        refused(server.ask(server.start().next(state=wrong)), 422)


@RULES.of("limits")
def large_rewards(server: Subject) -> None:
    """a reward beyond the range of float32, 3.4e38, is refused"""
    agent_id = server.agents[0]
    refused(server.ask(server.start().next(rewards={agent_id: 1e39})), 422)


@RULES.of("an episode", is_needed=True)
def logged_actions(server: Subject) -> None:
    """a logged action is answered instead of an action of the policy"""
    episode, agent_id = server.start(), server.agents[0]
    reply = episode.step(logged_actions={agent_id: (chosen := server.an_action(agent_id))})
    came = conform(server.spec.agents[agent_id].action_space, reply.actions[agent_id])
    expect(np.allclose(np.asarray(came), np.asarray(chosen)), f"{chosen} for {agent_id!r}", reply)
    again = server.ask(episode.next(t=0))
    expect(same(again, reply), f"the same answer again: {reply}", again)


@RULES.of("an episode")
def log_probs(server: Subject) -> None:
    """a log-probability is accepted only with a logged action, and answered only if the episode
    wants_log_probs"""
    agent_id = server.agents[0]
    refused(server.ask(server.start().next(logged_log_probs={agent_id: -1.0})), 422)
    if server.spec.gives_log_probs:
        reply = server.start(wants_log_probs=True).step()
        is_sound = all(one < 1e-5 for one in reply.log_probs.values())  # float32 rounds
        is_sound = is_sound and reply.log_probs.keys() <= reply.actions.keys()
        expect(is_sound, "a log-probability (at most 0) only for agents with an action", reply)
        expect(not server.start().step().log_probs, "no log_probs without wants_log_probs", reply)


@RULES.of("an episode")
def masks(server: Subject) -> None:
    """actions are allowed by the action mask; a logged action that is not is refused"""
    agent_id, space = server.one_with_mask()
    episode = server.start()
    for action in range(min(space.n, 4)):
        seen = server.observe()
        mask = np.zeros_like(seen[agent_id][ACTION_MASK_KEY])
        mask[action] = 1
        seen[agent_id][ACTION_MASK_KEY] = mask
        forbidden = (action + 1) % space.n + space.start
        if space.n > 1 and not server.is_gateway:
            logged = {agent_id: forbidden}
            refused(server.ask(episode.next(observations=seen, logged_actions=logged)), 422)
        reply = episode.step(observations=seen)
        allowed = action + space.start
        expect(reply.actions[agent_id] == allowed, f"{allowed}, which alone is allowed", reply)
