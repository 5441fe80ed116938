import io

from rich.console import Console

from muxrl.orchestrator.launch.progress import (
    Progress,
    ServerSnapshot,
    Snapshot,
    plain_line,
)

PREY = ServerSnapshot(
    server_id="prey",
    algorithm="PPO",
    phase="updating",
    is_waiting=True,
    env_steps=1_200,
    env_steps_per_s=118.6,
    episode_return_mean=-12.345,
    weights_seq_no=7,
    policy_lag_mean=0.84,
    loss=float("nan"),
)


def snapshot(time_s: float, note: str = "") -> Snapshot:
    return Snapshot(
        time_s=time_s,
        env_steps=1_200,
        env_steps_per_s=118.6,
        episodes=48,
        time_left_s=3_725.0,
        stop_text="100,000 env steps",
        servers=[PREY, ServerSnapshot("team", "QMIX")],
        note=note,
    )


def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=40)


def terminal(width: int, kind: str = "xterm") -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, _environ={"TERM": kind})


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_line_has_all_that_is_known_of_the_run() -> None:
    assert plain_line("tag", snapshot(65.0, "evaluating")) == (
        "tag 0:01:05 | 48 episodes, 1,200 env steps, 119 steps/s, 1:02:05 left"
        " (until 100,000 env steps)"
        " | prey updating (waited for) return -12.35 v7 lag 0.8 loss –"
        " | team starting return – v0 lag – loss – | evaluating"
    )


def test_servers_that_do_not_learn_have_no_weights_lag_and_loss() -> None:
    fixed = ServerSnapshot("rule", "SCRIPTED", phase="ready", weights_seq_no=None)
    line = plain_line("tag", Snapshot(time_s=1.0, servers=[fixed, ServerSnapshot("team", "QMIX")]))
    assert " | rule ready return – | team starting return – v0 lag – loss –" in line
    console = terminal(100)
    with Progress("tag", Snapshot(0.0, servers=[fixed]), console=console):
        pass
    row = [row for row in written(console).splitlines() if "rule" in row][-1]
    assert row.count("–") == 4  # for return, weights, lag and loss


def test_without_a_terminal_there_is_a_line_every_ten_seconds() -> None:
    console = plain()
    clock = iter(range(1_000)).__next__  # the clock is read at each update, and after each line
    first = Snapshot(0.0, servers=[PREY], stop_text="100,000 env steps")
    with Progress("tag", first, console=console, clock=clock) as progress:
        for time_s in range(26):
            progress.update(snapshot(float(time_s)))
    starts = [line.split(" | ")[0] for line in written(console).splitlines()]
    # Also printed at the end.
    assert starts == ["tag 0:00:00", "tag 0:00:10", "tag 0:00:20", "tag 0:00:25"]
    assert "\x1b" not in written(console)


def test_without_a_terminal_a_new_note_is_written_at_once() -> None:
    console = plain()
    with Progress("tag", console=console) as progress:
        for time_s, note in enumerate(["", "[red]prey restarted", "[red]prey restarted"]):
            progress.update(snapshot(float(time_s), note))
    lines = written(console).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("[red]prey restarted")  # a note is not read as markup


def test_the_progress_of_an_evaluation_is_printed_every_ten_seconds() -> None:
    console, now = plain(), [0.0]
    with Progress("tag", console=console, clock=lambda: now[0]) as progress:
        for second in range(12):
            now[0] = float(second)
            text = f"evaluation at the end, all as learned: {second} of 100 episodes"
            progress.update(Snapshot(5.0, evaluating=text))
    lines = [line.rsplit(": ", 1)[1] for line in written(console).splitlines()]
    assert lines == [f"{n} of 100 episodes" for n in (0, 10, 11)]  # also printed at the end


def test_an_alarm_and_a_new_warning_are_written_at_once_but_not_each_count() -> None:
    console = plain()
    alarm = "no checkpoint of server 'prey': its weights are not finite"
    with Progress("tag", console=console) as progress:
        for time_s, (warned, problem) in enumerate(
            [
                ([], ""),
                ([("prey updates skipped", 1)], ""),
                ([("prey updates skipped", 1_200)], ""),
                ([("prey updates skipped", 1_201)], alarm),
                ([("prey updates skipped", 1_201), ("checkpoints refused", 2)], ""),
            ]
        ):
            progress.update(Snapshot(float(time_s), warned=warned, alarm=problem))
    lines = [line.split(" | ")[2:] for line in written(console).splitlines()]
    assert lines == [
        [],
        ["warnings: prey updates skipped 1×"],
        ["warnings: prey updates skipped 1,201×", alarm],
        ["warnings: prey updates skipped 1,201×, checkpoints refused 2×"],
    ]


def test_a_terminal_has_a_table_that_stays_at_the_end() -> None:
    console = terminal(110)
    with Progress("tag", Snapshot(0.0, servers=[PREY]), console=console) as progress:
        assert "prey" in written(console)  # the table is printed before the first update
        progress.update(snapshot(1.0, "evaluating"))
        progress.update(Snapshot(2.0, servers=[PREY], alarm="no checkpoint", warned=[("x y", 3)]))
    text = written(console)
    for expected in ("policy", "waited for", "team", "1:02:05 left", "evaluating", "-12.3"):
        assert expected in text
    assert "warnings: x y 3×" in text
    assert "\x1b[1;31mno checkpoint" in text


def test_no_number_is_cut_off_on_a_narrow_terminal() -> None:
    console = terminal(80)
    with Progress("tag", console=console) as progress:
        predators = ServerSnapshot("predators", "QMIX", env_steps=1_234_567, loss=123.456)
        progress.update(Snapshot(1.0, servers=[PREY, predators]))
    for expected in ("1,234,567", "-12.35", "123.456"):
        assert expected in written(console)
    assert "…" not in written(console)


def test_a_dumb_terminal_gets_lines() -> None:
    console = terminal(110, "dumb")
    with Progress("tag", console=console) as progress:
        progress.update(snapshot(1.0))
    assert written(console).startswith("tag 0:00:01 | ")
