"""``muxrl completion`` and ``muxrl schema`` print what a shell and an editor can read."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.orchestrator.commanded import Muxrl


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_valid_in_its_shell_and_knows_every_command(
    shell: str, tmp_path: Path, muxrl: Muxrl
) -> None:
    pytest.importorskip("shtab")
    told = muxrl("completion", shell)
    script = tmp_path / "script"
    script.write_text(told.out)
    for word in ("launch", "compliance", "completion", "resume", "replace"):
        assert word in script.read_text()
    if program := shutil.which(shell):
        done = subprocess.run([program, "-n", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_commands_options_and_files(tmp_path: Path, muxrl: Muxrl) -> None:
    pytest.importorskip("shtab")
    told = muxrl("completion", "bash")
    (tmp_path / "mine.yaml").touch()
    script = told.out

    def complete(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _shtab_muxrl"
        code = f"{script}\n{asked}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(
            ["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert complete("muxrl", "comp") == ["compare", "compliance", "completion"]
    assert complete("muxrl", "launch", "--res") == ["--resume"]
    assert complete("muxrl", "launch", "mi") == ["mine.yaml"]


def test_without_shtab_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, muxrl: Muxrl
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "shtab", None)
    err = muxrl("completion", "bash", code=2).err
    assert err == "muxrl: completion: needs shtab, not installed here: pip install shtab\n"


def test_the_schema_is_printed_alone(muxrl: Muxrl) -> None:
    out, err = muxrl("schema", "sweep")
    assert (json.loads(out)["title"], err) == ("muxrl: sweep", "")
