"""What a run uses the next episodes for: training up to a limit, an evaluation, or nothing.

Simulations start training episodes in any case, and need not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muxrl.client.episode_parameters import draw
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.orchestrator.gateway.episodes import Forwarded, GatewayEpisodes
from muxrl.orchestrator.gateway.open_episode import Evaluation, OpenEpisode
from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import AnyReply, Started, StartEpisode

_SILENT_S = 30.0
"""After so long a silence, a client's patience, a simulation seems lost, unless its steps take
long."""


class Wanted:
    """Decides what the next episodes are used for.

    Args:
        client: the client of the servers.
        episodes: the gateway's episodes.
    """

    def __init__(self, client: MultiplexingClient, episodes: GatewayEpisodes) -> None:
        self.parameters: Mapping[str, Any] = {}
        """Parameters of the next training episodes, see `draw`; may be set from any thread."""
        self.seed = 0
        """Seeds the draws of an episode's parameters, together with its id."""
        self._client, self._episodes = client, episodes
        self._trains = True
        self._evaluation: Evaluation | None = None

    def start(self, item: StartEpisode, now: float) -> Forwarded | AnyReply:
        """Receives a start, and decides what the episode is used for.

        Args:
            item: the start.
            now: monotonic time.

        Raises:
            ProtocolError: the start is refused.
        """
        episodes, evaluation = self._episodes, self._evaluation
        episodes.check_refusal(item.episode_id)
        known = episodes.open.get(item.episode_id)
        if known is not None and known.t <= 1 and known.started_by == item:
            return episodes.repeat(known, known.started)
        episodes.check_new(item.episode_id)
        if item.untrained:
            raise ValueMismatch("a gateway has no untrained agents; ask their server itself")
        if evaluation is not None and not evaluation.to_begin:
            self._give_up_silent(evaluation, now)
        client, condition = self._client, 0
        should_explore: bool | Mapping[str, bool] | None = item.should_explore
        if item.mode == "train" and evaluation is not None and evaluation.to_begin:
            condition, parameters = evaluation.to_begin.popleft()
            client, should_explore = evaluation.clients[condition], evaluation.should_explore
        else:
            evaluation = None
            parameters = draw(self.parameters, f"{self.seed}/{item.episode_id}")
        is_training = item.mode == "train" and evaluation is None and self._trains
        started = Started(item.episode_id, parameters, item.mode == "train" and not is_training)
        joint = client.table.begin(
            episodes.outboxes[client],
            mode="train" if is_training else "eval",
            should_explore=should_explore,
            seed=item.seed,
            episode_id=item.episode_id,
        )
        episode = episodes.open[item.episode_id] = OpenEpisode(
            item, started, is_training, client, joint, evaluation, condition,
            episodes.counts.num_env_steps, now,
        )  # fmt: skip
        return Forwarded([episode], lambda: started)

    def _give_up_silent(self, evaluation: Evaluation, now: float) -> None:
        """Closes the evaluation's episodes whose simulation seems lost, so that others play them.

        If there was training since they began, the evaluation is given up instead.
        """
        silent = {
            episode_id: one
            for episode_id, one in self._episodes.open.items()
            if one.evaluation is evaluation
            and now - one.last_seen > max(_SILENT_S, 10.0 * one.longest_step_s)
        }
        num_env_steps = self._episodes.counts.num_env_steps
        if any(one.num_trained < num_env_steps for one in silent.values()):
            evaluation.is_done.set()  # what is played again would meet other weights
            return
        why = "it was silent for too long, and another simulation plays this evaluation episode"
        self._episodes.close(silent, why)

    # --- calls of the run ---------------------------------------------------------------

    def evaluate(self, evaluation: Evaluation | None) -> None:
        """Uses the next training episodes for an evaluation; None: for none any more.

        Open episodes of another evaluation are closed, since its clients are not used any more. So
        are episodes that began after training, for no evaluation: they might never end.
        """
        self._evaluation = evaluation
        others = [
            episode_id
            for episode_id, one in self._episodes.open.items()
            if one.started.is_evaluation and one.evaluation is not evaluation
        ]
        why = "an evaluation begins" if evaluation else "the evaluation is over"
        self._episodes.close(others, why)

    @property
    def under_way(self) -> tuple[int, int]:
        """See `ProcessReport.under_way`; may be read from any thread."""
        played = self._evaluation
        if played is None:
            return 0, 0
        lengths = (one.t for one in list(self._episodes.open.values()) if one.evaluation is played)
        return sum(map(len, played.episodes)), max(lengths, default=0)

    @property
    def is_used_up(self) -> bool:
        """Whether no more training steps may be played."""
        return (
            not self._trains or self._episodes.counts.num_env_steps >= self._episodes.most_env_steps
        )

    def end_training(self) -> None:
        """Closes training episodes as truncated.

        All episodes that begin from now on are evaluations, even if none is wanted.
        """
        self._trains = False
        training = [e for e, one in self._episodes.open.items() if one.is_training]
        self._episodes.close(training, "training is over")

    def give_up(self) -> None:
        """Stops waiting for lost servers; may be called from any thread."""
        evaluation = self._evaluation
        for client in (self._client, *(evaluation.clients if evaluation else ())):
            client.give_up()
