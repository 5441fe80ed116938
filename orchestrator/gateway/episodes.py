"""The open episodes of a gateway: checks the items of simulations, and records how episodes end.

As on a server, an item's order, agents and values are checked before anything of it is kept. If a
server refuses what the gateway cannot check, such as a team without a member, the episode is closed
on all servers, as in the Python client.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from muxrl.client.env_loop import EpisodeResult
from muxrl.client.episode_metrics import EpisodeMetrics
from muxrl.client.errors import ClientError, EpisodeAborted, RefusedByServer, ServerLost
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox
from muxrl.orchestrator.gateway.metrics import metrics_of
from muxrl.orchestrator.gateway.open_episode import OpenEpisode
from muxrl.protocol.episode import is_repeat
from muxrl.protocol.errors import (
    EpisodeGone,
    NotServing,
    OutOfOrder,
    ProtocolError,
    TooManyEpisodes,
    UnsoundValue,
    ValueMismatch,
    error_for_code,
)
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    ActionRows,
    Actions,
    AnyReply,
    Ended,
    EndEpisode,
    PlayedRows,
    PlayedSteps,
    ServerSpec,
    Step,
    StepRows,
)
from muxrl.protocol.rows import Layout
from muxrl.servers.episodes.counts import EpisodeCounts
from muxrl.servers.episodes.ledger import Ledger
from muxrl.servers.episodes.reading import Reading
from muxrl.servers.episodes.step_check import SMALL_REWARD, CheckedStep, StepCheck

logger = logging.getLogger(__name__)

_REMEMBERED = 10_000
"""How many ended episodes are remembered: simulations may repeat their ends."""
_MAX_REASON_CHARS = 500
"""Most characters of the reason why an episode is over, which may have to be sent again."""


@dataclass
class Forwarded:
    """An item that the servers have to answer before the gateway can."""

    episodes: Sequence[OpenEpisode]
    """The item's episodes, all of one client."""
    answered: Callable[[], AnyReply | ProtocolError]
    """Returns the gateway's answer, once the servers have answered."""
    step: CheckedStep | None = None
    """A checked step, which is sent together with the steps of other episodes."""
    rows: tuple[StepRows, Layout, list[Any]] | None = None
    """Steps in rows, their layout, and the arrays into which their actions are written."""


