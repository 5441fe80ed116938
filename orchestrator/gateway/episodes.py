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
    ActionRows,
    Actions,
    AnyItem,
    AnyReply,
    Ended,
    EndEpisode,
    PlayedRows,
    PlayedSteps,
    ServerSpec,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.servers.episodes.ledger import Ledger
from muxrl.servers.episodes.reading import Reading
from muxrl.servers.episodes.step_check import SMALL_REWARD, StepCheck

logger = logging.getLogger(__name__)

_REMEMBERED = 10_000
"""Ended episodes, whose ends may be repeated."""
_SILENT_S = 30.0
"""As long as a client's patience: after that a simulation is thought to be lost, unless the steps
of its episode take long."""
_MAX_REASON_CHARS = 500
"""Of why one is over, which is said again where the first answer was lost."""


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
        # Large rewards are read one by one, beside returns.
        self._reading = Reading(spec.agents, spec.state_size, max_abs_reward=SMALL_REWARD)
        self._max_forwarded = needed_items(spec.max_episodes)  # which a server takes in one frame
        self._num_ending = 0
        """Open episodes whose ends the servers are sent in this round."""
        self._num_stepping = 0
        """Training steps that they are sent."""
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
        left = [one for whole in asked for one in whole.unanswered]
        self._received = {episode_id for one in left for episode_id in one.episode_ids}
        beyond: set[str] = set()
        while left:
            left = self._answer_round(left, beyond, now)

    def _answer_round(self, asked: Iterable[Asked], beyond: set[str], now: float) -> list[Asked]:
        """Answers the first items of each episode; returns the others.

        Args:
            asked: in order.
            beyond: episodes whose next step has to wait; those of which it is found are added.
            now: monotonic time.
        """
        forwarded: list[Forwarded] = []
        aborts: list[Asked] = []
        left: list[Asked] = []
        begun: set[str] = set()
        through: set[str] = set()
        """Episodes whose further items are for another round."""
        self._num_ending = self._num_stepping = num_forwarded = 0
        queue = deque(asked)
        while queue:
            one = queue.popleft()
            item, ids = one.item, one.episode_ids
            continues = isinstance(item, StepRows | Step | EndEpisode)
            is_full = num_forwarded and num_forwarded + len(ids) > self._max_forwarded
            if is_full or not through.isdisjoint(ids) or not (continues or begun.isdisjoint(ids)):
                through.update(ids)
                left.append(one)
                continue
            if not beyond.isdisjoint(ids) or self._is_beyond(item):
                beyond.update(ids)
                continue
            if isinstance(item, AbortEpisode):
                aborts.append(one)
                through.update(ids)
                continue
            try:
                if isinstance(item, StepRows):
                    prepared = self._prepare_rows(one, item, now)
                    if prepared is None:
                        one.steps = [Asked(step) for step in self._reading.singles(item)]
                        queue.extendleft(reversed(one.steps))
                else:
                    prepared = self._prepare(one, item, now)
            except ProtocolError as error:
                one.answer = error
                continue
            if prepared is not None:
                forwarded.append(prepared)
                num_forwarded += len(ids)
                (through if continues else begun).update(ids)
        if aborts:
            self._abort(aborts)
        for client in dict.fromkeys(one.client for one in forwarded):
            of_client = [one for one in forwarded if one.client is client]
            self._exchange(client, of_client)
        return left

    def _is_beyond(self, item: AnyItem) -> bool:
        """Whether a step has to wait, since with those that are sent all is played."""
        if self.counts.num_env_steps + self._num_stepping < self.most_env_steps:  # nearly always
            return False
        episode = self._open.get(item.episode_id)
        if not isinstance(item, Step) or episode is None or not episode.is_training:
            return False
        return item.t == episode.t

    # --- what is asked ------------------------------------------------------------------

    def _prepare(
        self, asked: Asked, item: StartEpisode | Step | EndEpisode | PlayedSteps, now: float
    ) -> Forwarded | None:
        """Receives an item; returns what the servers have to be sent, None if it is answered.

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
            raise _takes_no_played()
        episode = self._ledger.find(item.episode_id)
        episode.see(now)
        if isinstance(item, Step):
            return self._step(asked, item, episode)
        return self._end(asked, item, episode)

    def _prepare_rows(self, asked: Asked, item: StepRows, now: float) -> Forwarded | None:
        """Receives steps that are plain, all of them; None: they are to be read one by one.

        Raises:
            MalformedMessage: they are no rows.
            ValueMismatch: the client acted in them.
        """
        if isinstance(item, PlayedRows):
            raise _takes_no_played()
        if not self._reading.check(item) or self.refusal is not None or item.logged_actions:
            return None
        found = [self._open.get(episode_id) for episode_id in item.episode_ids]
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
        num_after = self.counts.num_env_steps + self._num_stepping + num_training
        if num_training and num_after > self.most_env_steps:
            return None
        self._num_stepping += num_training
        for one in episodes:
            one.see(now)
            one.t, one.last_answer = one.t + 1, None
        actions = [kind.empty(len(episodes)) for kind in layout.acted]

        def answered() -> ActionRows:
            for row, one in enumerate(episodes):
                one.last_answer = layout, actions, row
            self._count(num_training, len(layout.agents))
            return ActionRows(actions=actions)

        return Forwarded(asked, episodes, answered, rows=(layout, actions))

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
        return Forwarded(asked, [episode], lambda: episode.started, outbox)

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
            return self._repeat(asked, episode, episode.repeated(item.t))
        joint, table, slot = episode.joint, episode.client.table, episode.joint.slot
        checked = self._check.step(item, episode.agents_done, lambda: joint.returns)
        table.log(
            slot, checked.rewards, item.terminations, item.truncations, checked.final_observations
        )
        table.log_late(slot, checked.late_rewards)
        if episode.evaluation is not None and item.t >= episode.evaluation.max_steps:
            episode.evaluation.num_truncated[episode.condition] += 1
            outbox = Outbox()
            table.end(outbox, slot, checked.observations, is_truncated=True, state=checked.state)
            return Forwarded(asked, [episode], lambda: self._truncated(episode), outbox)
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

        return Forwarded(asked, [episode], answered, step=checked)

    def _count(self, num_steps: int, num_agents: int) -> None:
        """Counts training steps that were answered, in which so many agents act."""
        self.counts.num_env_steps += num_steps
        self.counts.num_agent_steps += num_steps * num_agents

    def _end(self, asked: Asked, item: EndEpisode, episode: OpenEpisode) -> Forwarded:
        if is_repeat(item.episode_id, episode.t, item.t):
            raise OutOfOrder(
                f"episode {item.episode_id} has had t={item.t}, and ends after {episode.t} steps",
                expected=f"t={episode.t}",
                got=f"t={item.t}",
            )
        joint = episode.joint
        checked = self._check.end(item, episode.agents_done, lambda: joint.returns)
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
            asked, [episode], lambda: self._ended(episode, metrics, "it has ended"), outbox
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
            return Forwarded(asked, [episode], lambda: answer, outbox)
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
        steps = [(one.episodes[0].joint.slot, one.step) for one in forwarded if one.step]
        try:
            for one in forwarded:
                if one.rows is not None:
                    slots = [episode.joint.slot for episode in one.episodes]
                    (layout, actions), item = one.rows, one.asked.item
                    assert isinstance(item, StepRows)
                    client.table.step_in_rows(outbox, slots, layout, item, actions)
            if steps:
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
            failures: Mapping[str, ClientError]
            failures = client.exchange(outbox)
        except ServerUnavailable as error:
            failures = {id_: error for one in forwarded for id_ in one.asked.episode_ids}
        except Exception:
            self._close(
                {id_ for one in forwarded for id_ in one.asked.episode_ids},
                "an error in the gateway, see its log",
            )
            raise
        for one in forwarded:
            self._note(one, failures)

    def _note(self, forwarded: Forwarded, failures: Mapping[str, ClientError]) -> None:
        """Answers what was forwarded."""
        asked, episodes = forwarded.asked, forwarded.episodes
        if failures.keys().isdisjoint(asked.episode_ids):
            asked.answer = forwarded.answered()
        elif forwarded.rows is None:
            asked.answer = self._lose(asked, episodes[0], failures[asked.item.episode_id])
        else:
            assert isinstance(asked.item, StepRows)
            (layout, actions), steps = forwarded.rows, self._reading.singles(asked.item)
            asked.steps = [Asked(step) for step in steps]
            for row, (one, step) in enumerate(zip(asked.steps, steps, strict=True)):
                failure = failures.get(step.episode_id)
                if failure is None:
                    episodes[row].last_answer = layout, actions, row
                    one.answer = episodes[row].repeated(step.t)
                    self._count(int(episodes[row].is_training), len(step.observations))
                else:
                    one.answer = self._lose(one, episodes[row], failure)

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
            for episode_id in one.episode_ids:
                episode = self._open.get(episode_id)
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


def _takes_no_played() -> ProtocolError:
    return errors.ValueMismatch("a gateway takes no steps in which a client acted by itself")
