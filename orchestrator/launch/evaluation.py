"""Evaluations of a run: when they are due, in which conditions, and where results go.

They stand at multiples of an interval, and at the end. Simulations that the run has started do not
play meanwhile.

The same episodes are played with all agents as learned, and once more for each server that learns,
with its agents random. In a game of several sides
the return alone says little; the difference says what the learner is worth. Servers with fixed
policies act in every condition.

At the end there are more, see `final_conditions`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.config.parameters import of_evaluations
from muxrl.orchestrator.config.resolve import compares_untrained
from muxrl.orchestrator.config.seeds import evaluation_seed
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import ProcessEnded
from muxrl.orchestrator.measure.sides import find_sides
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.metrics import MetricsWriter, last_rows
from muxrl.orchestrator.records.rows import AgentReturns, EvaluationRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.episodes import Played, ServerAddress, num_evaluation_envs
from muxrl.orchestrator.supervise.evaluation_process import EvaluationProcess
from muxrl.orchestrator.supervise.local import Workers
from muxrl.orchestrator.supervise.process import ProcessReport
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.simulations import patience
from muxrl.orchestrator.supervise.supervision import Supervision
from muxrl.orchestrator.supervise.worker import Caller, first_done, outcome
from muxrl.servers.config import ServerPlan

logger = logging.getLogger(__name__)

_NAME = "evaluation"
_LOOK_S = 0.5
_CLOSE_S = 10.0


class Evaluations(Supervision[ProcessReport]):
    """Evaluates, one evaluation after another.

    Args:
        experiment: resolved.
        servers: where they listen.
        folder: the run's directory.
        metrics: where results go.
        workers: where the process goes.
        on_restart: called when the process is lost and started again, with its name and the prefix
            of the ids of its episodes.
        due_at: env steps of the next one, of a run that is resumed; None: after one interval.
        gateway: returns the process through which external simulations play, which evaluates
            beside the training; None: a process of its own does.
        on_learned: called with each row with all agents as learned.
        on_truncated: called with how many episodes were longer than they may be.
    """

    def __init__(
        self,
        experiment: Experiment,
        servers: Mapping[str, ServerAddress],
        folder: RunDirectory,
        metrics: MetricsWriter,
        workers: Workers,
        on_restart: Callable[[str, str], None],
        due_at: int | None = None,
        gateway: Callable[[], Caller | None] | None = None,
        on_learned: Callable[[EvaluationRow], None] = lambda row: None,
        on_truncated: Callable[[int], None] = lambda num: None,
    ) -> None:
        config = experiment.config
        evaluation, simulation, timeouts = config.evaluation, config.simulation, config.timeouts
        interval = evaluation.interval_env_steps
        most = evaluation.final_num_episodes
        if interval is not None:
            most = max(most, evaluation.num_episodes)
        self._num_envs = num_evaluation_envs(simulation, evaluation, most)
        super().__init__(
            config,
            folder,
            {_NAME: Quota(simulation.restarts, "simulation.restarts")},
            lambda name, report: self.note(report),
            on_restart,
            timeouts.start_s + timeouts.make_env_s * self._num_envs,
        )
        self.latest: EvaluationRow | None = None
        """The newest row with all agents as learned."""
        self._on_learned, self._on_truncated = on_learned, on_truncated
        self._under_way = (0, 0)
        self.bytes_before = 0
        """Length of the file of evaluations before the one under way."""
        self._evaluation = evaluation
        self._first_seed = evaluation_seed(experiment.config)
        self._learning = experiment.learning
        self._compares = compares_untrained(experiment.config)
        self._not_updated: Collection[str] = ()
        self._returns: dict[str | None, AgentReturns] = {}  # of the evaluation under way
        # Value-based policies (QMIX) are greedy in any case, deterministic ones without noise.
        self._should_explore = {
            s: evaluation.should_explore and plan.samples_actions
            for s, plan in self._learning.items()
        }
        self._servers = servers
        self._workers = workers
        self._metrics = metrics
        self._running: list[EvaluationRow] = []  # whose returns are not known yet
        self._call: Future[Any] | None = None  # of the first of these
        self._due_at = interval
        if due_at is not None and interval is not None:  # perhaps of another interval
            self._due_at = -(-due_at // interval) * interval
        self._gateway = gateway
        self._player: Caller | None = None
        """Whose process plays the evaluation under way."""
        self._changed: str = ""
        """The server that has other weights since the condition under way began."""
        self.given_up = ""
        """Why the evaluation at the end is not whole; "" if it is."""
        # Else when it begins: not all simulators run twice at a time.
        if gateway is None and interval is not None:
            self._start(_NAME)

    def take_up(self, file: Path) -> None:
        """Goes on from the newest evaluation of a run that is resumed."""
        rows = last_rows(file, EvaluationRow)
        self.latest = next((row for row in rows if row.replaced is None), None)

    def _start(self, name: str) -> None:
        simulation = self._config.simulation
        prefix = self._on_loss[name] = f"{name}-{uuid.uuid4().hex[:8]}-"
        self._launch(
            name,
            EvaluationProcess,
            simulation,
            self._num_envs,
            self._servers,
            patience(self._timeouts),
            prefix,
            of_evaluations(self._config),
            self._evaluation.max_episode_steps,
        )
        self._play()

    def _again(self, name: str) -> str:
        return "with what it had not played"

    def _who(self, name: str) -> str:
        return f"the {name}"

    @property
    def is_running(self) -> bool:
        """Whether one is under way."""
        return bool(self._running)

    def note(self, report: ProcessReport) -> None:
        """Takes in how far the process is that plays."""
        self._under_way = report.under_way

    @property
    def text(self) -> str:
        """Says what is being evaluated, and how far that is; "" if nothing is."""
        if not self._running:
            return ""
        row = self._running[0]
        when = "the end" if row.is_final else f"{row.env_steps:,} env steps"
        key, num = row.replaced, row.num_episodes or 0
        what = "all as learned" if key is None else f"{key.removesuffix(':untrained')} "
        if key is not None:
            what += "untrained" if key.endswith(":untrained") else "at random"
        if self._gateway is not None:  # all conditions by turns
            what, num = "all conditions", num * len(self._running)
        num_ended, num_steps = self._under_way
        return f"evaluation at {when}, {what}: {num_ended:,} of {num:,} episodes" + (
            f", {num_steps:,} env steps into one" if num_steps else ""
        )

    def is_due(self, env_steps: int) -> bool:
        """Whether its time has come and the last one is over; the end has one of its own."""
        limit, due_at = self._config.stop.env_steps, self.next_at
        has_end = self._evaluation.final_num_episodes > 0
        is_end = limit is not None and env_steps >= limit and has_end
        return due_at is not None and env_steps >= due_at and not self._running and not is_end

    def note_server_restart(self, server_id: str, env_steps: int) -> None:
        """Is told that a server is lost, and goes on with its weights of so many env steps.

        Conditions are compared, so all of an evaluation are played with the same weights.
        """
        running = self._running and self._running[0].env_steps_played != env_steps
        if running and server_id in self._learning:
            self._changed = server_id

    def begin_next(self, env_steps: int, time_s: float) -> None:
        """Begins the one that is due, of the last multiple of the interval; schedules the next."""
        interval = self._evaluation.interval_env_steps
        assert interval is not None
        point = env_steps // interval * interval
        self._due_at = point + interval
        self.begin(env_steps, time_s, point=point)

    @property
    def next_at(self) -> int | None:
        """The env steps of the next one; None: there is none, in a resumed run perhaps any more."""
        return self._due_at if self._evaluation.interval_env_steps is not None else None

    @property
    def due_at(self) -> int | None:
        """When a run that is resumed from here is to evaluate: what is under way, once more."""
        return self._running[0].env_steps if self._running else self._due_at

    def begin(
        self,
        env_steps: int,
        time_s: float,
        *,
        point: int | None = None,
        is_final: bool = False,
        not_updated: Collection[str] = (),
    ) -> None:
        """Begins an evaluation in all conditions.

        Args:
            env_steps: of training so far, for the record.
            time_s: likewise.
            point: the env steps that it stands for, and by which runs are compared; None: those of
                training so far.
            is_final: with the final number of episodes, and all conditions.
            not_updated: servers that have made no update, so that they act untrained as it is, or
                cannot act so any more.
        """
        if self._gateway is None and not self._callers:
            self._start(_NAME)
        config = self._evaluation
        num = config.final_num_episodes if is_final else config.num_episodes
        self.bytes_before = self._metrics.length("evaluation")
        self._not_updated = not_updated
        self._returns = {}
        as_learned = EvaluationRow(
            time_s=time_s,
            env_steps=env_steps if point is None else point,
            env_steps_played=env_steps,
            should_explore=config.should_explore,
            num_episodes=num,
            first_seed=self._first_seed if self._gateway is None else None,
            is_final=is_final,
            replaced=None,
            returns={},
        )
        self._running.append(as_learned)
        self._append(as_learned, map(Condition, self._learning))
        self._play()

    def _append(self, row: EvaluationRow, conditions: Iterable[Condition]) -> None:
        self._running += [replace(row, replaced=c.key, agents=c.agents) for c in conditions]

    def _play(self) -> None:
        """Has the first condition that is not done be played; external simulations, which would
        train between two of them, get all at once."""
        if self._running:
            self._under_way = (0, 0)
            gateway, rows = self._gateway, self._running
            self._player = self._callers[_NAME] if gateway is None else gateway()
            assert self._player is not None, "it listens until the run has ended"
            self._call = self._player.call(
                "evaluate",
                [Condition.of_row(row) for row in (rows[:1] if gateway is None else rows)],
                self._first_seed,
                rows[0].num_episodes,
                self._should_explore,
            )

    def collect(self, wait_s: float = 0.0) -> None:
        """Writes down the conditions that are done, in order; looks after a process that was lost.

        Raises:
            RunFailed: the process was lost once too often.
        """
        if self._gateway is not None and self._gateway() is not self._player:
            self._play()  # it was lost, and is another one since
        while self._running and self._call is not None and self._call.done():
            if isinstance(played := outcome(self._call), Exception):
                if self._gateway is None:
                    self._lose(_NAME, played)
                elif not isinstance(played, ProcessEnded):  # else the run looks after it
                    self._give_up(f"the gateway could not play it: {played}")
                return
            self._write(played)
        self.ask()
        super().collect(wait_s)

    def wait(self, look: Callable[[], object]) -> None:
        """Waits for all conditions and writes them down.

        Args:
            look: looks after all other processes meanwhile.

        Raises:
            RunFailed: the process was lost once too often.
        """
        while self._running:
            what, _, how_far = self.text.partition(": ")
            doing(what, how_far)
            self.rest(_LOOK_S)
            self.collect()
            if self._running:
                look()

    def rest(self, time_s: float) -> float:
        """Waits until the condition under way is played; returns for how long to sleep then."""
        if not self._running or self._call is None:
            return time_s
        first_done([self._call], time_s)
        return 0.0

    def stop(self) -> None:
        """Ends the process, if it is its own."""
        for caller in self._callers.values():
            if not self._running:
                first_done([caller.call("close")], _CLOSE_S)
            caller.kill()

    def _write(self, played: Sequence[Played]) -> None:
        if self._changed:
            self._go_on_without(self._changed)
            return
        num_asked = 1 if self._gateway is None else len(self._running)
        is_final = self._running[0].is_final
        done = self._running[: len(played)]
        self._running = self._running[len(played) :]
        self._returns |= {row.replaced: one.returns for row, one in zip(done, played, strict=True)}
        if len(played) < num_asked:
            self._give_up("no simulation came to play all its episodes, or one was lost in it")
        elif is_final and len(self._returns) == 1 + len(self._learning):
            untrained = self._learning.keys() - self._not_updated if self._compares else ()
            self._append(done[0], final_conditions(self._returns, self._learning, untrained))
        self._play()
        for row, one in zip(done, played, strict=True):
            row = replace(
                row, returns=one.returns, metrics=one.metrics, logged_agents=one.logged_agents
            )
            self._metrics.evaluation(row)
            if one.num_truncated:
                self._on_truncated(one.num_truncated)
            if row.replaced is None:
                self.latest = row
                self._on_learned(row)

    def _go_on_without(self, server_id: str) -> None:
        """Drops a condition that was played with several weights of a server."""
        self._changed = ""
        row = self._running[0]
        lost = f"server {server_id!r} was lost in it, and goes on without what no checkpoint holds"
        if row.replaced is None and not row.is_final:
            logger.warning("the evaluation at %d env steps begins again: %s", row.env_steps, lost)
            self._play()
        else:
            self._give_up(lost)

    def _give_up(self, why: str) -> None:
        """Leaves what is not played yet."""
        row, self._running = self._running[0], []
        if row.is_final:
            self.given_up = f"the evaluation at the end is not whole: {why}"
        else:
            logger.warning("the evaluation at %d env steps is not whole: %s", row.env_steps, why)


def final_conditions(
    returns: Mapping[str | None, AgentReturns],
    learning: Mapping[str, ServerPlan],
    untrained: Collection[str],
) -> Iterator[Condition]:
    """Yields what the evaluation at the end plays besides each server at random, random first.

    - Random agents may be worse than any that act greedily. So each server's agents act untrained,
      too: with the weights that the server began with, by the same rule, among the same others.
    - Agents of one server that play against each other are replaced side by side, since together
      they return the same whatever they do.

    Args:
        returns: of the same evaluation so far: by server at random; None: all as learned.
        learning: the servers that learn.
        untrained: those of them that are compared with their untrained policies.
    """
    sides_of = {
        s: find_sides([returns[s], returns[None]], list(plan.agents))
        for s, plan in learning.items()
    }
    for server_id, sides in sides_of.items():
        for side, agents in sides.items():
            yield Condition(server_id, side, agents)
    for server_id, plan in learning.items():
        if server_id not in untrained:
            continue
        sides = sides_of[server_id]
        if not sides:
            yield Condition(server_id, is_untrained=True)
        # A team's members act with the same weights, so that it has to be on one side.
        elif all(_is_on_one_side(members, sides.values()) for members in plan.groups.values()):
            for side, agents in sides.items():
                yield Condition(server_id, side, agents, is_untrained=True)


def _is_on_one_side(members: Collection[str], sides: Collection[tuple[str, ...]]) -> bool:
    return any(set(members) <= set(agents) for agents in sides)
