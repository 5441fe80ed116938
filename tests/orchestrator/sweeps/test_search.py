"""Rows are handed out once each; a searcher that learns hears the mean over the seeds."""

import math

import pytest
from ray.tune.experiment import Trial

from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.sweeps import SweepDirectory, load_sweep, make_plan
from muxrl.orchestrator.sweeps.directory import TrialRecord
from muxrl.orchestrator.sweeps.search import (
    ROLES_KEY,
    Suggestions,
    TableSearch,
    domain,
    make_optuna,
)
from muxrl.orchestrator.sweeps.trial import METRIC, trial_of
from muxrl.orchestrator.sweeps.tuner import _reporter

SWEEP = """
experiment:
  simulation: {env: "muxrl.experiments.simulations.zero_cost:ZeroCost", kwargs: {num_agents: 1}}
  stop: {env_steps: 10}
roles: {all: ["*"]}
algorithms: {random: {}, ppo: {}}
parameters: {algorithms.ppo.settings.lr: {loguniform: [0.001, 0.1]}}
seeds: [0, 1]
num_samples: 3
"""


@pytest.fixture
def plan(tmp_path):
    def plan(*overrides):
        (tmp_path / "s.yaml").write_text(SWEEP)
        return make_plan(load_sweep(tmp_path / "s.yaml", overrides))

    return plan


@pytest.fixture
def folder(tmp_path):
    return SweepDirectory.create_at(tmp_path / "sweep")


class Script:
    """A searcher that says what it was told to say, and keeps what it hears."""

    def __init__(self, points):
        self.points = list(points)
        self.heard = []
        self.made_with = None

    def make(self, *arguments):
        self.made_with = arguments
        return self

    def suggest(self, suggestion_id):
        return self.points.pop(0)

    def on_trial_complete(self, suggestion_id, result=None, error=False):
        self.heard.append((suggestion_id, result and result[METRIC], error))


def test_a_table_is_handed_out_once_in_its_order(plan, folder):
    rows = plan().trials
    search = TableSearch(rows, folder, "max")
    configs = [search.suggest(f"t{i}") for i in range(len(rows))]
    assert [trial_of(config) for config in configs] == rows
    assert [config["run_dir"] for config in configs] == [
        str(folder.runs / spec.id) for spec in rows
    ]
    assert search.suggest("one more") == "FINISHED"


LR = "algorithms.ppo.settings.lr"


class Unstored(Trial):
    """Has no folder, which would need a running Ray."""

    local_experiment_path = local_path = ""


def test_tune_shows_a_best_trial_that_has_no_use_for_a_parameter(plan, folder, capsys):
    made = plan()
    search = TableSearch(made.trials, folder, "max", columns=[LR])
    trials = []
    for spec in made.trials:
        trial = Unstored("x", config=search.suggest(spec.id), stub=True)
        result = {METRIC: 2.0 if spec.roles == {"all": "random"} else 1.0, "config": trial.config}
        trial.update_last_result(result)
        trials.append(trial)
    table = _reporter(made)
    table.set_search_properties(METRIC, "max")
    table.report(trials, True)
    shown = capsys.readouterr().out
    assert "with return=2.0" in shown
    assert f"{made.trials[-1].parameters[LR]:.6g}"[:6] in shown


def suggestions(monkeypatch, plan, points, earlier=()):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    made = plan("searcher=optuna")
    script = Script(points)
    rows = []
    more = Suggestions(
        made, list(earlier), script.make, rows.extend, lambda *refused: rows.append(refused)
    )
    return made, script, rows, more


def test_each_suggestion_is_tried_with_every_seed_and_heard_of_once(monkeypatch, plan, folder):
    points = [{ROLES_KEY: 1, LR: 0.01}, {ROLES_KEY: 0, LR: 0.02}, {ROLES_KEY: 1, LR: 0.01}]
    _, script, rows, more = suggestions(monkeypatch, plan, points)
    search = TableSearch([], folder, "max", more)
    configs = [search.suggest(f"t{i}") for i in range(6)]
    assert search.suggest("t6") == "FINISHED"
    assert [trial_of(config) for config in configs] == rows
    assert [spec.seed for spec in rows] == [0, 1] * 3
    assert [spec.roles["all"] for spec in rows] == ["ppo"] * 2 + ["random"] * 2 + ["ppo"] * 2
    # What an assignment has no use for is no parameter of its trials.
    assert [spec.parameters for spec in rows[1:3]] == [{LR: 0.01}, {}]
    for i, value in enumerate([1.0, 3.0, 5.0]):
        search.on_trial_complete(f"t{i}", {METRIC: value})
    assert script.heard == [("suggestion-0", 2.0, False)]
    search.on_trial_complete("t3", error=True)
    search.on_trial_complete("t4", {METRIC: 4.0})
    search.on_trial_complete("t5", {METRIC: 8.0})
    assert script.heard[1:] == [("suggestion-2", None, True), ("suggestion-4", 6.0, False)]


def test_what_a_simulation_refuses_is_a_failed_suggestion_and_the_next_is_tried(
    monkeypatch, plan, folder
):
    points = [{ROLES_KEY: 1, LR: 0.01}, {ROLES_KEY: 0, LR: 0.02}]
    made, script, rows, more = suggestions(monkeypatch, plan, points)
    assignment = made.assignment

    def refuse_the_first(roles, parameters):
        made.assignment = assignment
        raise ConfigError(["simulation: no such size"])

    made.assignment = refuse_the_first
    search = TableSearch([], folder, "max", more)
    assert trial_of(search.suggest("t0")).roles == {"all": "random"}
    (refused, cause), *others = rows
    assert cause == "simulation: no such size"
    assert [spec.id for spec in refused] == ["0-refused-s0", "1-refused-s1"]
    assert [spec.id[0] for spec in others] == ["2", "3"]
    assert script.heard == [("suggestion-0", None, True)]


def test_a_resumed_search_is_told_what_is_known_and_makes_the_rest(monkeypatch, plan):
    def record(number, template, values, seed, status, metric=None):
        return TrialRecord(
            f"{number}", "x", {"all": template}, values, seed, status=status, metric=metric
        )

    earlier = [
        record(0, "ppo", {LR: 0.02}, 0, "done", 1.0),
        record(1, "ppo", {LR: 0.02}, 1, "done", 2.0),
        record(2, "random", {}, 0, "done", 3.0),
        record(3, "random", {}, 1, "waiting"),
    ]
    _, script, rows, more = suggestions(monkeypatch, plan, [{ROLES_KEY: 0, LR: 0.5}], earlier)
    _, mode, known = script.made_with
    assert mode == "max"
    assert known == [({LR: 0.02, ROLES_KEY: 1}, 1.5)]
    assert [spec.id.partition("-")[0] for spec in more.next()] == ["4", "5"]
    assert more.next() == []
    assert len(rows) == 2


def test_optuna_itself_finds_what_is_better(monkeypatch, plan):
    pytest.importorskip("optuna")
    made = plan("searcher=optuna")
    space = {LR: domain(made.config.parameters[LR])}
    best = math.log(0.004)
    search = make_optuna(space, "max", [({LR: 0.05}, best - math.log(0.05))], seed=3)
    found = []
    for i in range(40):
        found.append(abs(math.log(search.suggest(f"t{i}")[LR]) - best))
        search.on_trial_complete(f"t{i}", {METRIC: -found[-1]})
    assert max(found) <= math.log(0.1 / 0.004) + 1e-9
    assert sum(found[-10:]) < 0.6 * sum(found[:10])
