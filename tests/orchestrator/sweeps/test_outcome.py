"""What a sweep returns and prints: metric, frame, best trial, exit code, estimate."""

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from muxrl.orchestrator.config import (
    EvaluationConfig,
    ExperimentConfig,
    SimulationConfig,
    StopConfig,
    prepare,
)
from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.launch.tally import Tally
from muxrl.orchestrator.records.rows import EvaluationRow, JointRow
from muxrl.orchestrator.sweeps import dry_run as dry_run_module
from muxrl.orchestrator.sweeps.directory import TrialRecord
from muxrl.orchestrator.sweeps.dry_run import (
    Timing,
    _timing_text,
    concurrency,
    duration,
    estimate_text,
    why_unknown,
)
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.orchestrator.sweeps.measure import Metric
from muxrl.orchestrator.sweeps.plan import make_plan
from muxrl.orchestrator.sweeps.result import SweepResult, print_result
from muxrl.orchestrator.sweeps.runner import local_num_cpus
from muxrl.orchestrator.sweeps.schema import MetricConfig as M
from muxrl.orchestrator.sweeps.schema import SweepConfig
from muxrl.protocol.messages import Status
from muxrl.servers.config import ServerConfig


def trial(number, status="done", metric=None, seed=0, **values):
    return TrialRecord(
        f"{number}-qmix-ppo-abc-s{seed}",
        "qmix:h|ppo:p",
        {"hunters": "qmix", "prey": "ppo"},
        {"servers.prey.settings.lr": 0.001 * (number + 1)},
        seed,
        status=status,
        metric=metric,
        **values,
    )


TRIALS = (
    trial(0, metric=1.0, run_dir="runs/a", env_steps=4000, metric_source="evaluation"),
    trial(1, metric=3.0, run_dir="runs/b", env_steps=4000, metric_source="evaluation"),
    trial(2, "stopped_early", metric=9.0, run_dir="runs/c"),
    trial(3, "failed", cause="server 'prey' died; its log: runs/d/logs/prey.log", run_dir="runs/d"),
)


def result(mode="max", **values):
    config = SweepConfig(name="s", metric=M(of="prey", mode=mode))
    return SweepResult(Path("/sweeps/s"), TRIALS, config, **values)


def test_the_best_trial_is_among_those_that_ran_to_their_end():
    assert result().best() is TRIALS[1]
    assert result("min").best() is TRIALS[0]


def test_exit_codes():
    assert result().exit_code == 1
    assert result(is_interrupted=True).exit_code == 130
    assert SweepResult(Path(), TRIALS[:3], SweepConfig()).exit_code == 0


def test_a_frame_has_a_row_for_each_trial_and_a_column_for_each_role_and_parameter():
    frame = result().frame()
    assert list(frame.columns) == [
        *("trial", "assignment", "hunters", "prey", "servers.prey.settings.lr", "seed", "status"),
        *("metric", "metric_source", "env_steps", "time_s", "cpu_s", "run_dir", "cause"),
    ]
    assert list(frame["status"]) == ["done", "done", "stopped_early", "failed"]
    assert frame.loc[1, "metric"] == 3.0
    assert frame.loc[0, "run_dir"] == Path("/sweeps/s/runs/a")


def test_the_outcome_is_printed_with_the_causes_of_failures():
    console = Console(file=io.StringIO(), width=160)
    print_result(result(), console)
    text = console.file.getvalue()
    assert "s: 2 done, 1 stopped early, 1 failed" in text
    assert "return (prey)" in text
    line = "3-qmix-ppo-abc-s0 failed: server 'prey' died; its log: runs/d/logs/prey.log"
    assert line in text.splitlines()


def test_many_parameters_leave_room_for_numbers():
    values = {f"servers.prey.settings.set_{i}": 0.125 * (i + 1) for i in range(7)}
    trials = tuple(replace(trial, parameters=values) for trial in TRIALS)
    console = Console(file=io.StringIO(), width=80)
    print_result(replace(result(), trials=trials), console)
    table = console.file.getvalue().partition("failed: ")[0]
    assert max(map(len, table.splitlines())) == 80
    words = Counter(table.replace(",", "").split())
    for key, value in values.items():
        assert words[f"{key.partition('.')[2]}={value:.3g}"] == len(trials)
    for number, num in {"1.00": 1, "3.00": 1, "9.00": 1, "4000": 2, "evaluation": 2}.items():
        assert words[number] == num
    assert {"done", "stopped", "failed", "hunters", "(prey)"} <= words.keys()


def test_a_notebook_shows_each_trial_and_the_causes_of_failures():
    page = result()._repr_html_()
    assert "s: 2 done, 1 stopped early, 1 failed" in page
    assert "<button" not in page, "nothing sorts in a notebook"
    assert page.count("<tr") == 1 + len(TRIALS)
    assert "server &#39;prey&#39; died" in page


