"""The open episodes of a gateway: from items of the protocol to exchanges with the servers.

Every item is checked before anything of it is kept, as a server does: order, agents, values. What
only a server can refuse, a team without a member say, closes the episode on all servers, as it does
in the Python client.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from muxrl.client.env_loop import EpisodeResult
from muxrl.client.episode_metrics import EpisodeMetrics
from muxrl.client.episode_parameters import draw
from muxrl.client.errors import ClientError, ServerUnavailable
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox
from muxrl.orchestrator.gateway.metrics import metrics_of
from muxrl.orchestrator.gateway.open_episode import (
    Asked,
    Evaluation,
    Forwarded,
    GatewayCounts,
    OpenEpisode,
)
from muxrl.orchestrator.gateway.refusals import refusal_of
from muxrl.protocol import errors
from muxrl.protocol.episode import is_repeat
from muxrl.protocol.errors import EpisodeGone, OutOfOrder, ProtocolError, TooManyEpisodes
from muxrl.protocol.message_sizes import needed_items
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    AnyItem,
    AnyReply,
    Ended,
    EndEpisode,
    PlayedSteps,
    ServerSpec,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.servers.episodes.ledger import Ledger
from muxrl.servers.episodes.step_check import StepCheck

logger = logging.getLogger(__name__)

_REMEMBERED = 10_000
"""Ended episodes, whose ends may be repeated."""
_SILENT_S = 30.0
"""As long as a client's patience: after that a simulation is thought to be lost, unless the steps
of its episode take long."""
_MAX_REASON_CHARS = 500
"""Of why one is over, which is told again where the first answer was lost."""


class GatewayEpisodes:
    """All episodes of a gateway. For one thread only.

    Args:
        client: of the servers.
        spec: the gateway's own.
        agents_return: see `StepCheck`.
    """

    def __init__(
        self, client: MultiplexingClient, spec: ServerSpec, *, agents_return: bool = False
    ) -> None:
        self.counts = GatewayCounts()
        self.ended: deque[EpisodeResult] = deque(maxlen=_REMEMBERED)
        """The newest training episodes that ended; a thread that takes them pops each."""
        self.num_over = 0
        """Episodes that are over, however they ended, evaluations too."""
        self.unconfirmed: set[str] = set()
        """Open episodes whose simulation does not know yet that all are refused."""
        self.refusal: ProtocolError | None = None
        """Of all episodes, from now on."""
        self.most_env_steps = math.inf
        """Of training; steps beyond are not answered, until it is more or training is over."""
        self.parameters: Mapping[str, Any] = {}
        """Of the training episodes that begin from now on, see `draw`; set from any thread."""
        self.seed = 0
        """With an episode's id, of what is drawn for it."""
        self._evaluation: Evaluation | None = None
        self._trains = True
        self._client = client
        self._spec = spec
        self._check = StepCheck(
            spec.agents, spec.state_size, needs_state=False, agents_return=agents_return
        )
        self._max_forwarded = needed_items(spec.max_episodes)  # which a server takes in one frame
        self._num_ending = 0
        """Open episodes whose ends the servers are told in this round."""
        self._received: set[str] = set()
        """Episodes of which the items that are being answered are."""
        self._open: dict[str, OpenEpisode] = {}
        self._ledger = Ledger("gateway", "", self._open, _REMEMBERED)

    @property
    def num_open(self) -> int:
        """How many are open."""
        return len(self._open)

    @property
    def num_training(self) -> int:
        """How many of them train; from any thread."""
        return sum(one.is_training for one in list(self._open.values()))

    @property
    def under_way(self) -> tuple[int, int]:
        """See `ProcessReport.under_way`; from any thread."""
        played = self._evaluation
        if played is None:
            return 0, 0
        lengths = (one.t for one in list(self._open.values()) if one.evaluation is played)
        return sum(map(len, played.episodes)), max(lengths, default=0)

    def answer(self, asked: Sequence[Asked], now: float) -> None:
        """Answers items of any episodes, those of one episode in order.

        What concerns different episodes goes to the servers together, and so do a start and the
        first step of its episode.

        Args:
            asked: gets the answers, except what is beyond `most_env_steps`, and what follows it in
                its episode: to be asked again.
            now: monotonic time.
        """
        queues: dict[str, deque[Asked]] = {}
        for one in asked:
            if one.answer is None:
                queues.setdefault(one.item.episode_id, deque()).append(one)
        self._received = set(queues)
        while queues:
            self._answer_round(queues, now)

    def _answer_round(self, queues: dict[str, deque[Asked]], now: float) -> None:
        """Answers the first items of each episode, which leave its queue."""
        forwarded: list[Forwarded] = []
        aborts: list[Asked] = []
        self._num_ending = 0
        for episode_id, queue in list(queues.items()):
            has_begun = False
            while queue and len(forwarded) < self._max_forwarded:
                one, item = queue[0], queue[0].item
                continues = isinstance(item, Step | EndEpisode)
                if self._is_beyond(item, forwarded):
                    queue.clear()
                    break
                if has_begun and not continues:
                    break
                queue.popleft()
                if isinstance(item, AbortEpisode):
                    aborts.append(one)
                    break
                assert not isinstance(item, StepRows), "its spec takes none"
                try:
                    prepared = self._prepare(one, item, now)
                except ProtocolError as error:
                    one.answer = error
                    continue
                if prepared is not None:
                    forwarded.append(prepared)
                    has_begun = True
                    if continues:
                        break
            if not queue:
                del queues[episode_id]
        if aborts:
            self._abort(aborts)
        for client in dict.fromkeys(one.episode.client for one in forwarded):
            self._exchange(client, [one for one in forwarded if one.episode.client is client])

    def _is_beyond(self, item: AnyItem, forwarded: Sequence[Forwarded]) -> bool:
        """Whether a step has to wait, since with those that are told all is played."""
        episode = self._open.get(item.episode_id)
        if not isinstance(item, Step) or episode is None or not episode.is_training:
            return False
        if self.counts.num_env_steps + len(forwarded) < self.most_env_steps:  # nearly always
            return False
        steps = (t for t in forwarded if t.episode.is_training and isinstance(t.asked.item, Step))
        num_env_steps = self.counts.num_env_steps + sum(1 for _ in steps)
        return num_env_steps >= self.most_env_steps and item.t == episode.t

    # --- what is asked ------------------------------------------------------------------

    def _prepare(
        self, asked: Asked, item: StartEpisode | Step | EndEpisode | PlayedSteps, now: float
    ) -> Forwarded | None:
        """Receives an item; returns what the servers have to be told, None if it is answered.

        Raises:
            ProtocolError: it is refused, and nothing of it is kept.
        """
        earlier = self._ledger.answer_of(item.episode_id)
        if isinstance(item, EndEpisode) and isinstance(earlier, Ended):
            asked.answer = earlier
            return None
        if self.refusal is not None:
            self.unconfirmed -= {item.episode_id, ""}
            raise self.refusal
        if isinstance(item, StartEpisode):
            return self._start(asked, item, now)
        if isinstance(item, EndEpisode) and earlier is not None:
            asked.answer = earlier
            return None
        if isinstance(item, PlayedSteps):
            raise errors.ValueMismatch("a gateway takes no steps in which a client acted by itself")
        episode = self._ledger.find(item.episode_id)
        episode.longest_step_s = max(episode.longest_step_s, now - episode.last_seen)
        episode.last_seen = now
        if isinstance(item, Step):
            return self._step(asked, item, episode)
        return self._end(asked, item, episode)

    def _start(self, asked: Asked, item: StartEpisode, now: float) -> Forwarded | None:
        episode_id = item.episode_id
        known = self._open.get(episode_id)
        if known is not None and known.t <= 1 and known.started_by == item:
            known.last_seen = now
            return self._repeat(asked, known, known.started)
        self._ledger.check_new(episode_id)
        if len(self._open) - self._num_ending >= self._spec.max_episodes:
            raise TooManyEpisodes(
                f"the gateway holds {len(self._open)} open episodes, as many as the servers behind "
                "it take (limits.max_episodes); end one first"
            )
        if item.untrained:
            raise errors.ValueMismatch("a gateway has no untrained agents; ask their server")
        if self._evaluation is not None and not self._evaluation.to_begin:
            self._give_up_silent(self._evaluation, now)
        mode, client, evaluation, condition = item.mode, self._client, None, 0
        should_explore: bool | Mapping[str, bool] | None = item.should_explore
        if mode == "train" and self._evaluation is not None and self._evaluation.to_begin:
            evaluation = self._evaluation
            condition, parameters = evaluation.to_begin.popleft()
            mode, client = "eval", evaluation.clients[condition]
            should_explore = evaluation.should_explore
        else:
            mode = mode if self._trains else "eval"
            parameters = draw(self.parameters, f"{self.seed}/{episode_id}")
        outbox = Outbox()
        joint = client.table.begin(
            outbox,
            mode=mode,
            should_explore=should_explore,
            seed=item.seed,
            episode_id=episode_id,
        )
        is_training = mode == "train"
        episode = OpenEpisode(
            item, is_training, client, joint, evaluation, condition, parameters,
            self.counts.num_env_steps, now,
        )  # fmt: skip
        self._open[episode_id] = episode
        return Forwarded(asked, episode, lambda: episode.started, outbox)

    def _give_up_silent(self, evaluation: Evaluation, now: float) -> None:
        """Closes the evaluation's episodes whose simulation seems lost, for others to play them."""
        silent = [
            episode_id
            for episode_id, one in self._open.items()
            if one.evaluation is evaluation
            and episode_id not in self._received
            and now - one.last_seen > max(_SILENT_S, 10.0 * one.longest_step_s)
        ]
        if any(self._open[e].num_trained < self.counts.num_env_steps for e in silent):
            evaluation.is_done.set()  # given up: after more training they would meet other weights
            return
        self._close(silent, "it was silent for long, and another simulation plays its evaluation")

    def _step(self, asked: Asked, item: Step, episode: OpenEpisode) -> Forwarded | None:
        if is_repeat(item.episode_id, episode.t, item.t):
            if episode.last_answer is None:
                raise OutOfOrder(f"t={item.t} of episode {item.episode_id} is being answered")
            return self._repeat(asked, episode, episode.last_answer)
        joint, table, slot = episode.joint, episode.client.table, episode.joint.slot
        checked = self._check.step(item, episode.agents_done, joint.returns)
        table.log(
            slot, checked.rewards, item.terminations, item.truncations, checked.final_observations
        )
        table.log_late(slot, checked.late_rewards)
        if episode.evaluation is not None and item.t >= episode.evaluation.max_steps:
            episode.evaluation.num_truncated[episode.condition] += 1
            outbox = Outbox()
            table.end(outbox, slot, checked.observations, is_truncated=True, state=checked.state)
            return Forwarded(asked, episode, lambda: self._truncated(episode), outbox)
        if episode.evaluation is not None:
            logged = episode.evaluation.logged_agents[episode.condition]
            logged.update(checked.logged_actions)
        episode.agents_done |= checked.terminated | checked.truncated
        episode.agents_done -= checked.observations.keys()
        episode.t += 1
        episode.last_answer = None

        def answered() -> Actions:
            chosen = table.actions[slot]
            actions = {agent_id: chosen[agent_id] for agent_id in item.observations}
            episode.last_answer = Actions(item.episode_id, item.t, actions)
            if episode.is_training:
                self.counts.num_env_steps += 1
                self.counts.num_agent_steps += len(actions)
            return episode.last_answer

        return Forwarded(asked, episode, answered, step=checked)

    def _end(self, asked: Asked, item: EndEpisode, episode: OpenEpisode) -> Forwarded:
        if is_repeat(item.episode_id, episode.t, item.t):
            raise OutOfOrder(
                f"episode {item.episode_id} has had t={item.t}, and ends after {episode.t} steps",
                expected=f"t={episode.t}",
                got=f"t={item.t}",
            )
        joint = episode.joint
        checked = self._check.end(item, episode.agents_done, joint.returns)
        metrics = metrics_of(item, self._spec.agents)
        table, slot, outbox = episode.client.table, joint.slot, Outbox()
        table.log(slot, checked.rewards, item.terminations, item.truncations)
        table.log_late(slot, checked.late_rewards)
        table.end(
            outbox,
            slot,
            checked.final_observations,
            is_truncated=item.is_truncated,
            state=checked.state,
        )
        self._num_ending += 1

        return Forwarded(
            asked, episode, lambda: self._ended(episode, metrics, "it has ended"), outbox
        )

    def _ended(self, episode: OpenEpisode, metrics: EpisodeMetrics, why: str) -> Ended:
        """Notes that the servers know of an episode's end."""
        joint = episode.joint
        ended = Ended(joint.episode_id, episode.t, joint.returns)
        self._record_end(joint.episode_id, ended, why)
        played = EpisodeResult.of(joint, episode.t, None, metrics, episode.parameters)
        if episode.evaluation is not None:
            episode.evaluation.add(episode.condition, played)
        elif episode.is_training:
            self.ended.append(played)
            self.counts.add_episode(ended.returns)
        return ended

    def _truncated(self, episode: OpenEpisode) -> ProtocolError:
        why = f"it is an evaluation episode, and has had its {episode.t:,} env steps"
        self._ended(episode, {}, f"{why} (evaluation.max_episode_steps); begin another one")
        return self._ledger.gone(episode.joint.episode_id)

    def _repeat(self, asked: Asked, episode: OpenEpisode, answer: AnyReply) -> Forwarded | None:
        """Answers what was answered before, and has servers that were told nothing for long hear
        of the episode, which would expire there."""
        outbox = Outbox()
        if episode.client.table.keep_alive(outbox, episode.joint.slot, time.monotonic()):
            return Forwarded(asked, episode, lambda: answer, outbox)
        asked.answer = answer
        return None

    def _abort(self, aborts: Sequence[Asked]) -> None:
        for one in aborts:
            episode_id = one.item.episode_id
            one.answer = self._ledger.answer_of(episode_id) or Aborted(episode_id)
        reasons = [one.item.reason for one in aborts if isinstance(one.item, AbortEpisode)]
        ids = [one.item.episode_id for one in aborts if one.item.episode_id in self._open]
        why = "; ".join(dict.fromkeys(reasons))
        self._close(ids, f"its simulation aborted it: {why}".rstrip(": "))

    # --- what the servers say -----------------------------------------------------------

    def _exchange(self, client: MultiplexingClient, forwarded: list[Forwarded]) -> None:
        outbox = Outbox()
        for one in forwarded:
            outbox.merge(one.outbox)
        steps = [(one.episode.joint.slot, one.step) for one in forwarded if one.step is not None]
        try:
            client.table.step(
                outbox,
                [slot for slot, _ in steps],
                [step.observations for _, step in steps],
                [step.state for _, step in steps],
                {
                    slot: (step.logged_actions, step.logged_log_probs)
                    for slot, step in steps
                    if step.logged_actions
                },
            )
            failures = client.exchange(outbox)
        except ServerUnavailable as error:
            for one in forwarded:
                one.asked.answer = self._lose(one.asked, one.episode, error)
            return
        except Exception:
            self._close(
                {one.episode.joint.episode_id for one in forwarded},
                "an error in the gateway, see its log",
            )
            raise
        for one in forwarded:
            failure = failures.get(one.asked.item.episode_id)
            if failure is None:
                one.asked.answer = one.answered()
            else:
                one.asked.answer = self._lose(one.asked, one.episode, failure)

    def _lose(self, asked: Asked, episode: OpenEpisode, why: ClientError) -> ProtocolError:
        """Buries an episode that the client has closed on all servers; returns the refusal."""
        refusal = refusal_of(why, is_start=isinstance(asked.item, StartEpisode))
        episode_id = episode.joint.episode_id
        if self._open.get(episode_id) is episode:  # once, though several of its items may fail
            self._record_end(episode_id, Aborted(episode_id), refusal.message)
            self.counts.num_lost += episode.is_training and isinstance(refusal, EpisodeGone)
        return refusal

    def _record_end(self, episode_id: str, reply: Ended | Aborted, why: str) -> None:
        episode = self._open.pop(episode_id)
        if episode.evaluation is not None and not isinstance(reply, Ended):
            again = (episode.condition, episode.parameters)
            episode.evaluation.to_begin.appendleft(again)
        self.num_over += 1
        self._ledger.end(episode_id, reply, why[:_MAX_REASON_CHARS])

    # --- silence ------------------------------------------------------------------------

    def touch(self, asked: Iterable[Asked], now: float) -> None:
        """Notes that items have just been answered: who waited for that was not idle."""
        for one in asked:
            episode = self._open.get(one.item.episode_id)
            if episode is not None:
                episode.last_seen = now

    def expire(self, now: float) -> None:
        """Closes episodes that were silent for longer than the servers keep them."""
        idle = [
            episode_id
            for episode_id, episode in self._open.items()
            if now - episode.last_seen > self._spec.episode_timeout_s
        ]
        if not idle:
            return
        logger.warning("%d idle episodes closed as truncated: %s", len(idle), ", ".join(idle[:5]))
        self._close(idle, f"it was idle for more than {self._spec.episode_timeout_s:g} s")
        self.counts.num_expired += len(idle)

    # --- what the run wants -------------------------------------------------------------

    def evaluate(self, evaluation: Evaluation | None) -> None:
        """Has the next training episodes be evaluations; None: no more of them.

        What is open of another one is closed: its clients are used no more. So is what began once
        training was over, and nobody asked for: it might never end.
        """
        self._evaluation = evaluation
        open_ = self._open.items()
        others = [e for e, one in open_ if one.evaluation not in (None, evaluation)]
        others += [e for e, one in open_ if evaluation is not None and one.is_idle]
        self._close(others, "an evaluation begins" if evaluation else "the evaluation is over")

    @property
    def is_used_up(self) -> bool:
        """Whether there is nothing more to train with."""
        return not self._trains or self.counts.num_env_steps >= self.most_env_steps

    def end_training(self) -> None:
        """Closes training episodes as truncated.

        All that begin from now on are evaluations, those that nobody asked for, too.
        """
        self._trains = False
        self._close([e for e, one in self._open.items() if one.is_training], "training is over")

    def refuse_all(self, refusal: ProtocolError, *, has_clients: bool) -> None:
        """Closes all episodes, and refuses all from now on."""
        self.refusal = refusal
        self.unconfirmed = set(self._open) or ({""} if has_clients else set())
        self._close(self._open, refusal.message)

    def give_up(self) -> None:
        """Ends the patience with lost servers; from any thread."""
        evaluation = self._evaluation
        for client in (self._client, *(evaluation.clients if evaluation else ())):
            client.give_up()

    def _close(self, episode_ids: Iterable[str], reason: str) -> None:
        """Closes episodes early, with one message a server: a lost one is waited for once."""
        by_client: dict[MultiplexingClient, list[str]] = {}
        for episode_id in episode_ids:
            by_client.setdefault(self._open[episode_id].client, []).append(episode_id)
        for client, ids in by_client.items():
            client.abort_episode(ids, reason)
            for episode_id in ids:
                self._record_end(episode_id, Aborted(episode_id), reason)
