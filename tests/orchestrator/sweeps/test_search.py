"""Each row of a table is handed out once; a searcher that learns gets the mean over seeds."""

import pytest

from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.sweeps import search as search_module
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.orchestrator.sweeps.parameters import draw
from muxrl.orchestrator.sweeps.plan import keep_trials, make_plan
from muxrl.orchestrator.sweeps.schema import ParameterConfig
from muxrl.orchestrator.sweeps.search import ROLES_KEY, LearningSearch, TableSearch, suggest
from muxrl.orchestrator.sweeps.trial import trial_of
from muxrl.protocol.assignment import file_name

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


class Table:
    """The trials of a sweep, and what it is told of new ones."""

    def __init__(self, folder, records=()):
        self.folder, self.records, self.rows = folder, list(records), []

    def add(self, records):
        self.records += records
        self.rows += records


def test_a_table_is_handed_out_once_in_its_order(plan, folder):
    made = plan()
    rows = made.trials
    search = TableSearch(made, Table(folder, rows))
    configs = [search.suggest(f"t{i}") for i in range(len(rows))]
    assert [trial_of(config) for config in configs] == rows
    assert [config["run_dir"] for config in configs] == [
        str(folder.runs / spec.id) for spec in rows
    ]
    assert search.suggest("one more") == "FINISHED"


LR = "algorithms.ppo.settings.lr"


@pytest.fixture
def learning(monkeypatch, plan, folder):
    """Gives a function for a searcher that suggests given points.

    It returns the searcher, its table, and a list with what the searcher knew for each suggestion.
    """
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())

    def make(points, earlier=()):
        left, told = list(points), []

        def suggest(spaces, mode, seed, known):
            told.append((spaces, mode, list(known)))
            return left.pop(0)

        monkeypatch.setattr(search_module, "suggest", suggest)
        table = Table(folder, earlier)
        return LearningSearch(plan("searcher=optuna"), table), table.rows, told

    return make


POINTS = [{ROLES_KEY: 1, LR: 0.01}, {ROLES_KEY: 0}, {ROLES_KEY: 1, LR: 0.02}]


def test_each_suggestion_is_tried_with_every_seed(learning):
    search, rows, _ = learning(map(dict, [*POINTS[:2], POINTS[0]]))
    configs = [search.suggest(f"t{i}") for i in range(6)]
    assert search.suggest("t6") == "FINISHED"
    assert [trial_of(config) for config in configs] == rows
    assert [spec.seed for spec in rows] == [0, 1] * 3
    assert [spec.roles["all"] for spec in rows] == ["ppo"] * 2 + ["random"] * 2 + ["ppo"] * 2
    # A parameter that an assignment does not use is no parameter of its trials.
    assert [spec.parameters for spec in rows[1:3]] == [{LR: 0.01}, {}]


def test_a_searcher_knows_the_result_of_a_suggestion_once_all_its_trials_are_over(learning):
    search, rows, told = learning(map(dict, POINTS))

    def next_two():
        return [search.suggest("t") for _ in range(2)]

    next_two()
    ends(rows[0], "done", 1.0)
    next_two()
    ends(rows[1], "stopped_early", 3.0)
    ends(rows[2], "done", 5.0)
    ends(rows[3], "failed", 9.0)
    next_two()
    assert [known for _, _, known in told] == [
        [],
        [(POINTS[0], "RUNNING", None)],
        [(POINTS[0], "COMPLETE", 2.0), (POINTS[1], "FAIL", None)],
    ]


def ends(record, status, metric):
    record.status, record.metric = status, metric


def test_an_invalid_suggestion_counts_as_failed_and_the_next_is_tried(learning):
    wrong = {ROLES_KEY: 1, LR: -1.0}
    search, rows, told = learning([dict(wrong), {ROLES_KEY: 0}])
    assert trial_of(search.suggest("t0")).roles == {"all": "random"}
    *refused, third, fourth = rows
    assert {one.status for one in refused} == {"failed"}
    assert {one.cause for one in refused} == {"server 'all': PPO: lr=-1.0 must be at least 0"}
    assert [spec.id for spec in refused] == ["0-refused-s0", "1-refused-s1"]
    assert [spec.id[0] for spec in (third, fourth)] == ["2", "3"]
    assert told[1][2] == [(wrong, "FAIL", None)]


def record(number, template, values, seed, status, metric=None, assignment="ppo:a"):
    return TrialRecord(
        f"{number}", assignment, {"all": template}, values, seed, status=status, metric=metric
    )


