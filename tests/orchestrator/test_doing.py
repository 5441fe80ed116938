"""Progress of slow commands: a single line in a terminal, few lines elsewhere."""

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from muxrl.orchestrator import doing as module
from muxrl.orchestrator.doing import doing, progress, shown_on, silenced


def in_terminal(*command: str | Path, seconds: float = 60.0) -> tuple[float, str]:
    """Returns when a command first wrote, and all that it wrote to a terminal of 80 columns."""
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    began_at = time.monotonic()
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        text, first_s = b"", 0.0
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # raised on Linux when the command has ended
                break
            first_s = first_s or time.monotonic() - began_at
            text += part
        process.wait(seconds)
    os.close(main)
    return first_s, text.decode()


def test_without_a_terminal_each_task_is_a_line_and_its_progress_a_line_now_and_then(monkeypatch):
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    file = io.StringIO()
    with shown_on(file):
        for number in range(25):
            now = float(number)
            doing("evaluation", f"{number} of 25")
        with silenced():
            doing("not this")
        doing("head to head", "match 1 of 2")
        progress("3 of 9 episodes")
        now = 60.0
        progress("9 of 9 episodes")
    doing("nor this")
    assert file.getvalue().splitlines() == [
        "evaluation: 0 of 25",
        "evaluation: 10 of 25",
        "evaluation: 20 of 25",
        "head to head: match 1 of 2",
        "head to head: match 1 of 2, 9 of 9 episodes",
    ]


def test_a_terminal_has_one_line_of_progress_that_makes_room_for_output():
    code = (
        "import sys\n"
        "from muxrl.orchestrator.doing import doing, shown_on\n"
        "with shown_on(sys.stdout):\n"
        "    doing('waiting ' * 20)\n"
        "    doing('evaluation', '1 of 2')\n"
        "    print('a result')\n"
        "    doing('more')\n"
        "print('the end')\n"
    )
    _, text = in_terminal(sys.executable, "-c", code)
    erase = "\r\x1b[2K"
    long = ("waiting " * 20)[:79]
    assert text == (
        f"{erase}{long}{erase}evaluation: 1 of 2{erase}a result\r\n{erase}more{erase}the end\r\n"
    )


@pytest.mark.parametrize("command", ["launch", "sweep", "check", "evaluate", "compare"])
def test_every_slow_command_prints_something_within_a_second(command, tmp_path):
    said_s, text = in_terminal(sys.executable, "-m", "muxrl", command, tmp_path / "nothing.yaml")
    assert text.startswith("\r\x1b[2Kloading packages")
    # The refusal has a line of its own.
    assert "muxrl: " in text.splitlines()[-1].rpartition("\x1b[2K")[2]
    assert said_s < 3.0  # 0.3 s on a machine that is otherwise idle


def test_python_shows_a_launch_in_a_terminal_unless_it_is_told_otherwise(tmp_path):
    code = (
        "from muxrl.orchestrator import api\n"
        "from muxrl.orchestrator.doing import doing\n"
        "import contextlib\n"
        "def early(address):\n"
        "    doing('x')\n"
        "    return contextlib.nullcontext()\n"
        "api.early, api.prepare = early, lambda given: doing('x')\n"
        "def run(*_, is_resumed, show_progress, console):\n"
        "    print(show_progress, console is not None)\n"
        "api.run_experiment = run\n"
        "api.launch('cartpole_ppo')\n"
        "api.launch('cartpole_ppo', show_progress=False)\n"
    )
    _, text = in_terminal(sys.executable, "-c", code)
    assert text.replace("\r\x1b[2K", "").split() == ["xxTrue", "True", "False", "False"]
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert piped.stdout.split() == ["False", "False"] * 2
