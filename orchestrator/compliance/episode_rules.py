"""Rules of an episode: starts, steps, repeats, agents that leave, and ends."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np

from muxrl.orchestrator.compliance.subject import Subject, acted, ended, refused, same
from muxrl.orchestrator.compliance.verdicts import Rules, Skipped, expect
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    EndEpisode,
    Started,
    StartEpisode,
    Status,
    Step,
)
from muxrl.protocol.spaces import ACTION_MASK_KEY, DictSpace

RULES = Rules()
_PATIENCE_S = 5.0
"""The longest `episode_timeout_s` for which the trial waits."""
_LATE_S = 5.0
"""How late a busy server may close an expired episode."""


@RULES.of("an episode")
def ids(server: Subject) -> None:
    """an id has 1 to 256 printable characters and no '/'"""
    for wrong in ("", "a/b", "line\nbreak"):
        refused(server.ask(StartEpisode(wrong)), 400)
    right = server.new_id() + " é☃"
    right += "x" * (256 - len(right))
    for reply in (server.ask(StartEpisode(right)), server.ask(EndEpisode(right, 0))):
        is_answer = reply.episode_id == right and not hasattr(reply, "code")
        expect(is_answer, f"an answer for episode {right}", reply)


@RULES.of("an episode", is_needed=True)
def actions(server: Subject) -> None:
    """a step is answered with an action for each agent that observes, from its action space"""
    episode = server.start()
    for _ in range(3):
        reply = episode.step()
        _are_actions_of(server, reply, server.agents)
    if len(server.agents) > 1:
        first, rest = server.agents[:1], server.agents[1:]
        with contextlib.suppress(Skipped):  # a single team, any members of which may be asked
            first, rest = server.two_disjoint()
        for some in (first, rest):
            _are_actions_of(server, episode.step(some), some)


def _are_actions_of(server: Subject, reply: Actions, agents: list[str]) -> None:
    expect(sorted(reply.actions) == sorted(agents), f"actions of {agents}", reply)
    for agent_id, action in reply.actions.items():
        server.check_action(agent_id, action)


@RULES.of("an episode", is_needed=True)
def frames(server: Subject) -> None:
    """the items of a frame are answered in order, also if they are of several episodes"""
    mine, other = server.start(), server.start("eval")
    new = server.new_id()
    first, second = mine.next(), other.next()
    replies = server.say(StartEpisode(new), first, second, AbortEpisode(new))
    kinds = [type(reply).__name__ for reply in replies]
    names = ["Started", "Actions", "Actions", "Aborted"]
    expect(kinds == names, f"replies {names}", kinds)


@RULES.of("rule 1", is_needed=True)
def starts(server: Subject) -> None:
    """an id belongs to one episode; its start may be repeated until the second step"""
    episode = server.start()
    start = StartEpisode(episode.id)
    for _ in range(2):
        expect(isinstance(reply := server.ask(start), Started), "a Started again", reply)
        if episode.t == 0:
            episode.step()
    refused(server.ask(StartEpisode(episode.id, "eval")), 409)
    episode.step()
    refused(server.ask(start), 409)
    episode.end()
    refused(server.ask(start), 409)


@RULES.of("rule 2", is_needed=True)
def repeats(server: Subject) -> None:
    """a step that repeats the last t gets the same answer, and records nothing"""
    episode, agent_id = server.start(), server.agents[0]
    for t in range(3):
        step = episode.next(rewards={agent_id: 1.0} if t else {})
        first = episode.take(step)
        for _ in range(2):
            again = server.ask(step)
            expect(same(again, first), f"the same answer again: {first}", again)
    episode.end({agent_id: 3.0}, rewards={agent_id: 1.0})


@RULES.of("rule 2")
def other_steps(server: Subject) -> None:
    """any other t is refused with 409; the refusal has expected and got"""
    episode = server.start()
    refused(server.ask(episode.next(t=1)), 409)
    episode.step()
    episode.step()
    for t in (-1, 0, 3, 9):
        refusal = refused(server.ask(episode.next(t=t)), 409)
        expect(refusal.expected and refusal.got, "expected and got", refusal)
    for t in (0, 1, 3):
        refused(server.ask(EndEpisode(episode.id, t)), 409)
    episode.step()
    episode.end()


@RULES.of("rule 3")
def whole_steps(server: Subject) -> None:
    """a refused step records nothing, not even its valid values"""
    agent_id = server.agents[0]
    episode, other = server.begun(), server.begun()
    wrong = episode.next(rewards={agent_id: 5.0, "nobody at all": 1.0})
    replies = server.say(wrong, other.next(rewards={agent_id: 1.0}))
    refused(replies[0], 422)
    acted(replies[1])  # other episodes of the frame continue
    episode.step(rewards={agent_id: 1.0})
    for each in (episode, other):
        ended(server.ask(EndEpisode(each.id, 2)), 2, {agent_id: 1.0})


@RULES.of("rule 4", is_needed=True)
def rewards(server: Subject) -> None:
    """rewards of an agent add up; a missing reward is 0"""
    agent_id = server.agents[0]
    episode = server.start()
    episode.step(rewards={agent_id: 0.5})  # a reward before the first action counts in the return
    episode.step(rewards={agent_id: 1.0})
    episode.step()
    others = dict.fromkeys(server.agents[1:], 0.0)
    episode.end({agent_id: 1.25, **others}, rewards={agent_id: -0.25})


@RULES.of("rule 5", is_needed=True)
def late_agents(server: Subject) -> None:
    """an agent may join in the middle of an episode"""
    first, rest = server.two_disjoint()
    episode = server.start()
    episode.step(first)
    _are_actions_of(server, episode.step(), first + rest)
    episode.end()


@RULES.of("rule 5")
def agents_that_are_done(server: Subject) -> None:
    """an observation of an agent that is done is refused"""
    if server.spec.agents_return:
        raise Skipped("the server's agents may return after their end (agents_return)")
    gone, rest = server.agents[0], server.agents[1:]
    for how in ("terminations", "truncations"):
        episode = server.begun()
        final = {"final_observations": server.observe([gone])} if how == "truncations" else {}
        if not rest:
            refused(server.ask(episode.next(**{how: {gone: True}}, **final)), 422)
            continue
        episode.step(rest, **{how: {gone: True}}, **final)
        refusal = refused(server.ask(episode.next()), 422)
        expect(refusal.agent_id == gone, f"agent_id {gone!r}", refusal)


@RULES.of("rule 5", is_needed=True)
def parts_of_teams(server: Subject) -> None:
    """after all members of a team have observed, a step may ask only some of them"""
    group = next((g for g in server.spec.groups.values() if len(g) > 1), None)
    if group is None:
        raise Skipped("the server has no team")
    episode = server.start()
    episode.step(group)
    for some in (group[:1], group[1:]):
        _are_actions_of(server, episode.step(some), some)


@RULES.of("rule 6", is_needed=True)
def truncated_agents(server: Subject) -> None:
    """a truncated agent that acted needs its final observation"""
    gone, rest = server.agents[0], server.agents[1:]
    episode = server.begun()
    truncated = {"truncations": {gone: True}}
    final = {"final_observations": server.observe([gone])}
    if rest:
        lacking = refused(server.ask(episode.next(rest, **truncated)), 422)
        expect(lacking.agent_id == gone, f"agent_id {gone!r}", lacking)
        if server.is_gateway:  # a gateway has closed the episode on all servers
            episode = server.begun()
        episode.step(rest, **truncated, **final)
        episode.end()
    episode = server.begun()
    refused(server.ask(EndEpisode(episode.id, 1, is_truncated=True, state=server.state)), 422)
    if server.is_gateway:
        episode = server.begun()
    finals = server.observe()
    episode.end(is_truncated=True, final_observations=finals, state=server.state)


@RULES.of("rule 6", is_needed=True)
def terminated_agents(server: Subject) -> None:
    """a final observation of a terminated agent is allowed; an agent that is also truncated counts
    as terminated"""
    gone = server.agents[0]
    may_have: dict[str, Any] = {"final_observations": server.observe([gone])}
    for fields in ({}, may_have, {"truncations": {gone: True}}):
        episode = server.begun()
        episode.end(terminations={gone: True}, **fields)


@RULES.of("rule 6", is_needed=True)
def final_masks(server: Subject) -> None:
    """the action mask of a final observation may be all zeros"""
    agent_id, _ = server.one_with_mask()
    space = server.spec.agents[agent_id].observation_space
    assert isinstance(space, DictSpace)
    episode = server.begun()
    finals = server.observe()
    finals[agent_id][ACTION_MASK_KEY] = np.zeros_like(finals[agent_id][ACTION_MASK_KEY])
    episode.end(is_truncated=True, final_observations=finals, state=server.state)


@RULES.of("rule 7", is_needed=True)
def late_rewards(server: Subject) -> None:
    """a reward for an agent that is done still counts"""
    gone, rest = server.agents[0], server.agents[1:]
    episode = server.begun()
    late: dict[str, Any] = {"terminations": {gone: True}, "late_rewards": {gone: 8.0}}
    if rest:
        episode.step(rest, rewards={gone: 1.0}, **late)
        late = {"late_rewards": {gone: 4.0}}
    episode.end({gone: 15.0 if rest else 10.0}, rewards={gone: 2.0}, **late)


@RULES.of("rule 7")
def early_rewards(server: Subject) -> None:
    """late_rewards of an agent that is not done are refused"""
    episode, agent_id = server.begun(), server.agents[0]
    refusal = refused(server.ask(episode.next(late_rewards={agent_id: 1.0})), 422)
    expect(refusal.agent_id == agent_id, f"agent_id {agent_id!r}", refusal)
    episode.end()


@RULES.of("rule 8", is_needed=True)
def both_ends(server: Subject) -> None:
    """ends and aborts may be repeated; the abort of an unknown episode is answered Aborted"""
    agent_id = server.agents[0]
    episode, other = server.begun(), server.begun()
    end = EndEpisode(episode.id, 1, rewards={agent_id: 1.0})
    first = server.ask(end)
    ended(first, 1, {agent_id: 1.0})
    for item in (end, AbortEpisode(episode.id)):
        expect(same(reply := server.ask(item), first), f"the same answer again: {first}", reply)
    for item in (AbortEpisode(other.id), AbortEpisode(other.id), EndEpisode(other.id, 1)):
        expect(isinstance(reply := server.ask(item), Aborted), "aborted", reply)
    unknown = server.ask(AbortEpisode(server.new_id()))
    expect(isinstance(unknown, Aborted), "aborted", unknown)


@RULES.of("rule 8", is_needed=True)
def unknown_episodes(server: Subject) -> None:
    """a step or end of an unknown episode, or a step of one that is over, is refused with 410"""
    unknown_id = server.new_id()
    seen = server.observe()
    refused(server.ask(Step(unknown_id, 0, seen, state=server.state)), 410)
    refused(server.ask(EndEpisode(unknown_id, 0)), 410)
    for close in (EndEpisode, AbortEpisode):
        episode = server.start()
        server.ask(EndEpisode(episode.id, 0) if close is EndEpisode else AbortEpisode(episode.id))
        refused(server.ask(episode.next()), 410)


@RULES.of("rule 9", is_needed=True)
def no_steps(server: Subject) -> None:
    """episodes without a step are legal"""
    server.start().end()


@RULES.of("rule 10", has_items=False)
def silence(server: Subject) -> None:
    """a silent episode is closed as truncated after episode_timeout_s"""
    timeout_s = server.spec.episode_timeout_s
    if not 0 < timeout_s <= _PATIENCE_S:
        raise Skipped(f"episode_timeout_s is {timeout_s:g}; up to {_PATIENCE_S:g} is tested")
    episode = server.begun()
    deadline = time.monotonic() + 3 * timeout_s + _LATE_S
    # The status counts open episodes without breaking the silence.
    while server.read(server.request("GET", "/v1/status"), Status).num_open_episodes:
        expect(time.monotonic() < deadline, f"no open episode {timeout_s:g} s later", "one is open")
        time.sleep(timeout_s / 10)
    refused(server.ask(episode.next()), 410)


@RULES.of("rule 10", is_needed=True)
def signs_of_life(server: Subject) -> None:
    """of a repeated step only episode_id and t are read"""
    episode = server.start()
    first = episode.step()
    again = server.ask(Step(episode.id, 0, {}))
    expect(same(again, first), f"the same answer again: {first}", again)
    episode.end()


@RULES.of("rule 11", is_needed=True)
def evaluation(server: Subject) -> None:
    """steps of episodes with mode eval do not count in num_env_steps"""

    def num_env_steps() -> int:
        return server.read(server.request("GET", "/v1/status"), Status).num_env_steps

    before = num_env_steps()
    episode = server.start("eval")
    for _ in range(3):
        episode.step()
    episode.end()
    expect((now := num_env_steps()) == before, f"num_env_steps still {before}", now)
