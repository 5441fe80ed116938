"""What a comparison says first: differences whose interval leaves out 0, and who has learned."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.orchestrator.comparisons.compared_runs import made_up_run

from muxrl.orchestrator.comparisons.compare import Comparison, compare_runs
from muxrl.orchestrator.comparisons.findings.head_to_head import CrossPlay, HeadToHead
from muxrl.orchestrator.comparisons.findings.headline import headline
from muxrl.orchestrator.comparisons.findings.learned import Learner
from muxrl.orchestrator.comparisons.findings.role_by_role import Pairing, RoleResult, RoleStanding
from muxrl.orchestrator.measure.statistics import UNKNOWN, Estimate
from muxrl.orchestrator.measure.subjects import Subject

PREDATORS = Subject("role", "predators", ("a", "b"))


def result(scores: dict[str, float], **differences: Estimate | None) -> RoleResult:
    """Labels with their scores, and the difference of each two of them, "ppo_qmix"."""
    pairings = []
    for names, difference in differences.items():
        first, second = names.split("_")
        back = difference and Estimate(-difference.mean, -difference.high, -difference.low)
        pairings += [
            Pairing("predators", first, second, UNKNOWN, difference, 2),
            Pairing("predators", second, first, UNKNOWN, back, 2),
        ]
    standings = [
        RoleStanding(
            "predators",
            label,
            2,
            1,
            Estimate(score, score, score),
            None,
            (),
        )
        for label, score in scores.items()
    ]
    return RoleResult(PREDATORS, ("ppo prey",), tuple(standings), tuple(pairings))


def learner(label: str, advantage: Estimate, num_runs: int = 2, role: str = "predators") -> Learner:
    others = "ppo prey"
    return Learner(f"{label} {role} | {others}", role, label, others, advantage, num_runs, 0)


BETTER, WORSE = Estimate(0.5, 0.1, 0.9), Estimate(-0.4, -3.0, 2.2)


def test_a_difference_is_claimed_where_its_interval_leaves_out_0() -> None:
    found = result(
        {"qmix": 1.0, "ppo": 1.4, "a2c": 1.1},
        qmix_ppo=Estimate(-0.42, -0.61, -0.23),
        qmix_a2c=Estimate(-0.1, -0.5, 0.3),
        ppo_a2c=Estimate(0.3, math.nan, math.nan),
    )
    assert headline([found], [], None) == [
        "As predators, among the same others [95 % over seeds]: ppo over qmix by 0.42 "
        "[0.23, 0.61]; ppo and a2c differ by 0.30 [–], with no interval; "
        "a2c and qmix cannot be told apart (+0.10 [−0.30, 0.50])."
    ]


def test_of_many_labels_each_is_told_against_the_best() -> None:
    labels = {"e": 1.0, "d": 2.0, "c": 3.0, "b": 4.0, "a": 5.0}
    differences = {
        f"{first}_{second}": Estimate(labels[first] - labels[second], 0.5, 9.0)
        for first in labels
        for second in labels
        if labels[first] > labels[second]
    }
    (sentence,) = headline([result(labels, **differences)], [], None)
    assert sentence.count(" over ") == 4 + 1
    assert sentence.count("a over ") == 4


def test_without_a_common_seed_nothing_is_said_of_a_pair() -> None:
    (sentence,) = headline([result({"qmix": 1.0, "ppo": 2.0}, qmix_ppo=None)], [], None)
    assert sentence.endswith("ppo and qmix have no seed in common.")


@pytest.mark.parametrize(
    ("learners", "sentences"),
    [
        (
            [learner("qmix", Estimate(1.0, -2.0, 4.0)), learner("ppo", WORSE)],
            [
                "With 2 seeds nobody is shown to have learned: of 2 learners (a role in an "
                "assignment), none has an interval against random agents in the same place that "
                "is above 0.",
            ],
        ),
        (
            [learner("qmix", BETTER), learner("ppo", Estimate(-0.4, -0.6, -0.2))],
            [
                "With 2 seeds, 1 of 2 learners (a role in an assignment) is shown to have learned, "
                "against random agents in the same place: qmix as predators beside ppo prey "
                "(+0.50 [0.10, 0.90]).",
                "1 of 2 ends below random agents in the same place: ppo as predators beside ppo "
                "prey (−0.40 [−0.60, −0.20]).",
            ],
        ),
        (
            [learner("qmix", BETTER), learner("ppo", BETTER), learner("x", UNKNOWN, 0, "prey")],
            [
                "With 2 seeds all 2 learners (a role in an assignment) are shown to have learned, "
                "against random agents in the same place.",
                "Whether prey learned is not known: random agents in the same place were not "
                "measured.",
            ],
        ),
        (
            [learner("qmix", Estimate(1.0, math.nan, math.nan), 1)],
            [
                "With 1 seed, qmix as predators beside ppo prey (+1.00 [–]) is not shown to have "
                "learned, against random agents in the same place."
            ],
        ),
    ],
)
def test_who_has_learned(learners: list[Learner], sentences: list[str]) -> None:
    assert headline([], learners, None) == sentences


@pytest.mark.parametrize(
    ("low", "sentence"),
    [
        (0.1, "qmix has the highest merit, +0.20 [0.10, 0.50] over pairs of seeds."),
        (
            -0.1,
            "nobody's merit is shown to be above 0; "
            "qmix's is +0.20 [−0.10, 0.50] over pairs of seeds.",
        ),
        (
            math.nan,
            "nobody's merit is shown to be above 0; qmix's is +0.20 [–] over pairs of seeds.",
        ),
    ],
)
def test_the_highest_merit_of_a_head_to_head_is_told(low: float, sentence: str) -> None:
    ends = (low, math.nan if math.isnan(low) else 0.5)
    merits = {"qmix": Estimate(0.2, *ends), "ppo": UNKNOWN, "random": Estimate(-0.2, -1, 0.6)}
    table = CrossPlay("predators", tuple(merits), ("ppo",), {}, merits)
    played = HeadToHead((table,), (), (), (), 1, 0, (), should_explore=False)
    assert headline([], [], played) == [f"Head to head as predators, {sentence}"]


@pytest.mark.parametrize(("high", "is_below"), [(-0.5, True), (22.5, False), (math.nan, False)])
def test_nobody_ends_below_random_whose_interval_holds_0(high: float, is_below: bool) -> None:
    one = learner("qmix", Estimate(-1.66, math.nan if math.isnan(high) else -25.81, high), 3)
    assert one.is_below is is_below
    sentences = headline([], [one, learner("ppo", Estimate(1.0, 0.5, 1.5), 3)], None)
    assert any("below random" in sentence for sentence in sentences) is is_below


def test_runs_below_random_are_found_and_marked(tmp_path: Path) -> None:
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", s, -1.0 - 0.01 * s, prey_gain=2.0) for s in (1, 2, 3)
    ]
    found = compare_runs(paths, num_episodes=2)
    hunters, prey = found.learners
    assert (hunters.is_below, hunters.num_below, hunters.num_runs) == (True, 3, 3)
    assert hunters.advantage.mean == pytest.approx(-1.02)
    assert prey.is_shown
    frame = found.frame("learners")
    assert list(frame["verdict"]) == ["below random", "learned"]
    page = found.write(tmp_path / "out").read_text()
    assert page.index("1 of 2 ends below random") < page.index("<h2")
    assert "−1.02 [−1.05, −0.99]\N{THIN SPACE}▼" in page
    assert isinstance(replace(found), Comparison)


@pytest.mark.parametrize(
    ("untrained", "verdict"),
    [(None, "learned"), (0.5, "learned"), (2.0, "not shown: untrained"),
     (3.0, "not shown: untrained")],
)  # fmt: skip
def test_better_than_random_is_not_shown_where_untrained_policies_are_as_good(
    tmp_path: Path, untrained: float | None, verdict: str
) -> None:
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", s, 2.0 + 0.01 * s, untrained=untrained)
        for s in (1, 2, 3)
    ]
    found = compare_runs(paths, num_episodes=2)
    hunters, _ = found.learners
    assert hunters.is_over_random
    assert hunters.is_shown is (verdict == "learned")
    frame = found.frame("learners")
    assert frame["verdict"][0] == verdict
    if untrained is None:
        assert math.isnan(hunters.over_untrained.mean)
    else:
        assert frame["over_untrained"][0] == pytest.approx(2.02 - untrained)
    told = any("is shown to have learned" in sentence for sentence in found.headline)
    assert told is (verdict == "learned")
    assert verdict in found.write(tmp_path / "out").read_text()
