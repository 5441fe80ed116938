"""One policy server, whose policies act in remote simulations and usually learn from them.

It starts two threads: the event loop (network, recording, inference) and the learner (`Trainer`),
which share the `Feed` and the weights. A server with fixed policies has no learner.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.message_sizes import needed_bytes
from muxrl.protocol.messages import AgentInfo, ServerSpec, Status
from muxrl.servers.app import PolicyServerApp, expire_episodes
from muxrl.servers.checkpoints.checkpoint import find_newest
from muxrl.servers.checkpoints.folder_lock import held
from muxrl.servers.config import ServerPlan
from muxrl.servers.end_with_main import end_with_main
from muxrl.servers.fixed_policies import FixedAlgorithm
from muxrl.servers.lookup import find
from muxrl.servers.network.listening import CannotListen, Network
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.entry import TrainerEntry
from muxrl.servers.trainers.policies import TrainerPolicies
from muxrl.servers.training.policies import Policies, ServerProblem, StillLearning
from muxrl.servers.training.thread import limit_torch_threads

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 30.0


class PolicyServer:
    """Serves the policies of one algorithm.

    Args:
        plan: the server, fully resolved.
        on_shutdown: see `Front`.
        network: an open network to use, which `stop` leaves open; None: the server opens one.
        trainer: the trainer of its policies; None: as the plan's algorithm says.

    Raises:
        ServerProblem: the port is taken, or the algorithm cannot be built.
    """

    def __init__(
        self,
        plan: ServerPlan,
        *,
        on_shutdown: Callable[[], None] | None = None,
        network: Network | None = None,
        trainer: TrainerEntry | None = None,
    ) -> None:
        self.plan = plan
        self._problem = ""
        """Why training has failed, so that its weights are not worth saving; "": it has not."""
        self._is_stopping = False
        self._is_serving = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # First, so that a port in use is found before the algorithm is built, which takes seconds.
        self._owns_network = network is None
        try:
            self._network = network or Network(f"server {plan.server_id!r}", plan.host, plan.port)
        except CannotListen as error:
            raise ServerProblem(str(error)) from None
        self.address = self._network.address
        try:
            self.policies = make_policies(plan, self._fail, trainer)
        except BaseException:
            self._close_network(0.0)
            raise
        self._app = PolicyServerApp(
            self.spec(),
            self.address,
            plan.token,
            policies=self.policies,
            status=self.status,
            on_shutdown=on_shutdown,
        )
        self._app.num_restarts = plan.num_restarts

    # --- start and stop -----------------------------------------------------------------

    def start(self) -> str:
        """Begins to serve and to learn; returns the bound "host:port".

        Raises:
            ServerProblem: the network did not come up.
        """
        end_with_main(self)
        limits = self.plan.limits
        try:
            self._network.start(
                self._app,
                self._serve,
                max_connections=limits.max_connections,
                keep_alive_s=limits.episode_timeout_s,
            )
        except CannotListen as error:
            raise ServerProblem(str(error)) from None
        self._is_serving = True
        self.policies.start()
        logger.info(
            "server %r serves %s on %s", self.plan.server_id, self.plan.algorithm, self.address
        )
        return self.address

    def stop(self, checkpoint: Path | None = None) -> bool:
        """Ends the learner, then the network; returns whether both ended in time.

        Args:
            checkpoint: folder for a last checkpoint, which is left out if the current update does
                not end in time; None: no checkpoint.

        Raises:
            OSError: the checkpoint cannot be written; the server has stopped nevertheless.
        """
        if self._is_stopping:
            return True
        self._is_stopping = True
        self.policies.store.is_accepting = False
        has_finished = False
        try:
            has_finished = self.policies.finish(_STOP_TIMEOUT_S)
            if checkpoint is not None and has_finished and not self._problem:
                self.policies.save(checkpoint)
        finally:  # so that a full disk or a second Ctrl-C leaves no thread behind
            has_closed = self._close_network(_STOP_TIMEOUT_S)
        return has_finished and has_closed

    def _close_network(self, timeout_s: float) -> bool:
        return not self._owns_network or self._network.stop(timeout_s)

    def finish_training(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Ends learning; the server continues acting with its last weights, for evaluation.

        Raises:
            StillLearning: the current update takes longer than `timeout_s`.
        """
        if not self.policies.finish(timeout_s):
            raise StillLearning(
                f"server {self.plan.server_id!r} is still in an update after {timeout_s:g} s"
            )

    def abort_episodes(self, prefix: str) -> None:
        """Soon closes the open episodes whose ids have a prefix, as truncated; from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._abort_episodes, prefix)

    def set_paused(self, is_paused: bool) -> None:
        """See `EpisodeStore.is_paused`."""
        self.policies.store.is_paused = is_paused

    def _abort_episodes(self, prefix: str) -> None:
        num = self.policies.store.abort_all(prefix, time.monotonic())
        if num:
            logger.warning("%d episodes closed as truncated: their simulation was lost", num)

    async def _serve(self) -> None:
        """Runs along with the network, in its thread."""
        # Without a limit, MKL's tanh of a handful of numbers wakes a thread for every core
        # (milliseconds instead of 2 µs).
        limit_torch_threads(self.plan.resources.num_torch_threads)
        self._loop = asyncio.get_running_loop()
        self.policies.feed.bind(self._loop)
        await expire_episodes(self.policies.store)

    def _fail(self, problem: str) -> None:
        self._problem = problem

    # --- reports ------------------------------------------------------------------------

    def spec(self) -> ServerSpec:
        """Returns the spec that clients read before they start."""
        plan = self.plan
        return ServerSpec(
            protocol_version=PROTOCOL_VERSION,
            server_id=plan.server_id,
            algorithm=plan.algorithm,
            agents={
                agent_id: AgentInfo(a.policy_id, a.observation_space, a.action_space, a.group)
                for agent_id, a in plan.agents.items()
            },
            groups={group: list(members) for group, members in plan.groups.items()},
            state_size=plan.state_size,
            max_episodes=plan.limits.max_episodes,
            max_message_bytes=plan.limits.max_message_bytes
            or needed_bytes(plan.agents, plan.state_size, plan.limits.max_episodes),
            episode_timeout_s=plan.limits.episode_timeout_s,
            while_learning="wait" if plan.while_learning == "wait" else "serve",
            takes_rows=True,
            takes_seed=getattr(self.policies, "takes_seed", False),
            gives_log_probs=True,
            agents_return=plan.agents_return,
        )

    def status(self) -> Status:
        """Returns the progress of serving and learning; cheap, and safe from any thread."""
        policies = self.policies
        if self._problem:
            phase = "training_failed"
        elif self._is_stopping or self._network.problem:
            phase = "stopping"
        else:
            phase = "ready" if self._is_serving else "starting"
        return Status(
            server_id=self.plan.server_id,
            phase=phase,  # type: ignore[arg-type]
            is_waiting_for_learner=not policies.feed.is_open,
            is_learning=policies.feed.num_ahead > 0,
            num_open_episodes=policies.store.num_open,
            iteration=policies.iteration,
            weights_seq_no=policies.acting.weights_seq_no,
            num_refused=self._app.num_refused,
            **policies.store.counts.in_status(),
            problem=self._problem or self._network.problem,
            warnings=policies.store.warnings.found,
            num_refused_checkpoints=getattr(policies, "num_refused_checkpoints", 0),
            checkpoint_problem=getattr(policies, "checkpoint_problem", ""),
        )

    def answer_run(
        self, requests: Mapping[str, Callable[[Any], msgspec.Struct]], *more: str
    ) -> ServerSpec:
        """Lets the server answer a run over the network; see `RunService.requests`.

        Args:
            requests: by name, the functions that answer.
            more: names of more things that the server offers.

        Returns:
            The server's spec, which lists all of these.
        """
        self._app.run_requests = requests
        self._app.spec.offers = [*requests, *more]
        return self._app.spec

    def latencies(self) -> dict[str, list[int]]:
        """Returns histograms of the durations of exchanges and forward passes since the start.

        See `muxrl.servers.network.latency`; safe from any thread.
        """
        return {
            "exchange": list(self._app.exchanges.counts),
            "forward": list(self._app.batcher.forward_passes.counts),
        }


def make_policies(
    plan: ServerPlan,
    on_failure: Callable[[str], None],
    trainer: TrainerEntry | None = None,
) -> Policies:
    """Builds the policies of a server.

    Args:
        plan: the server.
        on_failure: called in the learning thread with a sentence if training raises.
        trainer: see `PolicyServer`.

    Raises:
        ServerProblem: the policies cannot be built.
    """
    try:
        algorithm = trainer or find(plan.algorithm).configured(plan)
    except AlgorithmProblem as problem:
        raise ServerProblem(f"server {plan.server_id!r}: {problem}") from problem
    if isinstance(algorithm, FixedAlgorithm):
        for sentence in algorithm.find_problems(plan):
            raise ServerProblem(f"server {plan.server_id!r}: {sentence}")
        return algorithm.make(plan)
    limit_torch_threads(plan.resources.num_torch_threads)
    assert isinstance(algorithm, TrainerEntry)
    return TrainerPolicies(plan, algorithm, on_failure=on_failure)


def stop_by_signals() -> threading.Event:
    """Configures logging; returns an event that SIGINT and SIGTERM set."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def serve_forever(
    plan: ServerPlan,
    run_dir: Path | None = None,
    *,
    resume: bool = False,
    interval_s: float | None = None,
) -> int:
    """Runs one server in the foreground until SIGINT, SIGTERM or SIGHUP; returns the exit code.

    Args:
        plan: the server.
        run_dir: where its checkpoint goes, which each new one replaces; None: none is written.
        resume: whether to continue from its newest checkpoint in `run_dir`. Without it, a
            folder that has a checkpoint is refused, since it would be overwritten.
        interval_s: seconds between checkpoints; None: only one at the end.
    """
    stop = stop_by_signals()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, lambda *_: stop.set())
    folder = run_dir / "checkpoints" / plan.server_id if run_dir else None
    with contextlib.ExitStack() as stack:
        try:
            plan = _to_resume(plan, run_dir, resume=resume)
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                taken = functools.partial(_taken, folder, plan.server_id)
                stack.enter_context(held(folder / "serving.lock", taken))
        except (ServerProblem, OSError) as refusal:
            logger.error("%s", refusal)
            return 2  # nothing was started
        checkpoint = folder / "last" if folder else None
        return _serve_until(stop, plan, checkpoint, interval_s)