def test_a_resumed_search_knows_earlier_trials_and_makes_the_rest(learning):
    earlier = [
        record(0, "ppo", {LR: 0.02}, 0, "done", 1.0),
        record(1, "ppo", {LR: 0.02}, 1, "stopped_early", 2.0),
        record(2, "random", {}, 0, "done", 3.0),
        record(3, "random", {}, 1, "waiting"),
    ]
    search, rows, told = learning([{ROLES_KEY: 0}], earlier)
    handed = [search.suggest(f"t{i}")["trial"].partition("-")[0] for i in range(3)]
    assert handed == ["3", "4", "5"], "what is left, then what is new"
    ((spaces, mode, known),) = told
    assert [list(space) for space in spaces] == [[], [LR]]
    assert mode == "max"
    assert known == [({ROLES_KEY: 1, LR: 0.02}, "COMPLETE", 1.5), (POINTS[1], "RUNNING", None)]
    assert search.suggest("t3") == "FINISHED"
    assert len(rows) == 2


def test_trials_that_were_refused_or_have_no_metric_count_as_failed(learning):
    earlier = [
        *(record(seed, "ppo", {LR: 0.02}, seed, "failed", assignment="") for seed in (0, 1)),
        record(2, "random", {}, 0, "done", 3.0),
        record(3, "random", {}, 1, "done"),
    ]
    search, _, told = learning([{ROLES_KEY: 0}], earlier)
    search.suggest("t0")
    assert told[0][2] == [(POINTS[2], "FAIL", None), (POINTS[1], "FAIL", None)]


def test_more_seeds_are_added_to_earlier_suggestions(monkeypatch, plan):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    made = plan("searcher=optuna", "seeds=[0,1,7]")
    twice = [record(i, "ppo", {LR: 0.02}, i % 2, "done", float(i)) for i in range(4)]
    refused = record(4, "ppo", {LR: 0.9}, 0, "failed", assignment="")
    keep_trials(made, [*twice, refused])
    name = file_name("ppo:a")
    assert made.trials[:5] == [*twice, refused]
    assert [(one.id, one.parameters[LR], one.status) for one in made.trials[5:]] == [
        *((f"5-{name}-s7", 0.02, "waiting"), (f"6-{name}-s7", 0.02, "waiting"))
    ]


LIST = ParameterConfig(choice=[[8], [8, 8]])
SPACES = [
    {"lr": ParameterConfig(loguniform=[0.001, 0.1]), "widths": LIST},
    {"n": ParameterConfig(randint=[2, 5]), "q": ParameterConfig(quniform=[0.1, 0.3, 0.1])},
]


def value_of(point):
    return float(point.get("n", 0.0)) + point.get("lr", 0.0)


def test_suggestions_differ_and_depend_only_on_the_seed_and_known_results():
    known = []
    for seed in range(25):
        point = suggest(SPACES, "max", seed, known)
        assert suggest(SPACES, "max", seed, known) == point
        tried = suggest(SPACES, "max", seed + 1, [*known, (point, "RUNNING", None)])
        assert tried not in [point for point, *_ in known if "lr" in point]
        known.append((point, "COMPLETE", value_of(point)))
    lrs = [point["lr"] for point, *_ in known if "lr" in point]
    assert len(set(lrs)) == len(lrs)
    for point, *_ in known:
        assert set(point) == {ROLES_KEY, *SPACES[point[ROLES_KEY]]}
        if "q" in point:
            assert point["q"] in (0.1, 0.2, 0.3)
            assert point["n"] in (2, 3, 4)
        else:
            assert point["widths"] in LIST.choice


def test_optuna_takes_whatever_a_table_draws():
    known = []
    for sample in range(20):
        for number, space in enumerate(SPACES):
            drawn = {key: draw(key, p, sample, seed=0) for key, p in space.items()}
            how = ("FAIL", None) if sample % 3 else ("COMPLETE", 1.0)
            known.append(({ROLES_KEY: number, **drawn}, *how))
    suggest(SPACES, "min", 0, known)


def test_optuna_finds_better_points():
    first, last = 0.0, 0.0
    for seed in range(4):
        known = [({ROLES_KEY: 0, "lr": 0.01, "widths": [8]}, "COMPLETE", -1.0)]
        found = []
        for number in range(40):
            point = suggest(SPACES, "max", derive_seed(seed, str(number)), known)
            found.append(value_of(point))
            known.append((point, "COMPLETE", found[-1]))
        first, last = first + sum(found[:10]), last + sum(found[-10:])
    assert last > 1.5 * first
