"""Evaluations of a run: when they are due, in which conditions, and where results go.

A run is evaluated at multiples of an interval of env steps, and at the end. Simulations that the
run has started do not play meanwhile.

The same episodes are played with all agents as learned, and again for each server that learns, with
its agents random. In a game of several sides the return alone says little; the difference shows
what the learner is worth. Servers with fixed policies act in every condition.

The evaluation at the end has more conditions, see `final_conditions`.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.config.checks import compares_untrained, num_evaluation_envs
from muxrl.orchestrator.config.seeds import evaluation_seed
from muxrl.orchestrator.errors import Outdated, ProcessEnded
from muxrl.orchestrator.launch.run_records import RunRecords
from muxrl.orchestrator.measure.sides import find_sides
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.metrics import last_rows
from muxrl.orchestrator.records.rows import AgentReturns, EvaluationRow
from muxrl.orchestrator.supervise.episodes import (
    Played,
    ServerAddress,
    truncated_text,
)
from muxrl.orchestrator.supervise.evaluation_process import EvaluationProcess
from muxrl.orchestrator.supervise.life import Life, Supervisor
from muxrl.orchestrator.supervise.process import ProcessReport
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.worker import Caller
from muxrl.servers.config import ServerPlan

logger = logging.getLogger(__name__)

_NAME = "evaluation"
_CLOSE_S = 10.0


class _Evaluator(Life[ProcessReport]):
    """The process that plays evaluations, if simulations are not external.

    Args:
        supervisor: the run's supervisor.
        num_envs: how many environments it makes.
        on_report: called with each report.
    """

    _prefix = ""
    servers: Mapping[str, ServerAddress]
    """By server id: the addresses; set before the process begins."""

    def __init__(
        self,
        supervisor: Supervisor,
        num_envs: int,
        on_report: Callable[[ProcessReport], None],
    ) -> None:
        self._config = supervisor.config
        timeouts = self._config.timeouts
        super().__init__(
            _NAME,
            supervisor,
            Quota(self._config.simulation.restarts, "simulation.restarts"),
            timeouts.start_s + timeouts.make_env_s * num_envs,
        )
        self._num_envs, self._on_report = num_envs, on_report

    @property
    def who(self) -> str:
        """See `Life`."""
        return f"the {self.name}"

    def _launch(self) -> Caller:
        self._prefix = f"{self.name}-{uuid.uuid4().hex[:8]}-"
        return self._start_process(EvaluationProcess, self._config, self._num_envs, self._prefix)

    async def _work(self) -> None:
        await self.call("connect", self.servers)
        await super()._work()

    def _receive(self, report: ProcessReport) -> None:
        self._on_report(report)

    def _again(self) -> str:
        self._supervisor.on_restart(self.name, self._prefix)
        return "for the rest of its episodes"

    async def stop(self, *, is_idle: bool) -> None:
        """Ends the process.

        Args:
            is_idle: whether it plays nothing, and so can close its environments first.
        """
        self.end()
        if self.caller is not None and is_idle:
            await asyncio.wait([self.call("close")], timeout=_CLOSE_S)
        self.kill()


class Evaluations:
    """Evaluates, one evaluation after another.

    Args:
        experiment: the resolved experiment.
        supervisor: of the run.
        records: the records of the run, which get the results.
        due_at: for a resumed run, the env steps of the next evaluation; None: after one interval.
        gateway: the process through which external simulations play, and which evaluates during
            training; None: a separate process evaluates.
        on_learned: called with each row in which all agents act as learned.
    """

    def __init__(
        self,
        experiment: Experiment,
        supervisor: Supervisor,
        records: RunRecords,
        due_at: int | None = None,
        gateway: Life[Any] | None = None,
        on_learned: Callable[[EvaluationRow], None] = lambda row: None,
    ) -> None:
        config = experiment.config
        evaluation = config.evaluation
        interval = evaluation.interval_env_steps
        most = evaluation.final_num_episodes
        if interval is not None:
            most = max(most, evaluation.num_episodes)
        self.latest: EvaluationRow | None = None
        """The newest row in which all agents act as learned."""
        self.bytes_before = 0
        """Bytes of the file of evaluations before the evaluation under way."""
        self.given_up = ""
        """Why the evaluation at the end is not whole; "" if it is."""
        self._on_learned, self._records = on_learned, records
        self._config, self._evaluation = config, evaluation
        self._first_seed = evaluation_seed(config)
        self._learning = experiment.learning
        self._compares = compares_untrained(config)
        # Value-based policies (QMIX) are greedy in any case, deterministic ones without noise.
        self._should_explore = {
            s: evaluation.should_explore and plan.samples_actions
            for s, plan in self._learning.items()
        }
        num_envs = num_evaluation_envs(config, most)
        self._evaluator = _Evaluator(supervisor, num_envs, self.note)
        self._gateway = gateway
        self._player = self._evaluator if gateway is None else gateway
        self._due_at = interval
        if due_at is not None and interval is not None:  # the interval may have changed
            self._due_at = -(-due_at // interval) * interval
        self._task: asyncio.Task[None] | None = None
        """The evaluation under way, or the last one."""
        self._waiting: list[EvaluationRow] = []
        """Rows of the conditions that are not played yet, without results."""
        self._num_played = (0, 0)
        self._changed = ""
        """A server whose weights have changed since the condition under way began; "": none."""
        # Otherwise it begins with the first evaluation: some simulators cannot run twice.
        self._begins_at_once = gateway is None and interval is not None

    def prepare(self) -> None:
        """Starts the process, if it is needed soon: it makes environments while servers start."""
        if self._begins_at_once:
            self._evaluator.prepare()

    def start(self, servers: Mapping[str, ServerAddress]) -> None:
        """Sets where servers listen; must come before the first evaluation."""
        self._evaluator.servers = servers
        if self._begins_at_once:
            self._evaluator.begin()

    def resume(self, file: Path) -> None:
        """Reads the newest evaluation of a resumed run from its file."""
        rows = last_rows(file, EvaluationRow)
        self.latest = next((row for row in rows if row.replaced is None), None)

    # --- when, and how far --------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether an evaluation is under way."""
        return bool(self._waiting)

    def is_due(self, env_steps: int) -> bool:
        """Whether the next evaluation is due, and none is under way; the end has a separate one."""
        limit, due_at = self._config.stop.env_steps, self.next_at
        has_end = self._evaluation.final_num_episodes > 0
        is_end = limit is not None and env_steps >= limit and has_end
        return due_at is not None and env_steps >= due_at and not self.is_running and not is_end

    @property
    def next_at(self) -> int | None:
        """Env steps of the next evaluation; None: the config, which may have changed, has none."""
        return self._due_at if self._evaluation.interval_env_steps is not None else None

    @property
    def due_at(self) -> int | None:
        """When a run that is resumed from here evaluates: an evaluation under way is repeated."""
        return self._waiting[0].env_steps if self._waiting else self._due_at

    def note(self, report: ProcessReport) -> None:
        """Notes how far the evaluation under way is."""
        self._num_played = report.under_way

    @property
    def text(self) -> str:
        """What is being evaluated, and how far it is; "" if nothing is."""
        if not self._waiting:
            return ""
        row = self._waiting[0]
        when = "the end" if row.is_final else f"{row.env_steps:,} env steps"
        what, num = Condition.of_row(row).text, row.num_episodes or 0
        if self._gateway is not None:  # a gateway plays all conditions by turns
            what, num = "all conditions", num * len(self._waiting)
        num_ended, num_steps = self._num_played
        return f"evaluation at {when}, {what}: {num_ended:,} of {num:,} episodes" + (
            f", {num_steps:,} env steps into one" if num_steps else ""
        )

    def note_server_restart(self, server_id: str, env_steps: int) -> None:
        """Notes that a server is lost and goes back to its weights of `env_steps` env steps.

        Conditions are compared, so all conditions of an evaluation need the same weights.
        """
        is_other = self._waiting and self._waiting[0].env_steps_played != env_steps
        if is_other and server_id in self._learning:
            self._changed = server_id

    def move(self, server_id: str, address: str) -> None:
        """Tells the process a server's new address; see `Simulations.move`."""
        if self._evaluator.has_reported:
            self._evaluator.send("move", server_id, address)
        elif self._evaluator.is_up.is_set():
            why = f"looked for server {server_id!r} at its former address"
            self._evaluator.lose_soon(Outdated(why))

    async def report(self, wait_s: float) -> None:
        """Receives the report of the process, if it comes in time.

        Raises:
            CannotRecord: results of the evaluation could not be written.
        """
        if self._task is not None and self._task.done():
            self._task.result()
        await self._evaluator.report(wait_s)

    # --- one evaluation -----------------------------------------------------------------

    def begin_next(self, env_steps: int, time_s: float) -> None:
        """Begins the evaluation of the last multiple of the interval; schedules the next one."""
        interval = self._evaluation.interval_env_steps
        assert interval is not None
        point = env_steps // interval * interval
        self._due_at = point + interval
        self.begin(env_steps, time_s, point=point)

    def begin(
        self,
        env_steps: int,
        time_s: float,
        *,
        point: int | None = None,
        is_final: bool = False,
        not_updated: Collection[str] = (),
    ) -> None:
        """Begins an evaluation in all conditions; see `wait`.

        Args:
            env_steps: env steps of training so far, for the record.
            time_s: seconds of training so far, for the record.
            point: the env steps under which the evaluation is recorded, by which runs are compared;
                None: `env_steps`.
            is_final: whether it has the final number of episodes, and all conditions.
            not_updated: servers that are not compared with their untrained policies: they have
                made no update, or cannot act untrained any more.
        """
        if self._gateway is None and self._evaluator.caller is None:
            self._evaluator.begin()
        config = self._evaluation
        self.bytes_before = self._records.metrics.length("evaluation")
        as_learned = EvaluationRow(
            time_s=time_s,
            env_steps=env_steps if point is None else point,
            env_steps_played=env_steps,
            should_explore=config.should_explore,
            num_episodes=config.final_num_episodes if is_final else config.num_episodes,
            first_seed=self._first_seed if self._gateway is None else None,
            is_final=is_final,
            replaced=None,
            returns={},
        )
        others = [_replacing(as_learned, one) for one in first_conditions(self._learning)]
        self._waiting, self._changed = [as_learned, *others], ""
        untrained = self._learning.keys() - not_updated if self._compares else ()
        self._task = asyncio.create_task(self._evaluate(untrained))

    async def wait(self) -> None:
        """Waits until the evaluation under way, if any, is over."""
        if self._task is not None:
            await self._task

    async def rest(self, time_s: float) -> None:
        """Waits until the evaluation under way is over, but at most `time_s`."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=time_s)

    async def _evaluate(self, untrained: Collection[str]) -> None:
        returns: dict[str | None, AgentReturns] = {}
        while self._waiting:
            self._num_played = (0, 0)
            # External simulations get all conditions at once: between two, they would train.
            asked = self._waiting[:1] if self._gateway is None else self._waiting[:]
            try:
                played = await self._play(asked)
            except Exception as problem:  # noqa: BLE001  # a server may be lost for too long, say
                self._give_up(f"the gateway could not play its episodes: {problem}")
                return
            first, server_id = asked[0], self._changed
            if server_id:  # a condition was played with several weights of a server
                self._changed = ""
                reason = (
                    f"server {server_id!r} was lost meanwhile and has restarted with older weights"
                )
                if first.replaced is not None or first.is_final:
                    self._give_up(reason)
                    return
                at = first.env_steps
                logger.warning("the evaluation at %d env steps begins again: %s", at, reason)
                continue
            for row, one in zip(asked, played, strict=False):
                self._waiting.remove(row)
                returns[row.replaced] = one.returns
                self._write(row, one)
            if len(played) < len(asked):
                self._give_up("no simulation played all of its episodes, or one was lost meanwhile")
            elif first.is_final and len(returns) == 1 + len(first_conditions(self._learning)):
                others = final_conditions(returns, self._learning, untrained)
                self._waiting += [_replacing(first, condition) for condition in others]

    async def _play(self, rows: Sequence[EvaluationRow]) -> Sequence[Played]:
        """Lets the process play conditions; if it is lost, the next process plays them again.

        Raises:
            Exception: the gateway has raised it, and lives.
        """
        while True:
            await self._player.is_up.wait()
            caller = self._player.caller
            try:
                played: Sequence[Played] = await self._player.call(
                    "evaluate",
                    [Condition.of_row(row) for row in rows],
                    self._first_seed,
                    rows[0].num_episodes,
                    self._should_explore,
                )
            except Exception as error:
                if self._gateway is not None and not isinstance(error, ProcessEnded):
                    raise
                await self._player.lose(error, caller)
            else:
                return played

    def _write(self, row: EvaluationRow, played: Played) -> None:
        row = replace(
            row, returns=played.returns, metrics=played.metrics, logged_agents=played.logged_agents
        )
        self._records.metrics.evaluation(row)
        if num := played.num_truncated:
            text = truncated_text(self._evaluation.max_episode_steps)
            self._records.warnings.add("evaluation episodes truncated", text, num=num)
        if row.replaced is None:
            self.latest = row
            self._on_learned(row)

    def _give_up(self, why: str) -> None:
        """Drops the conditions that are not played yet, and notes why."""
        row, self._waiting = self._waiting[0], []
        if row.is_final:
            self.given_up = f"the evaluation at the end is incomplete: {why}"
        else:
            logger.warning("the evaluation at %d env steps is incomplete: %s", row.env_steps, why)

    async def stop(self) -> None:
        """Ends the process, and the evaluation under way."""
        is_idle = not self.is_running
        if self._task is not None:
            self._task.cancel()
        await self._evaluator.stop(is_idle=is_idle)


def _replacing(row: EvaluationRow, condition: Condition) -> EvaluationRow:
    return replace(row, replaced=condition.key, agents=condition.agents)


def first_conditions(learning: Mapping[str, ServerPlan]) -> list[Condition]:
    """Returns the conditions of each evaluation besides all as learned: each server that learns has
    its agents random, and then each of its shadows in its place."""
    found = [Condition(plan.shadow or server_id) for server_id, plan in learning.items()]
    found += [Condition(p.shadow, shadow=s) for s, p in learning.items() if p.shadow]
    return list(dict.fromkeys(found))


def final_conditions(
    returns: Mapping[str | None, AgentReturns],
    learning: Mapping[str, ServerPlan],
    untrained: Collection[str],
) -> Iterator[Condition]:
    """Yields the conditions that only the evaluation at the end has, random agents first.

    - Random agents may be worse than any agents that act greedily. So each server's agents also act
      untrained: with the weights with which the server began, by the same rule, among the same
      others.
    - Agents of one server that play against each other are replaced one side at a time: together
      they return the same whatever they do.

    Args:
        returns: returns of the same evaluation so far, by the server at random; None: all as
            learned.
        learning: the servers that learn.
        untrained: the learning servers that are compared with their untrained policies.
    """
    sides_of = {
        s: find_sides([returns[s], returns[None]], list(plan.agents))
        for s, plan in learning.items()
        if not plan.shadow
    }
    for server_id, sides in sides_of.items():
        for side, agents in sides.items():
            yield Condition(server_id, side, agents)
    for server_id, plan in learning.items():
        if server_id not in untrained:
            continue
        if plan.shadow:
            yield Condition(plan.shadow, is_untrained=True, shadow=server_id)
            continue
        sides = sides_of[server_id]
        if not sides:
            yield Condition(server_id, is_untrained=True)
        # Members of a team act with the same weights, so all of them have to be on one side.
        elif all(_is_on_one_side(members, sides.values()) for members in plan.groups.values()):
            for side, agents in sides.items():
                yield Condition(server_id, side, agents, is_untrained=True)


def _is_on_one_side(members: Collection[str], sides: Collection[tuple[str, ...]]) -> bool:
    return any(set(members) <= set(agents) for agents in sides)