def _serve_until(
    stop: threading.Event, plan: ServerPlan, checkpoint: Path | None, interval_s: float | None
) -> int:
    if checkpoint is None or interval_s is None:
        interval_s = math.inf
    try:
        server = PolicyServer(plan, on_shutdown=stop.set)
        address = server.start()
        logger.info("ready on http://%s; Ctrl-C ends it", address)
        due_at = time.monotonic() + interval_s
        while not stop.wait(min(1.0, interval_s)):
            if server.status().problem:
                break
            if checkpoint is not None and time.monotonic() >= due_at:
                _save(server, checkpoint)
                due_at = time.monotonic() + interval_s
        problem = server.status().problem
        if not server.stop(checkpoint):
            problem = problem or f"its last update took more than {_STOP_TIMEOUT_S:g} s" + (
                "; no checkpoint was written" if checkpoint else ""
            )
    except (ServerProblem, OSError) as error:
        logger.error("%s", error)
        return 1
    if problem:
        logger.error("server %r: %s", plan.server_id, problem)
    return 1 if problem else 0


def _taken(folder: Path, server_id: str) -> ServerProblem:
    return ServerProblem(
        f"another process already serves {server_id!r} from {str(folder)!r}, and the two would "
        "overwrite each other's checkpoints; end that process, or give another --run-dir"
    )


