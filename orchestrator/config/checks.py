"""Finds mistakes in a config that can be seen before its simulation is made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, get_args

from muxrl.client.episode_metrics import (
    METRIC_NAMES,
    OWN_METRICS,
    REDUCTIONS,
    RESERVED_METRICS,
    WAYS,
    is_metric_name,
)
from muxrl.client.inference_modes import InferenceMode
from muxrl.orchestrator.config import parameters, shadows
from muxrl.orchestrator.config.schema import RETURN, TOTAL, ExperimentConfig, GatewayConfig
from muxrl.orchestrator.config.trackers import find_problems as tracker_problems
from muxrl.orchestrator.storage.remote_copy import find_problem
from muxrl.protocol.suggestions import did_you_mean, listed, similar_or_known
from muxrl.servers.config import EXTERNAL as OWN_PROCESS
from muxrl.servers.config import ServerConfig
from muxrl.servers.network.access import is_loopback

EXTERNAL = "external"
"""`simulation.env` of a simulation that muxrl does not start."""

# Names become files and directories. Server ids are also keys of overrides, so they have no dots.
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SERVER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_METRICS_FILES = ("joint", "evaluation")  # files of the run's metrics, besides one for each server
# Processes of the run, after which logs are named.
_PROCESSES = re.compile(r"gateway|launch|trial|simulation-\d+|tracker-.*")

_MAX_EVALUATION = 8
"""Most environments of an evaluation by default; more would save little."""
_MIN_TOKEN_CHARS = 16
"""So long that a random token cannot be found by trying: 64**16 is 2**96."""


def is_file_name(name: str) -> bool:
    """Whether `name` can name a file on every system."""
    return _FILE_NAME.fullmatch(name) is not None and not name.endswith(".")


def is_label(name: str) -> bool:
    """Whether `name` can be a server's label in an assignment."""
    # No "@": it separates label and server id where several servers share a label.
    return _FILE_NAME.fullmatch(name) is not None


def compares_untrained(config: ExperimentConfig) -> bool:
    """Whether the final evaluation plays each server's untrained policies in its place, too.

    By default not with an external simulation, since it is unknown how much its episodes cost.
    """
    evaluation = config.evaluation
    should_compare = evaluation.should_compare_untrained
    if should_compare is None:
        should_compare = config.simulation.env != EXTERNAL
    return should_compare and evaluation.final_num_episodes > 0


def num_evaluation_envs(config: ExperimentConfig, num_episodes: int) -> int:
    """Returns how many environments play `num_episodes` evaluation episodes at the same time."""
    simulation = config.simulation
    # With vector environments, each evaluation environment is a separate engine perhaps.
    usual = 1 if simulation.vector_env else min(simulation.num_envs_per_process, _MAX_EVALUATION)
    return min(config.evaluation.num_envs or usual, num_episodes)


def find_problems(config: ExperimentConfig, *, needs_stop: bool = True) -> list[str]:
    """Returns one sentence for each thing that is wrong.

    Args:
        config: the experiment.
        needs_stop: whether the run has to end by itself.
    """
    problems = []
    if not is_file_name(config.name):
        problems.append(
            f"name: {config.name!r} cannot name a directory; use letters, digits, '_', '-' and '.'"
        )
    problems += _simulation_problems(config)
    problems += _inference_problems(config)
    problems += _metric_problems(config)
    problems += _parameter_problems(config)
    if not config.servers:
        problems.append("servers: is empty; at least one server has to serve the agents")
    for server_id, server in config.servers.items():
        problems += _server_problems(server_id, server, config)
        problems += [
            f"server {server_id!r}: {' '.join(sentence.split())}"
            for sentence in _algorithm_problems(server_id, server)
        ]
    problems += shadows.find_problems(config)
    problems += _port_problems(config)
    if needs_stop:
        problems += _stop_problems(config)
    problems += _best_problems(config)
    for key, metric in awaited_metrics(config):
        if needs_stop or not key.startswith("stop."):
            problems += unknown_metric(key, metric, config)
    problems += [f"trackers: {problem}" for problem in tracker_problems(config.trackers)]
    if config.storage_path is not None and (problem := find_problem(config.storage_path)):
        problems.append(f"storage_path: {problem}")
    return problems


def _best_problems(config: ExperimentConfig) -> Iterator[str]:
    best = config.checkpoint.best
    if best is None:
        return
    if config.evaluation.interval_env_steps is None:
        yield (
            "checkpoint.best: needs evaluations during the run, by which checkpoints are "
            "compared; set evaluation.interval_env_steps, or leave out checkpoint.best"
        )
    yield from unknown_server("checkpoint.best.of", "name", best.of, config)


