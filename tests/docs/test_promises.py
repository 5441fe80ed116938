"""Each promise of the pages has tests that hold it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULTS, COMPLIANCE, SERVERS = "tests/faults", "tests/compliance", "tests/servers"
PROCESSES, RUNS = "tests/orchestrator/supervise", "tests/orchestrator/launch"
RELIABILITY = "docs/reliability.md"

# By page: a promise in the page's own words, and its tests as "file::function".
PROMISES: dict[str, dict[str, list[str]]] = {
    RELIABILITY: {
        "| a server dies |": [
            f"{FAULTS}/test_restarts.py::test_a_server_and_then_a_simulation_that_are_killed_go_on",
            f"{FAULTS}/test_restarts.py::test_a_server_begins_from_scratch_where_it_has_no_checkpoint",
            f"{RUNS}/test_evaluations.py::test_what_was_played_with_other_policies_is_dropped",
        ],
        "| a server does not answer |": [
            f"{FAULTS}/test_restarts.py::test_others_learn_beside_random_agents_while_a_server_is_lost",
        ],
        "| a simulation dies, raises or does not answer |": [
            f"{FAULTS}/test_restarts.py::test_a_server_and_then_a_simulation_that_are_killed_go_on",
            f"{FAULTS}/test_launch_faults.py::test_a_faulty_simulation",
        ],
        "| a step or reset does not return |": [
            f"{FAULTS}/test_launch_faults.py::test_a_faulty_simulation",
        ],
        "| the evaluation dies, raises or does not answer |": [
            f"{FAULTS}/test_kills.py::test_a_run_goes_on",
        ],
        "| a server of an external simulation dies |": [
            f"{FAULTS}/test_lost_servers.py::test_a_server_is_lost_while_it_is_stopped_and_when_it_is_killed_until_it_is_started_again",
        ],
        "| the gateway dies, alone or with a server;": [
            f"{FAULTS}/test_gateway.py::test_an_external_run_is_evaluated_survives_its_gateway_and_a_server_and_says_when_it_is_over",
            f"{FAULTS}/test_gateway.py::test_all_of_an_external_run_is_killed_and_it_is_resumed",
        ],
        "| a `simulation.command` fails, or ends without an episode |": [
            f"{FAULTS}/test_brought_simulations.py::test_a_program_that_played_an_episode_is_begun_again",
            f"{FAULTS}/test_kills.py::test_a_run_whose_simulation_is_a_program_goes_on",
        ],
        "| a port is taken when its process restarts |": [
            f"{FAULTS}/test_intruders.py::test_a_server_whose_port_is_taken_starts_once_it_is_free",
        ],
        "| the live page dies |": [
            f"{PROCESSES}/test_page_process.py::test_one_that_is_killed_is_said_and_started_again_at_its_address_unless_it_is_hopeless",
        ],
        "| no simulation finishes an env step |": [
            f"{FAULTS}/test_launch_faults.py::test_a_run_whose_simulation_never_plays_has_failed",
        ],
        "| the GCS of a Ray cluster dies |": [
            f"{PROCESSES}/test_cluster.py::test_a_gcs_that_takes_no_connection_is_reported_in_time",
        ],
        "| the orchestrator is killed by SIGKILL |": [
            f"{FAULTS}/test_resume_faults.py::test_a_run_of_which_everything_is_killed_is_resumed",
        ],
        "| a process or machine dies [on a cluster](cluster.md) |": [
            f"{FAULTS}/test_two_machines.py::test_a_process_that_is_started_again_is_on_the_machine_where_it_was",
            f"{FAULTS}/test_two_machines.py::test_a_machine_that_shares_no_disk_dies_and_its_server_goes_on_elsewhere",
            f"{FAULTS}/test_two_machines.py::test_a_server_that_listens_on_all_addresses_is_found_from_another_machine",
        ],
        "| another `muxrl launch` uses the run's directory |": [
            f"{FAULTS}/test_intruders.py::test_second_launches_and_clients_are_refused_and_the_run_goes_on",
        ],
        "| a second client starts an episode that is open |": [
            f"{FAULTS}/test_intruders.py::test_second_launches_and_clients_are_refused_and_the_run_goes_on",
        ],
        "| frames and answers are lost, repeated, late or cut |": [
            f"{COMPLIANCE}/test_exactly_once.py::TestExactlyOnce",
            f"{COMPLIANCE}/test_exactly_once.py::TestExactlyOnceThroughAGateway",
        ],
        "| the wall clock jumps |": ["tests/test_clocks.py::test_nothing_waits_by_the_time_of_day"],
        "| one reward or observation is absurd |": [
            f"{SERVERS}/trainers/test_sound_updates.py::test_an_absurd_reward_is_as_if_it_had_never_been",
            f"{SERVERS}/trainers/test_sound_updates.py::test_on_policy_algorithms_go_on_after_an_absurd_number",
            f"{SERVERS}/episodes/test_batches.py::test_a_number_far_outside_of_what_came_before_is_named",
        ],
        "| an agent never acts |": [
            f"{SERVERS}/algorithms/test_sound_updates.py::test_a_policy_whose_agent_stays_away_is_neither_updated_nor_judged",
        ],
        "| more than 10 updates in a row are skipped (of a replay: 100) |": [
            f"{FAULTS}/test_launch_faults.py::test_a_learner_that_diverges_ends_the_run_and_names_the_checkpoint",
        ],
        "a resumed run learns bit for bit": [
            f"{SERVERS}/trainers/test_resume.py::test_resumed_at_the_end_of_an_episode_it_ends_bit_for_bit_alike",
        ],
    },
    "README.md": {
        "one round trip a step, to all servers together": [
            "tests/client/test_multiplexer.py::test_many_episodes_in_one_message_a_server",
        ],
        "The simulation's machine needs neither Ray nor torch": [
            "tests/test_import_contract.py::test_a_simulation_s_side_and_the_command_s_help_are_light",
        ],
        "checkpoints of all servers at one moment": [
            f"{SERVERS}/checkpoints/test_checkpoint.py::test_a_checkpoint_is_as_of_one_moment_and_free_of_our_pickles",
        ],
    },
    "docs/protocol.md": {
        "`eval` episodes are never recorded for training, and held while a server learns only": [
            f"{COMPLIANCE}/test_learning_servers.py::test_evaluation_changes_no_weight_and_counts_no_step",
            f"{SERVERS}/trainers/test_policies.py::test_who_cannot_act_while_it_learns_holds_evaluations_and_hears_all",
        ],
    },
    "docs/security.md": {
        "A server that other machines can reach needs a token": [
            "tests/orchestrator/config/test_checks.py::test_what_is_refused",
        ],
        "All others are plain values and arrays": [
            f"{SERVERS}/checkpoints/test_state_file.py::test_a_pickle_in_its_place_is_not_loaded",
        ],
        "but no [web pages](protocol.md#endpoints)": [
            "tests/orchestrator/watch/test_access.py::test_foreign_pages_are_refused",
        ],
        "`muxrl launch` and `serve` need no Ray": [
            "tests/packaging/test_installed.py::test_with_servers_alone_a_run_with_a_replay_needs_no_ray",
        ],
    },
    "docs/decisions.md": {
        "**A budget of N env steps is exactly N.**": [
            "tests/orchestrator/gateway/test_episodes.py::test_no_step_is_played_beyond_the_budget_and_none_is_lost",
        ],
        "**A server is measured by its absence**": [
            "tests/orchestrator/evaluations/test_evaluate.py::test_a_run_is_evaluated_the_same_way_every_time_and_nothing_changes",
        ],
    },
}
EACH = [(page, words) for page, promises in PROMISES.items() for words in promises]


def top_level(path: Path) -> set[str]:
    """Returns the functions, classes and names that a file of tests defines."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize(("page", "words"), EACH, ids=[words[:40] for _, words in EACH])
def test_each_promise_is_on_its_page_and_has_tests(page: str, words: str) -> None:
    assert words in " ".join((ROOT / page).read_text().split())
    tests = [one.split("::") for one in PROMISES[page][words]]
    assert tests
    assert not [(path, name) for path, name in tests if name not in top_level(ROOT / path)]


def test_every_fault_in_the_page_s_table_is_a_promise() -> None:
    (table,) = re.findall(
        r"^\| what happens \|.*?\n\|[-|]+\n(.*?)\n\n",
        (ROOT / RELIABILITY).read_text(),
        re.M | re.DOTALL,
    )
    promised = [words for words in PROMISES[RELIABILITY] if words.startswith("|")]
    for row, words in zip(table.splitlines(), promised, strict=True):
        assert row.startswith(words)