def _save(server: PolicyServer, checkpoint: Path) -> None:
    """Writes a checkpoint while the server continues; one that cannot be written is logged."""
    try:
        server.policies.save(checkpoint)
    except (StillLearning, ServerProblem, OSError) as error:
        logger.warning("no checkpoint was written; the next one will be when it is due: %s", error)


def _to_resume(plan: ServerPlan, run_dir: Path | None, *, resume: bool) -> ServerPlan:
    """Returns the plan, with the checkpoint to continue from if `resume` is set.

    Raises:
        ServerProblem: there is no checkpoint, or one that would be overwritten.
    """
    newest = find_newest(run_dir, plan.server_id) if run_dir else None
    if not resume:
        if newest is None:
            return plan
        raise ServerProblem(
            f"server {plan.server_id!r} has a checkpoint, {str(newest)!r}, which would be "
            "overwritten; continue from it with --resume, or give another --run-dir"
        )
    if run_dir is None:
        raise ServerProblem(
            f"server {plan.server_id!r} has nothing to resume: --resume needs --run-dir, the "
            "folder that has its checkpoint"
        )
    if newest is None:
        raise ServerProblem(
            f"server {plan.server_id!r} has no checkpoint in {str(run_dir)!r}; leave out --resume "
            "to start from scratch"
        )
    return dataclasses.replace(plan, resume_from=str(newest.absolute()), initialize_from="")