H_AND_P = {"h": [1.0, 3.0], "p": [4.0, 6.0]}
MEANS = {"episode_return_mean": {"p": 2.0}}
BY_AGENT = {"episode_return_mean": {"h": 1.0, "p": 3.0}}
RETURNS = {"returns": {"prey": 1.5, "total": 7.0}}
NAN = {"episode_return_mean": {"h": float("nan"), "p": 1.0}}
WIN = {"win": {"__common__": [1.0, None, 0.0]}, "hits": {"h": [9.0], "p": [1.0], "q": [3.0]}}
BY_EPISODE = {"group_metrics": {"hits": {"prey": 2.5, "total": 1.5}, "win": {"total": 0.5}}}
WIN_MEANS = {"metrics": {"win": {"__common__": 0.25}, "hits": {"h": 5.0, "p": 1.0}}}
EVALUATED, TRAINED = ("evaluation", 300), ("training", 500)


@pytest.mark.parametrize(
    ("metric", "agents", "evaluated", "training", "value"),
    [
        (M("prey"), "p", (H_AND_P, {}), {}, (5.0, *EVALUATED)),
        (M("total"), "", (H_AND_P, {}), {}, (7.0, *EVALUATED)),
        # Training counts if nothing was evaluated, or if the config says so.
        (M("prey"), "p", None, MEANS, (2.0, *TRAINED)),
        (M("prey", "training"), "p", ({"p": [9.0]}, {}), MEANS, (2.0, *TRAINED)),
        (M("prey"), "p", None, RETURNS, (1.5, *TRAINED)),
        (M("total", "training"), "", None, RETURNS, (7.0, *TRAINED)),
        # Older runs have returns by agent only.
        (M("total"), "", None, BY_AGENT, (4.0, *TRAINED)),
        (M("prey"), "hp", None, BY_AGENT, (2.0, *TRAINED)),
        # Values that are no numbers give no metric.
        (M("prey"), "p", None, {}, None),
        (M("total"), "", None, {}, None),
        (M("total"), "", None, NAN, None),
        (M("prey"), "p", None, NAN, (1.0, *TRAINED)),
        (M("prey"), "q", None, NAN, None),
        # A metric is that of the episode, or a mean over agents.
        (M("total", name="win"), "", ({}, WIN), {}, (0.5, *EVALUATED)),
        (M("prey", name="win"), "pq", ({}, WIN), {}, (0.5, *EVALUATED)),
        (M("prey", name="hits"), "pq", ({}, WIN), {}, (2.0, *EVALUATED)),
        (M("total", name="hits"), "", ({}, WIN), {}, (pytest.approx(13 / 3), *EVALUATED)),
        (M("total", name="way"), "", ({}, WIN), {}, None),
        (M("total", name="win"), "", None, WIN_MEANS, (0.25, *TRAINED)),
        (M("prey", name="hits"), "pq", None, WIN_MEANS, (1.0, *TRAINED)),
        (M("total", name="win"), "", None, {}, None),
        # The mean over episodes is used if the run has recorded it.
        (M("prey", name="hits"), "pq", None, WIN_MEANS | BY_EPISODE, (2.5, *TRAINED)),
        (M("total", name="hits"), "", None, WIN_MEANS | BY_EPISODE, (1.5, *TRAINED)),
        (M("prey", name="win"), "pq", None, WIN_MEANS | BY_EPISODE, (0.25, *TRAINED)),
    ],
)
def test_a_metric_is_one_number_of_evaluations_or_of_training(
    metric, agents, evaluated, training, value
):
    told = Metric(metric, {"prey": SimpleNamespace(agents=[*agents])})
    row = None
    if evaluated is not None:
        returns, metrics = evaluated
        row = EvaluationRow(env_steps=300, replaced=None, returns=returns, metrics=metrics)
    assert told.value(row, JointRow(env_steps=500, **training)) == value