def _simulation_problems(config: ExperimentConfig) -> Iterator[str]:
    simulation = config.simulation
    if simulation.record and simulation.env == EXTERNAL:
        yield (
            "simulation.record: muxrl records only simulations that it makes itself, and this one "
            "is external; leave it out"
        )
    if not simulation.env:
        yield (
            "simulation.env: is missing; give 'package.module:callable', 'gymnasium:ENV_ID', "
            f"'pettingzoo:ENV_ID', 'open_spiel:GAME' or '{EXTERNAL}'"
        )
    elif simulation.env == EXTERNAL:
        if not simulation.agents:
            yield (
                "simulation.agents: is missing; an external simulation cannot be asked for its "
                "agents, so list each one with its observation_space and action_space"
            )
        for agent_id, agent in simulation.agents.items():
            for kind in ("observation_space", "action_space"):
                if not getattr(agent, kind):
                    yield (
                        f"simulation.agents.{agent_id}.{kind}: is missing; describe the space, "
                        "such as {type: discrete, n: 2}"
                    )
        yield from access_problems(
            "the gateway", "set simulation.gateway.token", simulation.gateway
        )
        if simulation.command and not any("{gateway}" in part for part in simulation.command):
            yield (
                "simulation.command: does not give the gateway's address to the program; put "
                '{gateway} into an argument, such as ["java", "-jar", "sim.jar", "{gateway}"]'
            )
        for key in ("kwargs", "vector_env", "on_bad_value"):
            if getattr(simulation, key) != getattr(type(simulation)(), key):
                yield (
                    f"simulation.{key}: is only for simulations that muxrl makes itself, and this "
                    "one is external; leave it out"
                )
        if simulation.respawn not in ("refuse", "same_id"):
            yield (
                f"simulation.respawn: is {simulation.respawn!r}, which is not for an external "
                "simulation; use 'same_id': its agents may then come back in any step, since the "
                "simulation itself names each agent and sends its last observation"
            )
        if simulation.metrics:
            yield (
                "simulation.metrics: is given, but muxrl does not see the infos of an external "
                "simulation; have it send its metrics with the end of each episode"
            )
    else:
        if simulation.env.startswith("__main__:"):
            yield (
                f"simulation.env: {simulation.env!r} is defined in the script that is running, "
                "which the processes of simulations cannot import; put it into a module, and "
                f"give 'module:{simulation.env.partition(':')[2]}'"
            )
        if simulation.vector_env and simulation.respawn == "new_ids":
            yield (
                "simulation.respawn: is 'new_ids', but a vector environment has rows only for the "
                "agents that it declares; use 'same_id' or 'same_step'"
            )
        if ":" not in simulation.env:
            hint = did_you_mean(simulation.env, [EXTERNAL])
            yield (
                f"simulation.env: {simulation.env!r} is neither 'package.module:callable' nor "
                f"'gymnasium:ENV_ID' nor 'pettingzoo:ENV_ID' nor 'open_spiel:GAME' nor "
                f"'{EXTERNAL}'{hint}"
            )
        for key in ("agents", "state_size"):
            if getattr(simulation, key):
                yield (
                    f"simulation.{key}: is only for env: {EXTERNAL}; muxrl reads it from "
                    f"{simulation.env!r} itself, so leave it out"
                )


def _inference_problems(config: ExperimentConfig) -> Iterator[str]:
    key, given = "simulation.inference_mode", config.simulation.inference_mode
    modes = given if isinstance(given, Mapping) else {"": given}
    yield from _unknown_servers(key, given if isinstance(given, Mapping) else {}, config)
    for server_id, mode in modes.items():
        if mode not in get_args(InferenceMode):
            where = f"{key}.{server_id}" if server_id else key
            yield (
                f"{where}: must be 'remote' or 'local', or a mapping of server ids to these, "
                f"got {mode!r}"
            )
        elif mode == "local" and config.simulation.env == EXTERNAL:
            yield (
                f"{key}: is 'local', but an external simulation reaches the servers through the "
                "gateway, which does not pass on their networks; leave it out"
            )


def _metric_problems(config: ExperimentConfig) -> Iterator[str]:
    for name, way in config.simulation.metrics.items():
        if name in RESERVED_METRICS:
            yield (
                f"simulation.metrics: {name!r} is the name of a number that muxrl itself records "
                "of every episode; leave it out, or rename yours"
            )
        if not is_metric_name(name):
            yield f"simulation.metrics: {name!r} cannot name a metric; use {METRIC_NAMES}"
        if way not in WAYS:
            hint = similar_or_known(way, REDUCTIONS)
            yield (
                f"simulation.metrics.{name}: {way!r} is no way to make one number of an "
                f"episode's{hint}; 'max of sum', say, is the largest of the agents' sums"
            )