class GatewayEpisodes:
    """All episodes of a gateway. For one thread only.

    Args:
        spec: the spec of the gateway.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.counts = EpisodeCounts()
        self.num_lost = 0
        """Training episodes that were closed because a server was lost."""
        self.ended: deque[EpisodeResult] = deque(maxlen=_REMEMBERED)
        """The newest training episodes that have ended; another thread may pop them."""
        self.num_over = 0
        """Episodes that are over, however they ended, evaluations too."""
        self.most_env_steps = math.inf
        """Limit of training env steps; further steps wait until it is raised or training ends."""
        self.refusal: ProtocolError | None = None
        """The error with which all episodes are refused from now on; None: they are not refused."""
        self.unconfirmed: set[str] = set()
        """Open episodes whose simulation has not heard `refusal` yet; only "" if none was open."""
        self.open: dict[str, OpenEpisode] = {}
        self.ledger = Ledger("gateway", "", self.open, _REMEMBERED)
        self._spec = spec
        self._check = StepCheck(
            spec.agents, spec.state_size, needs_state=False, agents_return=spec.agents_return
        )
        # Steps with larger rewards are read one by one, where returns are checked, too.
        self._reading = Reading(self._check, max_reward=SMALL_REWARD)
        self.begin_round()

    @property
    def num_training(self) -> int:
        """How many open episodes train; may be read from any thread."""
        return sum(one.is_training for one in list(self.open.values()))

    def begin_round(self) -> None:
        """Begins a round, in which nothing has been sent to servers yet."""
        self.outboxes: dict[MultiplexingClient, Outbox] = defaultdict(Outbox)
        """By client: the starts, ends and repeats that servers are sent in this round."""
        self._num_stepping = 0
        """Training steps that are sent in this round."""
        self.aborts: dict[str, str] = {}
        """By id of an episode that its simulation aborts in this round: the reason."""

    def receive(
        self, item: Step | StepRows | PlayedSteps | EndEpisode | AbortEpisode
    ) -> Forwarded | AnyReply | list[Step] | None:
        """Receives an item.

        Args:
            item: any item but a start; `Wanted` receives starts.

        Returns:
            What to ask the servers; or the answer; or, of rows that are not plain, the steps to
            receive one by one. None: the item has to wait, since `most_env_steps` is reached.

        Raises:
            ProtocolError: the item is refused, and nothing of it is kept.
        """
        if isinstance(item, StepRows):
            return self._step_in_rows(item) or self._reading.singles(item)
        episode_id = item.episode_id
        earlier = self.ledger.answer_of(episode_id)
        if isinstance(item, AbortEpisode):
            self.aborts[episode_id] = item.reason
            return earlier or Aborted(episode_id)
        if isinstance(item, EndEpisode) and isinstance(earlier, Ended):
            return earlier
        self.check_refusal(episode_id)
        if isinstance(item, EndEpisode) and earlier is not None:
            return earlier
        if isinstance(item, PlayedSteps):
            raise _takes_no_played()
        episode = self.ledger.find(episode_id)
        return self._step(item, episode) if isinstance(item, Step) else self._end(item, episode)

    def check_refusal(self, episode_id: str) -> None:
        """Raises the refusal of all episodes, if any, and notes that this simulation knows it."""
        if self.refusal is not None:
            self.unconfirmed -= {episode_id, ""}
            raise self.refusal

    def check_new(self, episode_id: str) -> None:
        """Raises `ProtocolError` unless another episode may begin in this round, with this id."""
        self.ledger.check_new(episode_id)
        num_ending = sum(len(outbox.ended) for outbox in self.outboxes.values())
        if len(self.open) - num_ending >= self._spec.max_episodes:
            raise TooManyEpisodes(
                f"the gateway has {len(self.open)} open episodes, the most that its servers allow "
                "(limits.max_episodes); end one first"
            )

    # --- steps --------------------------------------------------------------------------

    def _step_in_rows(self, item: StepRows) -> Forwarded | None:
        """Receives rows if all steps in them are plain; None: they have to be read one by one.

        Raises:
            MalformedMessage: the item's arrays are no rows.
            ValueMismatch: the client chose the actions itself.
        """
        if isinstance(item, PlayedRows):
            raise _takes_no_played()
        if not self._reading.check(item) or self.refusal is not None or item.logged_actions:
            return None
        found = [self.open.get(episode_id) for episode_id in item.episode_ids]
        episodes = [one for one in found if one is not None]
        if len(set(episodes)) < len(found):
            return None
        layout, client = self._reading.layout(item), episodes[0].client
        num_training = 0
        for one, t in zip(episodes, item.t.tolist(), strict=True):
            if one.t != t or one.client is not client:
                return None
            if one.agents_done and not one.agents_done.isdisjoint(layout.agents):
                return None
            if one.evaluation is not None and t >= one.evaluation.max_steps:
                return None
            num_training += one.is_training
        if num_training and not self._is_allowed(num_training):
            return None
        self._num_stepping += num_training
        for one in episodes:
            one.t, one.last_answer = one.t + 1, None
        actions = [kind.empty(len(episodes)) for kind in layout.acted]
        slots = [one.joint.slot for one in episodes]
        client.table.step_in_rows(self.outboxes[client], slots, layout, item, actions)

        def answered() -> ActionRows:
            for row, one in enumerate(episodes):
                one.last_answer = layout, actions, row
            self._count(num_training, len(layout.agents))
            return ActionRows(actions=actions)

        return Forwarded(episodes, answered, rows=(item, layout, actions))

    def singles(self, forwarded: Forwarded) -> Iterator[tuple[Step, Forwarded]]:
        """Yields the steps of rows one by one; needed if servers have not answered all of them."""
        assert forwarded.rows is not None
        item, layout, actions = forwarded.rows
        for row, step in enumerate(self._reading.singles(item)):
            one = forwarded.episodes[row]

            def answered(row: int = row, one: OpenEpisode = one) -> Actions:
                one.last_answer = layout, actions, row
                self._count(int(one.is_training), len(layout.agents))
                return one.repeated()

            yield step, Forwarded([one], answered)

    def _is_allowed(self, num_steps: int) -> bool:
        """Whether `num_steps` more training steps may be sent."""
        num_env_steps = self.counts.num_env_steps + self._num_stepping
        return num_env_steps + num_steps <= self.most_env_steps

    def _step(self, item: Step, episode: OpenEpisode) -> Forwarded | AnyReply | None:
        if is_repeat(item.episode_id, episode.t, item.t):
            return self.repeat(episode, episode.repeated())
        if episode.is_training and not self._is_allowed(1):
            return None
        joint, table, slot = episode.joint, episode.client.table, episode.joint.slot
        checked = self._check.step(item, episode.agents_done, lambda: joint.returns)
        table.log(
            slot, checked.rewards, item.terminations, item.truncations, checked.final_observations
        )
        table.log_late(slot, checked.late_rewards)
        if episode.evaluation is not None and item.t >= episode.evaluation.max_steps:
            episode.evaluation.num_truncated[episode.condition] += 1
            outbox = self.outboxes[episode.client]
            table.end(outbox, slot, checked.observations, is_truncated=True, state=checked.state)
            return Forwarded([episode], lambda: self._truncated(episode))
        if episode.evaluation is not None:
            logged = episode.evaluation.logged_agents[episode.condition]
            logged.update(checked.logged_actions)
        episode.agents_done |= checked.terminated | checked.truncated
        episode.agents_done -= checked.observations.keys()
        self._num_stepping += episode.is_training
        episode.t += 1
        episode.last_answer = None

        def answered() -> Actions:
            chosen = table.actions[slot]
            actions = {agent_id: chosen[agent_id] for agent_id in item.observations}
            answer = episode.last_answer = Actions(item.episode_id, item.t, actions)
            self._count(int(episode.is_training), len(actions))
            return answer

        return Forwarded([episode], answered, step=checked)

    def repeat(self, episode: OpenEpisode, answer: AnyReply) -> Forwarded | AnyReply:
        """Gives an answer again. Servers that have heard nothing for too long are sent something
        first, so that the episode does not expire there."""
        outbox = self.outboxes[episode.client]
        if episode.client.table.keep_alive(outbox, episode.joint.slot, time.monotonic()):
            return Forwarded([episode], lambda: answer)
        return answer

    def _count(self, num_steps: int, num_agents: int) -> None:
        """Counts answered training steps, in each of which `num_agents` agents act."""
        self.counts.num_env_steps += num_steps
        self.counts.num_agent_steps += num_steps * num_agents

    # --- ends ---------------------------------------------------------------------------

    def _end(self, item: EndEpisode, episode: OpenEpisode) -> Forwarded:
        if is_repeat(item.episode_id, episode.t, item.t):
            raise OutOfOrder(
                f"episode {item.episode_id} has {episode.t} steps, so its end has t={episode.t}",
                expected=f"t={episode.t}",
                got=f"t={item.t}",
            )
        joint = episode.joint
        checked = self._check.end(item, episode.agents_done, lambda: joint.returns)
        metrics = metrics_of(item, self._spec.agents)
        table, slot = episode.client.table, joint.slot
        table.log(slot, checked.rewards, item.terminations, item.truncations)
        table.log_late(slot, checked.late_rewards)
        table.end(
            self.outboxes[episode.client],
            slot,
            checked.final_observations,
            is_truncated=item.is_truncated,
            state=checked.state,
        )
        return Forwarded([episode], lambda: self._ended(episode, metrics, "it has ended"))

    def _ended(self, episode: OpenEpisode, metrics: EpisodeMetrics, why: str) -> Ended:
        """Records an episode's end, after the servers have recorded it; returns the answer."""
        joint = episode.joint
        ended = Ended(joint.episode_id, episode.t, joint.returns)
        self._record_end(ended, why)
        played = EpisodeResult.of(joint, episode.t, None, metrics, episode.started.parameters)
        if episode.evaluation is not None:
            episode.evaluation.add(episode.condition, played)
        elif episode.is_training:
            self.ended.append(played)
            self.counts.add_episode(ended.returns)
        return ended

    def _truncated(self, episode: OpenEpisode) -> ProtocolError:
        """Records that an evaluation episode was truncated for its length; returns the refusal."""
        why = f"it is an evaluation episode, and has reached its limit of {episode.t:,} env steps"
        self._ended(episode, {}, f"{why} (evaluation.max_episode_steps); start another one")
        return self.ledger.gone(episode.joint.episode_id)

    def abort(self) -> None:
        """Closes the episodes that simulations abort in this round."""
        why = "; ".join(dict.fromkeys(self.aborts.values()))
        ids = [episode_id for episode_id in self.aborts if episode_id in self.open]
        self.close(ids, f"its simulation aborted it: {why}".rstrip(": "))

    def lose(self, episode: OpenEpisode, why: ClientError, *, is_start: bool) -> ProtocolError:
        """Records that the client has closed an episode on all servers.

        Returns:
            The refusal of the item: an `EpisodeGone`, say.
        """
        refusal = _refusal_of(why, is_start=is_start)
        episode_id = episode.joint.episode_id
        if self.open.get(episode_id) is episode:  # once, though several of its items may fail
            self._record_end(Aborted(episode_id), refusal.message)
            self.num_lost += episode.is_training and isinstance(refusal, EpisodeGone)
        return refusal

    def close(self, episode_ids: Iterable[str], reason: str) -> None:
        """Closes episodes early, with one message to each server: for a lost one it waits once."""
        by_client: dict[MultiplexingClient, list[str]] = {}
        for episode_id in episode_ids:
            by_client.setdefault(self.open[episode_id].client, []).append(episode_id)
        for client, ids in by_client.items():
            client.abort_episode(ids, reason)
            for episode_id in ids:
                self._record_end(Aborted(episode_id), reason)

    def refuse_all(self, refusal: ProtocolError, *, has_clients: bool) -> None:
        """Closes all episodes, and refuses all from now on.

        Args:
            refusal: with what they are refused.
            has_clients: whether simulations are connected, which should hear the refusal even if
                no episode is open.
        """
        self.refusal = refusal
        self.unconfirmed = set(self.open) or ({""} if has_clients else set())
        self.close(self.open, refusal.message)

    def _record_end(self, reply: Ended | Aborted, why: str) -> None:
        episode = self.open.pop(reply.episode_id)
        if episode.evaluation is not None and not isinstance(reply, Ended):
            again = (episode.condition, episode.started.parameters)
            episode.evaluation.to_begin.appendleft(again)
        self.num_over += 1
        self.ledger.end(reply.episode_id, reply, why[:_MAX_REASON_CHARS])

    # --- silence ------------------------------------------------------------------------

    def see(self, episode_ids: Iterable[str], now: float, *, is_answered: bool = False) -> None:
        """Notes that episodes are alive: their simulations have sent items, or were just answered.

        A simulation that waits for an answer is not idle.
        """
        for episode_id in episode_ids:
            episode = self.open.get(episode_id)
            if episode is not None:
                if not is_answered and now - episode.last_seen > episode.longest_step_s:
                    episode.longest_step_s = now - episode.last_seen
                episode.last_seen = now

    def expire(self, now: float) -> None:
        """Closes episodes that were silent for longer than servers keep them."""
        idle = [
            episode_id
            for episode_id, episode in self.open.items()
            if now - episode.last_seen > self._spec.episode_timeout_s
        ]
        if not idle:
            return
        logger.warning("%d idle episodes closed as truncated: %s", len(idle), ", ".join(idle[:5]))
        self.close(idle, f"it was idle for more than {self._spec.episode_timeout_s:g} s")
        self.counts.num_expired += len(idle)


def _takes_no_played() -> ProtocolError:
    return ValueMismatch(
        "a gateway takes no steps of clients that act themselves (local inference)"
    )


def _refusal_of(why: ClientError, *, is_start: bool) -> ProtocolError:
    """Returns the refusal of an item whose episode the client has closed on all servers.

    If a server refuses a start since it knows the episode, an earlier gateway was lost just after
    it had passed the same start on. Then the simulation may start another episode.

    Args:
        why: the error that the client raised.
        is_start: whether the item was a start.
    """
    if isinstance(why, RefusedByServer) and not (is_start and why.code == OutOfOrder.code):
        refusal = (UnsoundValue if why.is_unsound else error_for_code(why.code))(
            f"{why}; the episode is closed on every server",
            agent_id=why.agent_id,
            expected=why.expected,
            got=why.got,
        )
        refusal.code = why.code
        return refusal
    if isinstance(why, EpisodeAborted | ServerLost):
        return EpisodeGone(f"{why}; another episode may be started")
    return NotServing(str(why))