def test_the_estimate_runs_as_many_trials_at_once_as_fit(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    found = {}  # each trial takes 2.5 logical CPUs
    for most in ("null", 1, 5):
        plan = make_plan(load_sweep("chase", [f"max_concurrent={most}"]))
        found[most] = local_num_cpus(plan), concurrency(plan)
    assert found == {"null": (6, 2), 1: (6, 1), 5: (13, 5)}


def timing(train_s, num_trials):
    return Timing("a:x", num_trials, 10.0, 100.0, train_s, 3.0, end_s=2.0)


def test_the_estimate_adds_up_trials_and_names_those_of_unknown_length():
    timings = [timing(45.0, 2), timing(105.0, 4)]  # 2 * 60 s and 4 * 120 s
    assert estimate_text(timings, 1) == "in all: about 10 min, one trial after another"
    assert "about 10 min if 2 trials at a time" in estimate_text(timings, 2)
    assert "5 min if the machine has room" in estimate_text(timings, 2)
    assert estimate_text([*timings, timing(None, 3)], 1) == (
        "6 of 9 trials: about 10 min, one trial after another; how long the other 3 take is not "
        "known"
    )
    assert estimate_text([timing(None, 1)], 1) == "in all: not known"


@pytest.mark.parametrize(
    ("stop", "env_steps", "reason"),
    [
        ({"env_steps": 900}, 0, "no env step in 70 s, so nothing can be estimated; if the simul"),
        (
            {"iterations": 9},
            500,
            "500 env steps in 70 s, but none of the limits under stop came nearer",
        ),
        (
            {"episode_return": {"a": 1.0}},
            500,
            "cannot be estimated, since only a return or a metric ends it",
        ),
    ],
)
def test_the_reason_is_given_if_the_length_of_a_trial_is_unknown(stop, env_steps, reason):
    tally = Tally()
    tally.env_steps, tally.time_s = env_steps, 70.0
    assert reason in why_unknown(StopConfig(**stop), tally)


class FakeRun:
    """Starts in 7 s; evaluates 8 episodes in 20 s, of which environments take 4, and in 16 s for
    each server.

    A first env step comes after 13 s, an update after 30 s. It ends in 3 s.
    """

    now = 0.0

    def __init__(self, experiment, folder, before, on_evaluated):
        self.tally, self.servers = Tally(), SimpleNamespace(statuses={})
        self.experiment, self.folder, self.on_evaluated = experiment, folder, on_evaluated
        self.is_training = self.is_enough = False

    def play(self, workers):
        FakeRun.now += 7.0
        yield
        if self.experiment.config.evaluation.interval_env_steps:
            FakeRun.now += 20.0
            self.on_evaluated(None)
            FakeRun.now += 16.0 * len(self.experiment.learning)
        self.is_training = True
        yield
        while not self.is_enough:
            self.look()
            yield
        FakeRun.now += 3.0

    def look(self):
        tally = self.tally
        tally.time_s += 1.0
        slow = max(0, round(tally.time_s) - 30)  # learning halves the rate
        tally.env_steps = max(0, round(tally.time_s) - 12) * 10 - slow * 5
        tally.env_steps_per_s = 5.0 if slow else 10.0 if tally.env_steps else 0.0
        seq_no = int(tally.time_s >= 30)
        learned = {s: Status(s, "ready", weights_seq_no=seq_no) for s in ("all", "never")}
        self.servers.statuses = learned

    def end(self, outcome):
        pass

    def close(self):
        pass


@pytest.mark.parametrize(
    ("algorithm", "evaluation", "timing"),
    [
        # Played until there is an env step.
        ("RANDOM", {}, (9.0, 13.0 + 100.0, 0.0)),
        # 10 steps/s up to 30 s, then half as many. 5 episodes at 0, 500 and 1,000 with 1 + 1
        # conditions, 10 at the end with 1 + 2, of 2 s each; making the environments takes 4 s.
        (
            "PPO",
            {"interval_env_steps": 500, "num_episodes": 5, "final_num_episodes": 10},
            (9.0, 40.0 + (1_010 - 230) / 5.0, 4.0 + 60 * 2.0),
        ),
    ],
)
def test_a_calibration_holds_steps_updates_evaluations_and_the_end(
    algorithm, evaluation, timing, monkeypatch, tmp_path
):
    """The rate is measured in a window of 10 s."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = calibrated(FakeRun, algorithm, evaluation, monkeypatch)
    assert (found.start_s, found.train_s, found.evaluation_s) == pytest.approx(timing)
    assert (found.end_s, found.unknown, found.without) == (3.0, "", ())
    assert not any(tmp_path.iterdir())


def test_the_log_that_a_failed_calibration_names_is_there(monkeypatch, tmp_path):
    class Fails(FakeRun):
        def play(self, workers):
            log = self.folder.log("prey")
            log.write_text("it rained")
            raise RunFailed(f"server 'prey' ended; its log: {log}")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RunFailed, match=f"its log: {tmp_path}") as failed:
        calibrated(Fails, "RANDOM", {}, monkeypatch)
    assert Path(str(failed.value).partition("its log: ")[2]).read_text() == "it rained"


def calibrated(run, algorithm, evaluation, monkeypatch):
    monkeypatch.setattr(dry_run_module, "Run", run)
    monkeypatch.setattr(dry_run_module.time, "monotonic", lambda: FakeRun.now)
    zero = SimulationConfig(env="muxrl.experiments.simulations.zero_cost:ZeroCost")
    config = ExperimentConfig(
        name="slow",
        simulation=zero,
        servers={"all": ServerConfig(algorithm=algorithm, agents=["*"])},
        stop=StopConfig(env_steps=1_010),
        evaluation=EvaluationConfig(**{"final_num_episodes": 0, **evaluation}),
    )
    plan = SimpleNamespace(
        trials=[trial(0)],
        experiments={trial(0).id: prepare(config)},
        config=SweepConfig(calibration_s=10.0),
    )
    (found,) = dry_run_module.calibrate(plan, 2.0)
    return found


def test_the_estimate_names_servers_that_made_no_update():
    held = Timing("a:x", 2, 10.0, 100.0, 45.0, 5.0)
    assert _timing_text(held) == "100 env steps/s, 10 s to start, 60 s a trial, 2 of them"
    assert _timing_text(replace(held, without=("qmix",))) == (
        "100 env steps/s, 10 s to start, 60 s a trial (not counting the learning of qmix, which "
        "made no update), 2 of them"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.4, "3 s"), (89, "89 s"), (100, "2 min"), (7500, "2 h 5 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