def _parameter_problems(config: ExperimentConfig) -> Iterator[str]:
    yield from parameters.find_problems(config)
    for name, given in config.simulation.parameters.items():
        rule = given.get("next_when") if parameters.has_lessons(given) else None
        if isinstance(rule, Mapping):
            at = f"simulation.parameters.{name}.next_when"
            yield from unknown_server(f"{at}.of", "metric", rule.get("of", TOTAL), config)


def _algorithm_problems(server_id: str, server: ServerConfig) -> Iterator[str]:
    """Yields a sentence for each thing that is wrong with a server's algorithm and its settings."""
    # Imports users' own algorithms; muxrl's are only looked up, so that this takes no time.
    from muxrl.servers.lookup import find, own_algorithms

    try:
        algorithm = find(server.algorithm)
        if not algorithm.learns:
            algorithm = algorithm.configured(server)
        problems = [*algorithm.find_config_problems(server)]
    except ValueError as error:
        problems = [str(error)]
    for problem in problems:
        unknown = (name for name in server.settings if f"has no setting {name!r}" in problem)
        name = next(unknown, "")
        if owners := [one.name for one in own_algorithms() if name in one.settings()]:
            yield (  # perhaps inherited from a base with another algorithm
                f"{problem.partition('; known: ')[0]}; it is a setting of {listed(owners)}; if "
                f"it comes from the base, clear its settings by servers.{server_id}.settings={{}} "
                "on the command line, or settings: {} in a file"
            )
        else:
            yield problem


def _server_problems(
    server_id: str, server: ServerConfig, config: ExperimentConfig
) -> Iterator[str]:
    if not _SERVER_ID.fullmatch(server_id):
        yield (
            f"servers: the id {server_id!r} cannot be the name of files and config keys; use "
            "letters, digits, '_' and '-'"
        )
    if server_id in _METRICS_FILES:
        yield (
            f"servers: the id {server_id!r} is taken by a file of the run's metrics; choose another"
        )
    if _PROCESSES.fullmatch(server_id):
        yield f"servers: the id {server_id!r} is taken by a process of the run; choose another"
    if server.label and not is_label(server.label):
        yield (
            f"servers.{server_id}.label: {server.label!r} cannot be a name in assignments; use "
            "letters, digits, '_', '-' and '.'"
        )
    if not (server.agents or server.shadow):
        others = [other for other in config.servers if other != server_id]
        yield (
            f"server {server_id!r}: serves no agents; list names or patterns under "
            f"servers.{server_id}.agents{did_you_mean(server_id, others)}"
        )
    own = next((key for key in ("command", "address") if getattr(server, key)), "")
    if own and server.algorithm.upper() != OWN_PROCESS:
        yield (
            f"server {server_id!r}: has algorithm {server.algorithm}, and {own}, whose process "
            f"has an algorithm itself; leave out one of the two, or set algorithm: {OWN_PROCESS}"
        )
    if server.on_server_loss == "random" and config.simulation.env == EXTERNAL:
        yield (
            f"servers.{server_id}.on_server_loss: is 'random', which works only with simulations "
            "that muxrl makes itself; leave it out, and wrap the transport of the external "
            "simulation in muxrl.client.stand_in.StandIn"
        )
    simulation, evaluation, most = config.simulation, config.evaluation, server.limits.max_episodes
    num_open = simulation.num_processes * simulation.num_envs_per_process
    num_evaluated = num_evaluation_envs(config, evaluation.final_num_episodes)
    if evaluation.interval_env_steps:  # training episodes are open meanwhile
        num_evaluated = num_evaluation_envs(config, evaluation.num_episodes)
        num_open += num_evaluated
    num_open = max(num_open, num_evaluated)
    if simulation.env != EXTERNAL and num_open > most:
        yield (
            f"servers.{server_id}.limits.max_episodes: is {most:,}, but {num_open:,} environments "
            f"play at the same time, {num_evaluated} of them in an evaluation; raise the limit, or "
            "lower the number of environments (simulation.num_envs_per_process)"
        )
    yield from access_problems(f"server {server_id!r}", f"set servers.{server_id}.token", server)


