"""Which interpreters the check of the wheel finds, and what it says of a command that fails."""

import sys
from pathlib import Path

import pytest

from bench.wheel import WheelFailed, interpreters, run


def save(path: Path, prints: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {prints}\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_an_interpreter_on_the_path_goes_before_one_of_pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    on_path = save(tmp_path / "bin" / "python3.12", "3.12")
    save(tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin" / "python", "3.12")
    assert list(interpreters(["3.11", "3.12"], tmp_path)) == [on_path]


def test_a_shim_that_does_not_run_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:{tmp_path / 'bin'}")
    save(tmp_path / "shims" / "python3.13", "'pyenv: python3.13: command not found'", status=127)
    save(tmp_path / "bin" / "python3.13", "3.11")  # another version under this name
    working = save(tmp_path / ".pyenv" / "versions" / "3.13.0" / "bin" / "python", "3.13")
    assert list(interpreters(["3.13"], tmp_path)) == [working]


def test_a_command_that_fails_is_reported_with_the_end_of_its_output() -> None:
    code = "import sys; print(*range(40), sep='\\n'); sys.exit('the reason')"
    with pytest.raises(WheelFailed, match=r"(?s)exited with 1:\n26\n.*39\nthe reason$"):
        run(sys.executable, "-c", code)