def access_problems(who: str, remedy: str, listener: ServerConfig | GatewayConfig) -> Iterator[str]:
    """Yields a sentence for each reason why strangers could use a server or gateway.

    Args:
        who: the listener's name.
        remedy: how to give it a token.
        listener: its settings.
    """
    if not is_loopback(listener.host) and not listener.token:
        yield (
            f"{who}: listens on {listener.host!r}, which other machines can reach, "
            f"without a token; {remedy}, or the host to 127.0.0.1"
        )
    if 0 < len(listener.token) < _MIN_TOKEN_CHARS:
        yield (
            f"{who}: its token has {len(listener.token)} characters, which can be "
            f"guessed; give it at least {_MIN_TOKEN_CHARS}, made by "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    if not listener.token.isascii() or any(char.isspace() for char in listener.token):
        yield (
            f"{who}: its token cannot be sent in an HTTP header; use ASCII characters without "
            "spaces"
        )


def _port_problems(config: ExperimentConfig) -> Iterator[str]:
    for (one, a), (other, b) in combinations(config.servers.items(), 2):
        if a.port == b.port != 0 and _share_an_address(a.host, b.host):
            yield (
                f"servers {one!r} and {other!r}: both listen on {a.host}:{a.port}; give one of "
                "them another port, or 0 for any free one"
            )


def _share_an_address(one: str, other: str) -> bool:
    wildcards = {"0.0.0.0", "::", ""}
    hosts = {"127.0.0.1" if host == "localhost" else host for host in (one, other)}
    return len(hosts) == 1 or bool(hosts & wildcards)


def _stop_problems(config: ExperimentConfig) -> Iterator[str]:
    stop = config.stop
    if stop == type(stop)() and config.simulation.env != EXTERNAL:
        yield (
            "stop: nothing ends this run; give at least one of env_steps, time_s, iterations, "
            "episode_return, metric_at_least, metric_at_most"
        )
    yield from _unknown_servers("stop.episode_return", stop.episode_return, config)


def awaited_metrics(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Yields each key that has no effect without a metric, and the metric's name."""
    for name, given in config.simulation.parameters.items():
        rule = given.get("next_when") if parameters.has_lessons(given) else None
        if isinstance(rule, Mapping):
            yield f"simulation.parameters.{name}.next_when.metric", str(rule.get("metric", RETURN))
    for key in ("metric_at_least", "metric_at_most"):
        for metric in getattr(config.stop, key):
            yield f"stop.{key}", metric
    if config.checkpoint.best is not None:
        yield "checkpoint.best.name", config.checkpoint.best.name


def unknown_metric(where: str, name: str, config: ExperimentConfig) -> Iterator[str]:
    """Yields a sentence if no episode will have a metric.

    An external simulation may send any metric with a valid name.

    Args:
        where: the key; the return is no metric of a stop condition, since it has a key of its own.
        name: the metric.
        config: the experiment.
    """
    known = [*config.simulation.metrics, *OWN_METRICS]
    if not where.startswith("stop."):
        known.append(RETURN)
    if name in known:
        return
    hint = similar_or_known(name, known, "simulation.metrics and muxrl's own are")
    if name == RETURN:
        hint = "; for the return use stop.episode_return"
    elif config.simulation.env == EXTERNAL:
        if is_metric_name(name):
            return
        hint = f"; a simulation can name its metrics by {METRIC_NAMES}"
    yield f"{where}: there is no metric {name!r}{hint}"


def _unknown_servers(
    where: str, given: Mapping[str, Any], config: ExperimentConfig
) -> Iterator[str]:
    """Yields a sentence for each key of a mapping that is no acting server."""
    acts = shadows.acting(config)
    for server_id in given:
        if server_id in acts:
            continue
        hint = similar_or_known(server_id, acts, "the servers are")
        problem = f"{where}: there is no server {server_id!r}{hint}"
        if server_id in config.servers:  # a shadow
            problem = f"{where}: {_does_not_act(server_id, acts)}"
        if now := shadows.acting_instead(config, server_id):
            renamed = {shadows.acting_instead(config, s) or s: value for s, value in given.items()}
            add = " ".join(f"{where}.{s}={value}" for s, value in renamed.items())
            problem = (
                f"{where}: names {server_id!r}, which {now!r} has replaced; add {where}={{}} {add}"
            )
        yield problem


def _does_not_act(server_id: str, acts: Iterable[str]) -> str:
    return f"names {server_id!r}, a shadow, which does not act; name one of {listed(acts)}"


def unknown_server(
    where: str, metric_key: str, of: str, config: ExperimentConfig, what: str = "server"
) -> Iterator[str]:
    """Yields a sentence if a key wants the return or a metric of an unknown server.

    Args:
        where: the key.
        metric_key: the neighbouring key, which names the metric.
        of: the server's id, or `TOTAL`.
        config: the experiment.
        what: "role or server" if there are roles.
    """
    acts = shadows.acting(config)
    if of == TOTAL or of in acts:
        return
    if now := shadows.acting_instead(config, of):
        yield f"{where}: is {of!r}, which {now!r} has replaced; add {where}={now}"
        return
    if of in config.servers:  # a shadow
        yield f"{where}: {_does_not_act(of, acts)}"
        return
    hint = similar_or_known(of, [*acts, TOTAL], "there are")
    if of in (*config.simulation.metrics, *OWN_METRICS):
        hint = f"; it is a metric, so write {metric_key}: {of}"
    yield f"{where}: there is no {what} {of!r}{hint}"
